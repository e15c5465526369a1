"""Makes each output of a graph a separate value with its own name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..ir.graph import Graph, Operator, Value
from ..ir.operators import IDENTITY
from ..spec import TosaSpec
from .rewriter import Rewrite, with_operands


def separate_outputs(graph: Graph, spec: TosaSpec, sources: Iterable[Any]) -> Graph:
    """Copy outputs that are inputs, constants or repeated, by IDENTITY.

    A file cannot name a value twice. ``sources`` become the sources of the copies: one
    for each output, from before the passes, which may have removed its operator. If the
    target lacks IDENTITY for a type, the output is not copied.

    before: results x, y, y, where x is an input
    after:  results IDENTITY x, y, IDENTITY y.
    """
    taken = set(graph.inputs)
    outputs: list[Value] = []
    copies: list[Operator] = []
    for value, source in zip(graph.outputs, sources, strict=True):
        output = value
        if value in taken or value.constant is not None:
            copy = IDENTITY((value,), source)
            copy.outputs = (Value(value.type, producer=copy),)
            if spec.why_not(copy) is None:
                copies.append(copy)
                output = copy.outputs[0]
        taken.add(output)
        outputs.append(output)
    return Graph(graph.inputs, outputs, [*graph.operators, *copies], graph.name)


def name_outputs(graph: Graph, names: Iterable[str]) -> Graph:
    """Return a copy of ``graph`` whose outputs have ``names``.

    No value may be an output twice. An output with an empty name keeps its name.
    """
    new_names = {
        value: name
        for value, name in zip(graph.outputs, names, strict=True)
        if name not in ("", value.name)
    }
    rewrite = Rewrite()
    for operator in graph.operators:
        new = rewrite.with_new_operands(operator)
        if not new_names.keys().isdisjoint(operator.outputs):
            new = with_operands(new, new.inputs)  # a copy, whose values get names
            for before, value in zip(operator.outputs, new.outputs, strict=True):
                value.name = new_names.get(before, before.name)
        rewrite.put(operator, new)
    return rewrite.graph(graph)
