"""A graph as one HTML page that needs no other file and no network.

Every text of the file is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable

from delegraph_analysis.drawing import Box, Picture, Wire, figure, head, text

from ..ir.graph import Graph, Operator, Value

_OPERANDS = 20
"""Operands that the tooltip of an operator names."""
_CHARACTERS = 200
"""Of a text in a tooltip."""


def page(graph: Graph, title: str, facts: Iterable[tuple[str, str]]) -> str:
    """Return the page of a graph and the graphs of its control flow.

    ``facts`` become a table at its head.
    """
    rows = "".join(
        f"<tr><th>{text(name)}</th><td>{text(value)}</td></tr>\n"
        for name, value in facts
    )
    parts = [head(title), f"<body>\n<h1>{text(title)}</h1>\n<table>\n{rows}</table>\n"]
    for body in graph.reachable():
        parts.append(
            "<h2>graph"
            f" {text(body.name)}</h2>\n{figure(_picture(body), f'graph {body.name}')}"
        )
    return "".join([*parts, "</body></html>\n"])


def _picture(graph: Graph) -> Picture:
    """Boxes of inputs, operators and outputs.

    Constants are in the tooltips of their users.
    """
    boxes: list[Box] = []
    source: dict[Value, int] = {}
    uses: dict[Value, dict[int, None]] = {}

    def place(box: Box, values: Iterable[Value]) -> int:
        for value in (v for v in values if v in source):
            uses.setdefault(value, {})[len(boxes)] = None
        boxes.append(box)
        return len(boxes) - 1

    for value in graph.inputs:
        source[value] = place(_border("input", value), ())
    for operator in graph.operators:
        box = Box((operator.name, _results(operator)), _tooltip(operator), "backend")
        source.update(dict.fromkeys(operator.outputs, place(box, operator.inputs)))
    for value in graph.outputs:
        place(_border("output", value), (value,))
    return Picture(
        boxes, [Wire(source[v], tuple(users), repr(v)) for v, users in uses.items()]
    )


def _border(kind: str, value: Value) -> Box:
    return Box(
        (f"{kind} {value.name}", str(value.type)), (repr(value),), "border", owner=kind
    )


def _results(operator: Operator) -> str:
    return ", ".join(str(v.type) for v in operator.outputs)


def _tooltip(operator: Operator) -> tuple[str, ...]:
    """Shorten each text here, because many operators may share a long one."""
    operands = ", ".join(
        [
            *map(repr, operator.inputs[:_OPERANDS]),
            *(["..."] if operator.inputs[_OPERANDS:] else []),
        ]
    )
    parts = [f"{operator.name}({operands})"]
    for name, value in operator.attribute_values().items():
        held = value.name if isinstance(value, Graph) else value
        shown = held[:_CHARACTERS] if isinstance(held, str | bytes) else held
        parts.append(f"{name}={shown!s}")
    return (
        (*parts, f"at {str(operator.source)[:_CHARACTERS]}")
        if operator.source
        else tuple(parts)
    )
