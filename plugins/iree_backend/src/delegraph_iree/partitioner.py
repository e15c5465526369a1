"""``IREEPartitioner``: gives IREE what TOSA's rules lower to operators that IREE compiles."""

from __future__ import annotations

from typing import Any

from delegraph_tosa import DevicePartitioner, DType, Operator, narrow, split_flags

DEVICE = "iree"
"""The word that narrows a TOSA target to what IREE compiles."""
_NOT_COMPILED = frozenset({"CUSTOM", "VARIABLE", "VARIABLE_READ", "VARIABLE_WRITE"})
_TYPES = frozenset({t for t in DType if t.name.startswith("BS") or t.name.startswith("FP8") or t.name == "INT4"})


def why_not_iree(operator: Operator) -> str | None:
    """Why IREE 3.13 does not compile a TOSA operator; None if it does."""
    if operator.name in _NOT_COMPILED:
        return f"IREE compiles no {operator.name}"
    for value in (*operator.inputs, *operator.outputs):
        if value.dtype in _TYPES:
            return f"IREE compiles no {operator.name} of {value.dtype}"
    return None


narrow(DEVICE, why_not_iree)


class IREEPartitioner(DevicePartitioner):
    """``target``, ``cpu`` and ``flags`` are iree-compile's; the other options are TOSA's."""

    def __init__(self, target: str = "llvm-cpu", cpu: str = "host", flags: str = "", **tosa: Any) -> None:
        split_flags(flags)
        super().__init__("IREEBackend", DEVICE, {"target": target, "cpu": cpu, "flags": flags}, **tosa)
