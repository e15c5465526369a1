"""The backend's one setting, ``max_value``: from the user's option to a compile spec
and back.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from delegraph.backend import CompileSpec
from delegraph.errors import OptionError

KEY = "max_value"


def to_compile_specs(max_value: float | None) -> tuple[CompileSpec, ...]:
    """What the partitioner gives each partition, and a ``.pte`` stores: nothing, or
    eight bytes, little-endian.
    """
    if max_value is None:
        return ()
    return (CompileSpec(KEY, struct.pack("<d", _checked(max_value))),)


def from_compile_specs(compile_specs: Sequence[CompileSpec]) -> float | None:
    """The setting; None if there is none. Raises OptionError for any other, which
    nobody would read.
    """
    for unknown in (spec.key for spec in compile_specs if spec.key != KEY):
        raise OptionError(
            "option-invalid",
            f"compiler-demo has the compile spec {KEY!r} and no {unknown!r}",
        )
    if len(compile_specs) > 1:
        raise OptionError(
            "option-invalid",
            f"compile spec {KEY!r} is given {len(compile_specs)} times",
        )
    return _parsed(compile_specs[0].value) if compile_specs else None


def _parsed(value: bytes) -> float:
    """A single byte is a number from 0 to 255: the form in which ExecuTorch's demo
    takes it.
    """
    if len(value) not in (1, 8):
        text = (
            f"compile spec {KEY!r} is one byte or a little-endian double, not"
            f" {value!r:.60}"
        )
        raise OptionError("option-invalid", text)
    return _checked(struct.unpack("<d", value)[0] if len(value) == 8 else value[0])


def _checked(max_value: float) -> float:
    if not max_value >= 0:  # NaN is not either
        raise OptionError(
            "option-invalid",
            f"{KEY} is the largest absolute value, 0 or more, not {max_value}",
        )
    return float(max_value)
