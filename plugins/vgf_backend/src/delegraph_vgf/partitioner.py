"""``VgfPartitioner``: gives Arm's converter what TOSA's rules lower to operators that it converts."""

from __future__ import annotations

import shlex
from typing import Any

import delegraph
from delegraph.backend import CompileSpec
from delegraph.errors import OptionError
from delegraph.partitioner import WrappingPartitioner
from delegraph_tosa import DType, Operator, TosaSpec, narrow

DEVICE = "vgf"
"""The word that narrows a TOSA target to what becomes a VGF file."""


_NOT_CONVERTED = ("CUSTOM", "COND_IF", "WHILE_LOOP", "VARIABLE", "VARIABLE_READ", "VARIABLE_WRITE")
"""Operators that model-converter 0.11 marks as illegal. It takes each other one, of every type that TOSA 1.0 has."""


def why_not_vgf(operator: Operator) -> str | None:
    """Why model-converter 0.11 makes no VGF of a TOSA operator; None if it does."""
    if operator.name in _NOT_CONVERTED:
        return f"VGF files have no {operator.name}"
    for value in (*operator.inputs, *operator.outputs):
        if value.dtype is DType.INT64:
            return "model-converter makes int32 of int64"
        if any(size < 0 for size in value.type.declared):
            return f"VGF files have fixed sizes, and {operator.name} has one that a call chooses"
    return None


narrow(DEVICE, why_not_vgf)


class VgfPartitioner(WrappingPartitioner):
    """``flags`` are model-converter's; the other options are TOSA's."""

    def __init__(self, flags: str = "", **tosa: Any) -> None:
        spec = tosa.pop("spec", "TOSA-1.0+FP+INT")
        parsed = TosaSpec.parse(spec)
        if parsed.version < (1, 0):
            raise OptionError("option-invalid", f"the option spec of vgf is {spec!r}: VGF files are made from TOSA 1.0")
        if DEVICE not in parsed.devices:
            spec = f"{spec}+{DEVICE}"
        try:
            shlex.split(flags)
        except ValueError as error:
            raise OptionError("option-invalid", f"option 'flags' of vgf is {flags!r:.80}: {error}") from error
        inner = delegraph.get_partitioner("tosa", spec=spec, **tosa)
        super().__init__(inner, "VgfBackend", [CompileSpec("vgf_flags", flags.encode())])
