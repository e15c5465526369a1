"""From a graph to its text form (see ``ir.text``)."""

from __future__ import annotations

import base64
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from delegraph.io.escape import printable

from ..evaluate.constant_elements import stored_elements
from ..ir.graph import Graph, Operator, Value
from ..ir.types import FLOATS, stored_types
from .literals import text_of

_BARE = re.compile(r"(?![0-9]+$)[A-Za-z0-9_.$/\-]+")
_IMPLIED = ("ResultDType", "ResultTypes")


LONGEST_NAME = 64
"""Characters, escapes counted, of a name that an elided text shows.

A value with a longer one is numbered.
"""
LONGEST_TEXT = 200
"""Characters of an attribute or location that an elided text shows."""
LONGEST_LINE = 2000
"""Characters of an operator's line in an elided text."""


def render(graph: Graph, *, elide: int | None = None) -> str:
    """Return the graph as text, which can be parsed back.

    With ``elide`` a shorter one, which cannot. Then constants of more than ``elide``
    elements are left out (``...``), and not even computed, and long names, attributes
    and lines are cut: a file may refer to one long text any number of times.
    """
    graphs = graph.reachable()
    names = _graph_names(graphs, elide is not None)
    return "\n".join(_Printer(g, names, elide).text() for g in graphs)


def _graph_names(graphs: list[Graph], elided: bool) -> dict[Graph, str]:
    names: dict[Graph, str] = {}
    for number, graph in enumerate(graphs):
        free = (
            graph.name
            and graph.name not in names.values()
            and not (elided and _is_long(graph.name))
        )
        names[graph] = graph.name if free else f"graph_{number}"
    return names


class _Printer:
    """One graph. Values are numbered when they are first met."""

    def __init__(
        self, graph: Graph, graphs: dict[Graph, str], elide: int | None
    ) -> None:
        self.graph = graph
        self.graphs = graphs
        self.elide = elide
        self.given = Counter(v.name for v in dict.fromkeys(_values(graph)) if v.name)
        self.printed: dict[Value, str] = {}
        self.numbered = 0

    def text(self) -> str:
        inputs = ", ".join(map(self.declaration, self.graph.inputs))
        lines = [f"graph @{_quoted(self.graphs[self.graph])}({inputs}) {{"]
        lines += [
            f"  {self.declaration(v)} = const {self.elements(v)}"
            for v in self.graph.constants()
        ]
        lines += [
            f"  {self.cut(self.operator(op), LONGEST_LINE)}"
            for op in self.graph.operators
        ]
        lines.append(
            f"  return {', '.join(map(self.name, self.graph.outputs))}".rstrip()
        )
        return "\n".join([*lines, "}\n"])

    def name(self, value: Value) -> str:
        if value not in self.printed:
            self.printed[value] = f"%{self._name(value)}"
        return self.printed[value]

    def _name(self, value: Value) -> str:
        if (
            value.name
            and self.given[value.name] == 1
            and not (self.elide is not None and _is_long(value.name))
        ):
            return _quoted(value.name)
        self.numbered += 1
        return str(self.numbered - 1)

    def cut(self, text: str, longest: int) -> str:
        return (
            text
            if self.elide is None or len(text) <= longest
            else f"{text[:longest]}..."
        )

    def declaration(self, value: Value) -> str:
        return f"{self.name(value)}: {value.type.written}"

    def elements(self, value: Value) -> str:
        if self.elide is not None and math.prod(value.shape) > self.elide:
            return "..."
        parts = zip(stored_elements(value), stored_types(value.type), strict=True)
        return " scales ".join(text_of(elements, type) for elements, type in parts)

    def operator(self, operator: Operator) -> str:
        operands = ", ".join(map(self.name, operator.inputs))
        results = ", ".join(map(self.declaration, operator.outputs))
        attributes = ", ".join(self.attributes(operator))
        source = self.location(str(operator.source)) if operator.source else ""
        return "".join(
            [
                f"{results} = " if results else "",
                f"{operator.name}({operands})",
                f" {{{attributes}}}" if attributes else "",
                f"  // {source}" if source else "",
            ]
        )

    def location(self, source: str) -> str:
        shown = " ".join(self.cut(source, LONGEST_TEXT).split())
        return shown if self.elide is None else self.cut(printable(shown), LONGEST_TEXT)

    def attributes(self, operator: Operator) -> Iterator[str]:
        for name, kind in operator.attributes.items():
            if kind not in _IMPLIED:
                yield (
                    f"{name}={self.attribute(getattr(operator, name), kind, operator)}"
                )

    def attribute(self, value: Any, kind: str, operator: Operator) -> str:
        if kind == "Number":
            return repr(float(value) if operator.inputs[0].dtype in FLOATS else value)
        if kind == "Graph":
            return f"@{_quoted(self.graphs[value])}"
        if kind == "Ints":
            return f"[{', '.join(map(str, value))}]"
        if kind == "str":
            return json.dumps(self.cut(value, LONGEST_TEXT))
        if kind == "bytes":
            kept = value if self.elide is None else value[:LONGEST_TEXT]
            return json.dumps(self.cut(base64.b64encode(kept).decode(), LONGEST_TEXT))
        return str(value).lower() if kind == "bool" else str(value)


def _values(graph: Graph) -> Iterator[Value]:
    yield from graph.inputs
    for operator in graph.operators:
        yield from operator.inputs
        yield from operator.outputs
    yield from graph.outputs


def _quoted(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name)


def _is_long(name: str) -> bool:
    return len(name) > LONGEST_NAME or len(_quoted(name)) > LONGEST_NAME
