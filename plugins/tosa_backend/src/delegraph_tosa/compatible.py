"""Decides by the version in its header whether this host can run a TOSA file."""

from __future__ import annotations

from collections.abc import Sequence

from delegraph.backend import CompileSpec
from delegraph.errors import FormatError, OptionError
from delegraph.runtime import BlobHeader, Compatibility

from .options import Options
from .serialize import stated_version
from .serialize.named_constants import beginning
from .serialize.schema import IDENTIFIER

_RUNS = ((1, 0), (1, 1), (0, 80))
DEVICES = (None, "cpu")


def compatible(
    header: BlobHeader, compile_specs: Sequence[CompileSpec], device: str | None = None
) -> Compatibility | None:
    """Decide by the TOSA version of the file whether this host can run it.

    Returns None if ``header``, the beginning of the file, does not contain the version,
    as for some files of other producers.
    """
    if device not in DEVICES:
        return Compatibility(
            "cannot",
            f"the TOSA runtime runs on the cpu only; it has no device {device!r}",
        )
    data = beginning(header.beginning)
    try:
        if compile_specs:
            Options.parse(compile_specs)
        version = stated_version(data)
    except OptionError as e:
        return Compatibility("cannot", e.message)
    except FormatError as e:
        # the file is complete, or is no TOSA file: more bytes would not help
        is_file = data is header.beginning
        is_whole = is_file and header.size <= len(data)
        is_other = is_file and data[4:8] != IDENTIFIER.encode()
        return Compatibility("cannot", e.message) if is_whole or is_other else None
    text = f"{version[0]}.{version[1]}"
    if version not in _RUNS:
        return Compatibility(
            "cannot",
            f"the file has TOSA {text}; this runtime runs 0.80, 1.0 and 1.1",
        )
    if version == (1, 1):
        return Compatibility(
            "rebuild", "TOSA 1.1 is a draft: lower the model again when it is final"
        )
    return Compatibility("runs", f"this runtime runs TOSA {text}")
