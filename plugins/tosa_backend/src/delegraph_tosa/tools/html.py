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
    parts = [head(title), f"<body>\n<h1>{text(title)}</h1>\n<table>\n"]
    for name, value in facts:
        parts.append(f"<tr><th>{text(name)}</th><td>{text(value)}</td></tr>\n")
    parts.append("</table>\n")
    for body in graph.reachable():
        parts.append(f"<h2>graph {text(body.name)}</h2>\n")
        parts.append(figure(_picture(body), f"graph {body.name}"))
    parts.append("</body></html>\n")
    return "".join(parts)


def _picture(graph: Graph) -> Picture:
    """Return boxes of inputs, operators and outputs.

    Constants are in the tooltips of their users.
    """
    boxes: list[Box] = []
    sources: dict[Value, int] = {}
    uses: dict[Value, dict[int, None]] = {}

    def place(box: Box, operands: Iterable[Value], results: Iterable[Value]) -> None:
        """Add a box that uses ``operands`` and computes ``results``."""
        number = len(boxes)
        boxes.append(box)
        for value in operands:
            if value in sources:
                uses.setdefault(value, {})[number] = None
        sources.update(dict.fromkeys(results, number))

    for value in graph.inputs:
        place(_border("input", value), operands=(), results=(value,))
    for operator in graph.operators:
        label = (operator.name, _results(operator))
        box = Box(label, _tooltip(operator), "backend")
        place(box, operator.inputs, operator.outputs)
    for value in graph.outputs:
        place(_border("output", value), operands=(value,), results=())
    wires = [
        Wire(sources[value], tuple(users), repr(value)) for value, users in uses.items()
    ]
    return Picture(boxes, wires)


def _border(kind: str, value: Value) -> Box:
    """Return the box of an input or output; ``kind`` says which."""
    label = (f"{kind} {value.name}", str(value.type))
    return Box(label, (repr(value),), "border", owner=kind)


def _results(operator: Operator) -> str:
    """Return the types of the results."""
    return ", ".join([str(value.type) for value in operator.outputs])


def _tooltip(operator: Operator) -> tuple[str, ...]:
    """Return the operands, the attributes and the source of an operator.

    Each text is shortened here, because many operators may share a long one.
    """
    operands = [repr(value) for value in operator.inputs[:_OPERANDS]]
    if len(operator.inputs) > _OPERANDS:
        operands.append("...")
    parts = [f"{operator.name}({', '.join(operands)})"]
    for name, value in operator.attribute_values().items():
        held = value.name if isinstance(value, Graph) else value
        if isinstance(held, str | bytes):
            held = held[:_CHARACTERS]
        parts.append(f"{name}={held!s}")
    if operator.source:
        parts.append(f"at {str(operator.source)[:_CHARACTERS]}")
    return tuple(parts)
