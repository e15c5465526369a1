"""``IREEPartitioner``: gives IREE what TOSA's rules lower to operators that IREE compiles."""

from __future__ import annotations

import shlex
from typing import Any

import delegraph
from delegraph.backend import CompileSpec
from delegraph.errors import OptionError
from delegraph.partitioner import WrappingPartitioner
from delegraph_tosa import DType, Operator, TosaSpec, narrow

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


class IREEPartitioner(WrappingPartitioner):
    """``target``, ``cpu`` and ``flags`` are iree-compile's; the other options are TOSA's."""

    def __init__(self, target: str = "llvm-cpu", cpu: str = "host", flags: str = "", **tosa: Any) -> None:
        check_flags(flags)
        spec = tosa.pop("spec", "TOSA-1.0+FP+INT")
        if DEVICE not in TosaSpec.parse(spec).devices:
            spec = f"{spec}+{DEVICE}"
        own = {"iree_target": target, "iree_cpu": cpu, "iree_flags": flags}
        inner = delegraph.get_partitioner("tosa", spec=spec, **tosa)
        super().__init__(inner, "IREEBackend", [CompileSpec(key, text.encode()) for key, text in own.items()])


def check_flags(flags: str) -> None:
    """Raise OptionError for flags that a shell would not take apart, such as those with a quote that nothing closes."""
    try:
        shlex.split(flags)
    except ValueError as error:
        raise OptionError("option-invalid", f"option 'flags' of iree is {flags!r:.80}: {error}") from error
