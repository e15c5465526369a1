"""``VgfPartitioner``: gives Arm's converter the calls that TOSA's rules and it support."""

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
"""The suffix of a TOSA target that restricts it to operators of VGF files."""
_NOT_CONVERTED = (
    "CUSTOM",
    "COND_IF",
    "WHILE_LOOP",
    "VARIABLE",
    "VARIABLE_READ",
    "VARIABLE_WRITE",
)
"""Operators that model-converter 0.11 marks as illegal.

It converts all others, with every type of TOSA 1.0.
"""


def why_not_vgf(operator: Operator) -> str | None:
    """Return why model-converter 0.11 does not convert a TOSA operator, or None."""
    if operator.name in _NOT_CONVERTED:
        return f"VGF files cannot contain {operator.name}"
    for value in (*operator.inputs, *operator.outputs):
        if value.dtype is DType.INT64:
            return "model-converter would convert int64 to int32"
        if any(size < 0 for size in value.type.declared):
            return (
                f"VGF files need fixed sizes, but a size of {operator.name} is known"
                " only at run time"
            )
    return None


narrow(DEVICE, why_not_vgf)


class VgfPartitioner(DevicePartitioner):
    """Gives VGF files the operators that they can contain.

    ``flags`` are for model-converter; the other options are for TOSA.
    """

    def __init__(
        self, flags: str = "", spec: str = "TOSA-1.0+FP+INT", **tosa: Any
    ) -> None:
        if TosaSpec.parse(spec).version < (1, 0):
            raise OptionError(
                "option-invalid",
                f"the option spec of vgf is {spec!r}; it must be TOSA 1.0 or newer",
            )
        # Called only for its OptionError: unbalanced quotes are refused now, and not
        # when the first partition is compiled.
        split_flags(flags)
        super().__init__("VgfBackend", DEVICE, {"flags": flags}, spec, **tosa)
