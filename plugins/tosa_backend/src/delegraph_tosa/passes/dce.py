"""Removes dead code: operators with unused results."""

from __future__ import annotations

from ..ir.graph import Graph
from ..ir.operators import (
    COND_IF,
    CUSTOM,
    VARIABLE,
    VARIABLE_READ,
    VARIABLE_WRITE,
    WHILE_LOOP,
)
from ..spec import TosaSpec

EFFECTS = frozenset({COND_IF, CUSTOM, VARIABLE, VARIABLE_WRITE, WHILE_LOOP})
"""Operators that may do more than compute their results. They are always kept."""

STATEFUL = EFFECTS | {VARIABLE_READ}
"""Operators with effects, and those that depend on such effects."""


def drop_dead(graph: Graph, spec: TosaSpec) -> Graph:
    """Remove operators with unused results, except operators with an effect.

    before: a = EXP x, b = TANH x; result b
    after:  b = TANH x; result b.
    """
    live = set(graph.outputs)
    kept = []
    for operator in reversed(graph.operators):
        if type(operator) in EFFECTS or not live.isdisjoint(operator.outputs):
            live.update(operator.inputs)
            kept.append(operator)
    return Graph(graph.inputs, graph.outputs, reversed(kept), graph.name)
