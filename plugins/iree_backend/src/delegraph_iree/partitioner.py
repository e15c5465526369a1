"""``IREEPartitioner``: gives IREE the calls that TOSA's rules and IREE can compile."""

from __future__ import annotations

from typing import Any

from delegraph_tosa import DevicePartitioner, DType, Operator, narrow, split_flags

from .for_iree import why_not_at_run_time

DEVICE = "iree"
"""The suffix of a TOSA target that restricts it to operators that IREE compiles."""
_NOT_COMPILED = frozenset(
    {"CUSTOM", "VARIABLE", "VARIABLE_READ", "VARIABLE_WRITE", "ROW_GATHER"}
)
_TYPES_NOT_COMPILED = frozenset(
    {dtype for dtype in DType if dtype.name.startswith(("BS", "FP8", "INT4"))}
)


def why_not_iree(operator: Operator) -> str | None:
    """Return why IREE 3.13 does not compile a TOSA operator, or None if it does."""
    suffixes = ("_ADAPTIVE", "_BLOCK_SCALED")
    if operator.name in _NOT_COMPILED or operator.name.endswith(suffixes):
        return f"IREE does not compile {operator.name}"
    for value in (*operator.inputs, *operator.outputs):
        if value.dtype in _TYPES_NOT_COMPILED:
            return f"IREE does not compile {operator.name} of {value.dtype}"
    return why_not_at_run_time(operator)


narrow(DEVICE, why_not_iree)


class IREEPartitioner(DevicePartitioner):
    """Gives IREE the operators that it compiles.

    ``target``, ``cpu`` and ``flags`` are for iree-compile, ``driver`` is for IREE's
    runtime, other options are for TOSA.
    """

    def __init__(
        self,
        target: str = "llvm-cpu",
        cpu: str = "host",
        flags: str = "",
        driver: str = "local-sync",
        **tosa: Any,
    ) -> None:
        # Called only for its OptionError: unbalanced quotes are refused now, and not
        # when the first partition is compiled.
        split_flags(flags)
        settings = {"target": target, "cpu": cpu, "flags": flags, "driver": driver}
        super().__init__("IREEBackend", DEVICE, settings, **tosa)
