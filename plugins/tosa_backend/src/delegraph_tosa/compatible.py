"""Whether the host's runtime takes a stored TOSA file, by the version in its beginning."""

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
    """By the version of TOSA; None for files of other producers that have it further
    behind than ``header`` reaches.
    """
    if device not in DEVICES:
        return Compatibility(
            "cannot",
            f"TOSA's runtime here computes on the cpu, and has no device {device!r}",
        )
    data = beginning(header.beginning)
    try:
        if compile_specs:
            Options.parse(compile_specs)
        version = stated_version(data)
    except OptionError as e:
        return Compatibility("cannot", e.message)
    except FormatError as e:
        is_whole = data is header.beginning and header.size <= len(data)
        is_other = data is header.beginning and data[4:8] != IDENTIFIER.encode()
        return Compatibility("cannot", e.message) if is_whole or is_other else None
    named = f"{version[0]}.{version[1]}"
    if version not in _RUNS:
        return Compatibility(
            "cannot", f"it is a file of TOSA {named}; 0.80, 1.0 and 1.1 are run here"
        )
    if version == (1, 1):
        return Compatibility(
            "rebuild", "TOSA 1.1 is a draft: lower the model again when it is final"
        )
    return Compatibility("runs", f"TOSA {named} is run here")
