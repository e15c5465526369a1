"""A graph as one HTML page that needs no other file and no network. Every text of the file is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..ir.graph import Graph, Operator, Value

WIDTH, HEIGHT, ACROSS, DOWN = 210, 38, 230, 76
"""Size of a box and distance between boxes, in pixels."""
LONGEST = 30
"""Characters of a line in a box; the rest is in its tooltip."""

_HEAD = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
body {{ font: 14px sans-serif; margin: 1.5em; color: #222; }}
td, th {{ text-align: left; padding: 0 1.5em 0 0; }}
svg {{ font: 11px sans-serif; }}
rect {{ fill: #eef3fa; stroke: #4a6fa5; }}
.boundary rect {{ fill: #fdf3e0; stroke: #b07a1a; }}
path {{ fill: none; stroke: #888; }}
</style></head><body>
"""


class _Box(NamedTuple):
    """One rectangle: its title, the line below it, its tooltip, and its place."""

    title: str
    detail: str
    tooltip: str
    column: int
    layer: int
    boundary: bool = False


def page(graph: Graph, title: str, facts: Iterable[tuple[str, str]]) -> str:
    """The page of a graph and the graphs of its control flow; ``facts`` become a table at its head."""
    rows = "".join(f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>\n" for name, value in facts)
    parts = [_HEAD.format(title=_text(title)), f"<h1>{_text(title)}</h1>\n<table>\n{rows}</table>\n"]
    for body in graph.reachable():
        parts.append(f"<h2>graph {_text(body.name)}</h2>\n")
        parts.extend(_drawing(body))
    return "".join([*parts, "</body></html>\n"])


def _text(text: object) -> str:
    """Escaped, with control characters, which HTML does not have, as question marks."""
    return html.escape("".join(c if c.isprintable() else "?" for c in str(text)))


def _drawing(graph: Graph) -> Iterator[str]:
    boxes, edges = _placed(graph)
    width = (max((b.column for b in boxes), default=0) + 1) * ACROSS
    height = (max((b.layer for b in boxes), default=0) + 1) * DOWN
    yield f'<svg width="{width}" height="{height}" role="img">\n'
    for start, end in edges:
        x1, y1 = boxes[start].column * ACROSS + WIDTH // 2, boxes[start].layer * DOWN + HEIGHT
        x2, y2 = boxes[end].column * ACROSS + WIDTH // 2, boxes[end].layer * DOWN
        yield f'<path d="M{x1} {y1} C{x1} {y1 + 20} {x2} {y2 - 20} {x2} {y2}"/>\n'
    yield from map(_drawn, boxes)
    yield "</svg>\n"


def _drawn(box: _Box) -> str:
    x, y = box.column * ACROSS, box.layer * DOWN
    kind = ' class="boundary"' if box.boundary else ""
    lines = f'<text x="{x + 6}" y="{y + 15}">{_text(_short(box.title))}</text>'
    lines += f'<text x="{x + 6}" y="{y + 31}">{_text(_short(box.detail))}</text>'
    area = f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="4"/>'
    return f"<g{kind}><title>{_text(box.tooltip)}</title>{area}{lines}</g>\n"


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _placed(graph: Graph) -> tuple[list[_Box], list[tuple[int, int]]]:
    """Boxes of inputs, operators and outputs, each below what it uses, and edges by the boxes' numbers."""
    boxes: list[_Box] = []
    edges: list[tuple[int, int]] = []
    columns: dict[int, int] = {}
    source: dict[Value, int] = {}

    def place(title: str, detail: str, tooltip: str, uses: Iterable[Value], boundary: bool = False) -> int:
        above = [source[v] for v in dict.fromkeys(uses) if v in source]
        layer = max((boxes[i].layer + 1 for i in above), default=0)
        columns[layer] = columns.get(layer, -1) + 1
        boxes.append(_Box(title, detail, tooltip, columns[layer], layer, boundary))
        edges.extend((i, len(boxes) - 1) for i in above)
        return len(boxes) - 1

    for value in graph.inputs:
        source[value] = place(f"input {value.name}", str(value.type), repr(value), (), boundary=True)
    for operator in graph.operators:
        number = place(operator.name, _results(operator), _tooltip(operator), operator.inputs)
        source.update(dict.fromkeys(operator.outputs, number))
    for value in graph.outputs:
        place(f"output {value.name}", str(value.type), repr(value), (value,), boundary=True)
    return boxes, edges


def _results(operator: Operator) -> str:
    return ", ".join(str(v.type) for v in operator.outputs)


def _tooltip(operator: Operator) -> str:
    attributes = [
        f"{name}={value.name if isinstance(value, Graph) else value}"
        for name, value in operator.attribute_values().items()
    ]
    parts = [f"{operator.name}({', '.join(map(repr, operator.inputs))})", *attributes]
    return "; ".join([*parts, f"at {operator.source}"] if operator.source else parts)
