"""Writes the text form of a graph (see the package)."""

from __future__ import annotations

import base64
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from delegraph.io.escape_for_terminal import printable

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

    With ``elide``, the text is shorter, and cannot be parsed back. Constants of more
    than ``elide`` elements are left out (``...``), and not even computed. Long names,
    attributes and lines are cut: a file may refer to one long text any number of times.
    """
    graphs = graph.reachable()
    names = _graph_names(graphs, elide is not None)
    return "\n".join([_Printer(body, names, elide).text() for body in graphs])


def _graph_names(graphs: list[Graph], elided: bool) -> dict[Graph, str]:
    """Return a name of each graph, numbered if its own is long or taken."""
    names: dict[Graph, str] = {}
    taken: set[str] = set()
    for number, graph in enumerate(graphs):
        name = graph.name
        if not name or name in taken or (elided and _is_long(name)):
            name = f"graph_{number}"
        names[graph] = name
        taken.add(name)
    return names


class _Printer:
    """Prints one graph. Values without a unique name are numbered at first use."""

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
        """Return the text of the graph."""
        inputs = ", ".join(map(self.declaration, self.graph.inputs))
        lines = [f"graph @{_quoted(self.graphs[self.graph])}({inputs}) {{"]
        for value in self.graph.constants():
            lines.append(f"  {self.declaration(value)} = const {self.elements(value)}")
        for operator in self.graph.operators:
            lines.append(f"  {self.cut(self.operator(operator), LONGEST_LINE)}")
        outputs = ", ".join(map(self.name, self.graph.outputs))
        lines.append(f"  return {outputs}".rstrip())
        lines.append("}\n")
        return "\n".join(lines)

    def name(self, value: Value) -> str:
        """Return the printed name of a value, the same at each use."""
        if value not in self.printed:
            self.printed[value] = f"%{self._new_name(value)}"
        return self.printed[value]

    def _new_name(self, value: Value) -> str:
        """Return the value's own name, or the next number if it is long or shared."""
        is_unique = self.given[value.name] == 1
        is_cut = self.elide is not None and _is_long(value.name)
        if value.name and is_unique and not is_cut:
            return _quoted(value.name)
        number = self.numbered
        self.numbered += 1
        return str(number)

    def cut(self, text: str, longest: int) -> str:
        """Return ``text``, shortened if the text is elided."""
        if self.elide is None or len(text) <= longest:
            return text
        return f"{text[:longest]}..."

    def declaration(self, value: Value) -> str:
        """Return the name and the type of a value."""
        return f"{self.name(value)}: {value.type.written}"

    def elements(self, value: Value) -> str:
        """Return the elements of a constant."""
        if self.elide is not None and math.prod(value.shape) > self.elide:
            return "..."
        parts = zip(stored_elements(value), stored_types(value.type), strict=True)
        return " scales ".join(text_of(elements, type) for elements, type in parts)

    def operator(self, operator: Operator) -> str:
        """Return the line of an operator."""
        operands = ", ".join(map(self.name, operator.inputs))
        results = ", ".join(map(self.declaration, operator.outputs))
        attributes = ", ".join(self.attributes(operator))
        text = f"{operator.name}({operands})"
        if results:
            text = f"{results} = {text}"
        if attributes:
            text += f" {{{attributes}}}"
        source = self.location(str(operator.source)) if operator.source else ""
        if source:
            text += f"  // {source}"
        return text

    def location(self, source: str) -> str:
        """Return a source in one line."""
        shown = " ".join(self.cut(source, LONGEST_TEXT).split())
        if self.elide is None:
            return shown
        return self.cut(printable(shown), LONGEST_TEXT)

    def attributes(self, operator: Operator) -> Iterator[str]:
        """Yield the attributes that the result types do not determine."""
        for name, kind in operator.attributes.items():
            if kind not in _IMPLIED:
                value = getattr(operator, name)
                yield f"{name}={self.attribute(value, kind, operator)}"

    def attribute(self, value: Any, kind: str, operator: Operator) -> str:
        """Return the text of an attribute of ``operator``, by its kind."""
        if kind == "Number":
            is_float = operator.inputs[0].dtype in FLOATS
            return repr(float(value) if is_float else value)
        if kind == "Graph":
            return f"@{_quoted(self.graphs[value])}"
        if kind == "Ints":
            return f"[{', '.join(map(str, value))}]"
        if kind == "str":
            return json.dumps(self.cut(value, LONGEST_TEXT))
        if kind == "bytes":
            kept = value if self.elide is None else value[:LONGEST_TEXT]
            encoded = base64.b64encode(kept).decode()
            return json.dumps(self.cut(encoded, LONGEST_TEXT))
        if kind == "bool":
            return str(value).lower()
        return str(value)


def _values(graph: Graph) -> Iterator[Value]:
    """Yield all values of the graph, with repetitions."""
    yield from graph.inputs
    for operator in graph.operators:
        yield from operator.inputs
        yield from operator.outputs
    yield from graph.outputs


def _quoted(name: str) -> str:
    """Return a name, in quotes unless it has only plain characters."""
    return name if _BARE.fullmatch(name) else json.dumps(name)


def _is_long(name: str) -> bool:
    return len(name) > LONGEST_NAME or len(_quoted(name)) > LONGEST_NAME
