"""``IREEPartitioner``: gives IREE what TOSA's rules lower to operators that IREE
compiles.
"""

from __future__ import annotations

from typing import Any

from delegraph_tosa import DevicePartitioner, DType, Operator, narrow, split_flags

from .for_iree import why_not_at_run_time

DEVICE = "iree"
"""The word that narrows a TOSA target to what IREE compiles."""
_NOT_COMPILED = frozenset(
    {"CUSTOM", "VARIABLE", "VARIABLE_READ", "VARIABLE_WRITE", "ROW_GATHER"}
)
_TYPES = frozenset(
    {
        t
        for t in DType
        if t.name.startswith("BS") or t.name.startswith("FP8") or t.name == "INT4"
    }
)


def why_not_iree(operator: Operator) -> str | None:
    """Why IREE 3.13 does not compile a TOSA operator; None if it does."""
    if operator.name in _NOT_COMPILED or operator.name.endswith(
        ("_ADAPTIVE", "_BLOCK_SCALED")
    ):
        return f"IREE compiles no {operator.name}"
    for value in (*operator.inputs, *operator.outputs):
        if value.dtype in _TYPES:
            return f"IREE compiles no {operator.name} of {value.dtype}"
    return why_not_at_run_time(operator)


narrow(DEVICE, why_not_iree)


class IREEPartitioner(DevicePartitioner):
    """Gives IREE what it compiles.

    ``target``, ``cpu`` and ``flags`` are iree-compile's, ``driver`` is that of IREE's
    runtime, others are TOSA's.
    """

    def __init__(
        self,
        target: str = "llvm-cpu",
        cpu: str = "host",
        flags: str = "",
        driver: str = "local-sync",
        **tosa: Any,
    ) -> None:
        split_flags(flags)
        settings = {"target": target, "cpu": cpu, "flags": flags, "driver": driver}
        super().__init__("IREEBackend", DEVICE, settings, **tosa)
