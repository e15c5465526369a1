"""The only setting of the backend, ``max_value``, as an option and as a compile spec."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from delegraph.backend import CompileSpec
from delegraph.errors import OptionError

KEY = "max_value"


def to_compile_specs(max_value: float | None) -> tuple[CompileSpec, ...]:
    """Return the compile specs of each partition: none, or eight bytes, little-endian.

    A ``.pte`` file stores them.
    """
    if max_value is None:
        return ()
    return (CompileSpec(KEY, struct.pack("<d", _checked(max_value))),)


def from_compile_specs(compile_specs: Sequence[CompileSpec]) -> float | None:
    """Return the setting, or None without one.

    Raises OptionError for any other compile spec, so that a mistake is not silently
    ignored.
    """
    for spec in compile_specs:
        if spec.key != KEY:
            raise OptionError(
                "option-invalid",
                f"compiler-demo has no compile spec {spec.key!r}; it has {KEY!r}",
            )
    if len(compile_specs) > 1:
        raise OptionError(
            "option-invalid",
            f"compile spec {KEY!r} is given {len(compile_specs)} times",
        )
    return _parsed(compile_specs[0].value) if compile_specs else None


def _parsed(value: bytes) -> float:
    """Return the number in a compile spec.

    A single byte is a number from 0 to 255: ExecuTorch's demo uses this form.
    """
    if len(value) not in (1, 8):
        text = (
            f"compile spec {KEY!r} must be one byte or a little-endian double, not"
            f" {value!r:.60}"
        )
        raise OptionError("option-invalid", text)
    if len(value) == 1:
        return _checked(value[0])
    [number] = struct.unpack("<d", value)
    return _checked(number)


def _checked(max_value: float) -> float:
    """Return ``max_value`` as a float; OptionError if it is negative or NaN."""
    if not max_value >= 0:  # also false for NaN
        raise OptionError(
            "option-invalid",
            f"{KEY} is the largest absolute value; it must be 0 or more, not"
            f" {max_value}",
        )
    return float(max_value)
