"""Outputs of a file: each is a value of its own, and has its name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..ir.graph import Graph, Value
from ..ir.operators import IDENTITY
from ..spec import TosaSpec
from .rewriter import Rewrite, replaced


def separate_outputs(graph: Graph, spec: TosaSpec, sources: Iterable[Any]) -> Graph:
    """Give each output a value that an operator computes for it alone: a file names outputs, and cannot name one twice.

    ``sources`` are the outputs' own: what came before the passes may have cancelled out.

    before: results x, y, y, where x is an input
    after:  results IDENTITY x, y, IDENTITY y
    """
    taken, outputs, copies = set(graph.inputs), [], []
    for value, source in zip(graph.outputs, sources, strict=True):
        if value in taken or value.constant is not None:
            copy = IDENTITY((value,), source)
            copy.outputs = (Value(value.type, producer=copy),)
            if spec.why_not(copy) is None:
                copies.append(copy)
                value = copy.outputs[0]
        taken.add(value)
        outputs.append(value)
    return Graph(graph.inputs, outputs, [*graph.operators, *copies], graph.name)


def name_outputs(graph: Graph, names: Iterable[str]) -> Graph:
    """The graph with these names of its outputs, which are values of their own; an empty name asks for none."""
    wanted = {v: name for v, name in zip(graph.outputs, names, strict=True) if name not in ("", v.name)}
    rewrite = Rewrite()
    for operator in graph.operators:
        new = rewrite.renewed(operator)
        if not wanted.keys().isdisjoint(operator.outputs):
            new = replaced(new, new.inputs)
            for before, value in zip(operator.outputs, new.outputs, strict=True):
                value.name = wanted.get(before, before.name)
        rewrite.put(operator, new)
    return rewrite.graph(graph)
