"""What tells that a program was exported in training mode: torch keeps no mark of it but arguments of some calls."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import Node

from ..source import source_of
from .call_names import operator_name
from .subgraphs import all_nodes

_MODES = ("train", "training", "use_input_stats", "dropout_p")
"""What torch calls the argument that a module in training mode sets: to True, or to a chance above 0."""


def training_note(program: ExportedProgram) -> str | None:
    """Which calls of a program behave as in training, and what to do; None if there are none."""
    calls = [n for n in all_nodes(program.graph_module) if _is_in_training(n)]
    if not calls:
        return None
    counted = Counter(operator_name(node) for node in calls)
    source = source_of(calls[0])
    where = f" (first at {source.place})" if source else ""
    listed = ", ".join(f"{count} x {name}" for name, count in counted.items())
    text = f"exported in training mode{where}: {listed} drop values at random, or normalize by the statistics of their"
    return f"{text} batch; call model.eval() before torch.export.export, unless that is what you want"


def _is_in_training(node: Node) -> bool:
    if not isinstance(node.target, OpOverload):
        return False
    positions = _positions(node.target)
    given = {name: _given(node, name, k) for name, k in positions.items()}
    if not any(given.get(name) for name in _MODES):
        return False
    # A norm without running statistics computes with those of the batch in evaluation, too, and an LSTM without dropout
    # is the same in both modes.
    by_batch = "running_mean" in given and given["running_mean"] is None
    return not by_batch and given.get("dropout", given.get("p")) != 0


def _given(node: Node, name: str, position: int) -> Any:
    return node.args[position] if position < len(node.args) else node.kwargs.get(name)


@cache
def _positions(op: OpOverload) -> dict[str, int]:
    """Position of each argument that says something of training, for operators that have a mode."""
    names = [a.name for a in op._schema.arguments]
    wanted = (*_MODES, "running_mean", "dropout", "p")
    return {n: k for k, n in enumerate(names) if n in wanted} if any(mode in names for mode in _MODES) else {}
