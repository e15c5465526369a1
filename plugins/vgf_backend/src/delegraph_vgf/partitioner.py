"""``VgfPartitioner``: gives Arm's converter what TOSA's rules lower to operators that
it converts.
"""

from __future__ import annotations

from typing import Any

from delegraph.errors import OptionError
from delegraph_tosa import (
    DevicePartitioner,
    DType,
    Operator,
    TosaSpec,
    narrow,
    split_flags,
)

DEVICE = "vgf"
"""The word that narrows a TOSA target to what becomes a VGF file."""


_NOT_CONVERTED = (
    "CUSTOM",
    "COND_IF",
    "WHILE_LOOP",
    "VARIABLE",
    "VARIABLE_READ",
    "VARIABLE_WRITE",
)
"""Operators that model-converter 0.11 marks as illegal. It takes each other one, of
every type that TOSA 1.0 has.
"""


def why_not_vgf(operator: Operator) -> str | None:
    """Why model-converter 0.11 makes no VGF of a TOSA operator; None if it does."""
    if operator.name in _NOT_CONVERTED:
        return f"VGF files have no {operator.name}"
    for value in (*operator.inputs, *operator.outputs):
        if value.dtype is DType.INT64:
            return "model-converter makes int32 of int64"
        if any(size < 0 for size in value.type.declared):
            return (
                f"VGF files have fixed sizes, and {operator.name} has one that a call"
                " chooses"
            )
    return None


narrow(DEVICE, why_not_vgf)


class VgfPartitioner(DevicePartitioner):
    """``flags`` are model-converter's; the other options are TOSA's."""

    def __init__(
        self, flags: str = "", spec: str = "TOSA-1.0+FP+INT", **tosa: Any
    ) -> None:
        if TosaSpec.parse(spec).version < (1, 0):
            raise OptionError(
                "option-invalid",
                f"the option spec of vgf is {spec!r}: VGF files are made from TOSA 1.0",
            )
        split_flags(flags)
        super().__init__("VgfBackend", DEVICE, {"flags": flags}, spec, **tosa)
