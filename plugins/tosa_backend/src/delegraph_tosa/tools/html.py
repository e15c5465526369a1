"""A graph as one HTML page that needs no other file and no network.

Every text of the file is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable

from delegraph_analysis.drawing import Box, Picture, Wire, figure, head, text

from ..ir.graph import Graph, Operator, Value

_MOST_OPERANDS = 20
"""The most operands in the tooltip of an operator."""
_MOST_CHARACTERS = 200
"""The most characters of a text in a tooltip."""


def page(graph: Graph, title: str, facts: Iterable[tuple[str, str]]) -> str:
    """Return the page of a graph and the graphs of its control flow.

    ``facts`` are the rows (name, value) of a table at its head.
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
    # value -> index of the box that computes it
    sources: dict[Value, int] = {}
    # value -> indices of the boxes that use it, each once
    uses: dict[Value, dict[int, None]] = {}

    def add(box: Box, operands: Iterable[Value], results: Iterable[Value]) -> None:
        """Add a box that uses ``operands`` and computes ``results``."""
        number = len(boxes)
        boxes.append(box)
        for value in operands:
            if value in sources:
                uses.setdefault(value, {})[number] = None
        sources.update(dict.fromkeys(results, number))

    for value in graph.inputs:
        add(_border("input", value), operands=(), results=(value,))
    for operator in graph.operators:
        label = (operator.name, _results(operator))
        box = Box(label, _tooltip(operator), "backend")
        add(box, operator.inputs, operator.outputs)
    for value in graph.outputs:
        add(_border("output", value), operands=(value,), results=())
    wires = [
        Wire(sources[value], tuple(users), repr(value)) for value, users in uses.items()
    ]
    return Picture(boxes, wires)


def _border(kind: str, value: Value) -> Box:
    """Return the box of a value; ``kind`` is ``input`` or ``output``."""
    label = (f"{kind} {value.name}", str(value.type))
    return Box(label, (repr(value),), "border", owner=kind)


def _results(operator: Operator) -> str:
    """Return the types of the results."""
    return ", ".join([str(value.type) for value in operator.outputs])


def _tooltip(operator: Operator) -> tuple[str, ...]:
    """Return the operands, the attributes and the source of an operator.

    Each text is shortened here, because many operators may share a long one.
    """
    operands = [repr(value) for value in operator.inputs[:_MOST_OPERANDS]]
    if len(operator.inputs) > _MOST_OPERANDS:
        operands.append("...")
    parts = [f"{operator.name}({', '.join(operands)})"]
    for name, value in operator.attribute_values().items():
        shown = value.name if isinstance(value, Graph) else value
        if isinstance(shown, str | bytes):
            shown = shown[:_MOST_CHARACTERS]
        parts.append(f"{name}={shown!s}")
    if operator.source:
        parts.append(f"at {str(operator.source)[:_MOST_CHARACTERS]}")
    return tuple(parts)
