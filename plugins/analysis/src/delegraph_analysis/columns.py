"""Write figures of operators for Model Explorer, which shows a file as a column.

The form is that of ``model_explorer.node_data_builder``: graph -> node -> value. The
viewer accepts columns of numbers and of texts, although its schema in Python has only
numbers.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import delegraph
from delegraph import LoweredProgram
from delegraph.errors import InputError
from delegraph.formats import defines
from delegraph.host import FileFormat, Verification
from delegraph.io.atomic_write import write_whole
from delegraph.report import (
    NOT_TAGGED,
    DelegateRow,
    LoweringResult,
    Report,
    ReportFormat,
    format_seconds,
    format_size,
    host_calls,
    refused_by,
)
from delegraph.runtime import Border, fused
from delegraph_programs import is_operator, source_of
from delegraph_programs.call_names import EXPORTED
from torch.fx import Node

from .accuracy.operators import (
    OperatorStatistics,
    OperatorVerification,
    operators_of,
    severity,
)
from .page.heat import degree
from .profiling import ProgramProfile

PROGRAM = "graph"
"""Model Explorer's name for the graph of a ``.pt2`` file. Nodes keep their names."""
_HEATS = ("#d5efd5", "#fee08b", "#f5a524", "#d73027")
"""Colors by `degree`, relative to the tolerance.

A gradient from the least to the largest error would show rounding as a fault.
"""
_REFUSED = "#f4a6a0"
_TONES = ("#9fb8ff", "#8fdcb9", "#f3a6e2", "#d6d190", "#c4a68a")
"""Colors of backends, which Model Explorer shows on light paper."""

NodeOf = Callable[[Any], tuple[str, str]]
"""Maps a debug identifier of a delegate to (graph, node) in the delegate's file."""


@dataclass(frozen=True)
class NodeData:
    """A column of numbers or of texts.

    ``values``: graph -> node -> value; ``colors``: value -> color. ``gradient``: colors
    from the least number to the greatest, for numbers without a color of their own.
    """

    name: str
    values: Mapping[str, Mapping[str, float | str]]
    gradient: Sequence[str] = ()
    colors: Mapping[float | str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file.

        JSON lacks infinity and NaN, so the largest float replaces them. A text among
        numbers would turn all of them into texts, which the viewer can neither sort nor
        sum.
        """
        return {graph: self._graph(values) for graph, values in self.values.items()}

    def _graph(self, values: Mapping[str, float | str]) -> dict[str, Any]:
        content: dict[str, Any] = {
            "name": self.name,
            "results": {node: self._value(v) for node, v in values.items()},
        }
        if self.gradient:
            last = len(self.gradient) - 1
            content["gradient"] = [
                {"stop": k / last, "bgColor": color}
                for k, color in enumerate(self.gradient)
            ]
        return content

    def _value(self, value: float | str) -> dict[str, Any]:
        shown = value
        if isinstance(value, float) and not math.isfinite(value):
            shown = sys.float_info.max
        color = self.colors.get(value)
        return {"value": shown, "bgColor": color} if color else {"value": shown}


class NodeDataReport(ReportFormat):
    """``.nodes.json``: a file for each column, ``NAME.delegate.json``.

    With several methods, the name of the method comes before the name of the column. If
    the program was saved as the file of one delegate, its nodes have the figures, too.
    """

    @classmethod
    def write(cls, result: LoweringResult, path: Path) -> list[Path]:
        report = result.report
        assert report is not None
        written = []
        for method in report.host:
            found = result.verifications.get(method)
            figures = operators_of(found) if found is not None else None
            profile = result.profiles.get(method)
            node_of = _node_of(result.output)
            prefix = path.name.removesuffix(".nodes.json")
            if len(report.host) > 1:
                prefix += f".{method}"
            for column in node_data_of(report, method, figures, node_of, profile):
                place = path.with_name(f"{prefix}.{column.name}.json")
                text = json.dumps(column.to_json(), indent=2)
                write_whole(place, f"{text}\n".encode())
                written.append(place)
        return written


def _node_of(output: Path | None) -> NodeOf | None:
    """Return the format's names for the nodes of a saved program, if it has them."""
    if output is None:
        return None
    chosen = delegraph.default_registry().get_format(output)
    return chosen.node_of if defines(chosen, "node_of") else None


def node_data(
    lowered: LoweredProgram,
    method: str | None = None,
    verification: Verification | None = None,
    file: str | os.PathLike[str] | None = None,
    profile: ProgramProfile | None = None,
) -> list[NodeData]:
    """Return columns for Model Explorer: delegate, source, refusal, error, time.

    They belong to the exported program of a method. ``verification`` is the result of
    ``verify_operators``, ``profile`` that of ``profile_program``. With ``file``, the
    saved program, the columns also have figures for its nodes. Write each column's ``to_json()`` to
    a file of its own. Raises InputError if the report was released, OptionError if the
    file's format has no names for Model Explorer's nodes.
    """
    found = None if verification is None else operators_of(verification)
    node_of = None
    if file is not None:
        node_of = FileFormat(file, delegraph.default_registry()).node_of
    method = method or lowered.methods[0]
    return node_data_of(lowered.report, method, found, node_of, profile)


def node_data_of(
    report: Report,
    method: str,
    found: OperatorVerification | None = None,
    node_of: NodeOf | None = None,
    profile: ProgramProfile | None = None,
) -> list[NodeData]:
    """Return the columns of one method: place, line, reason of refusal, and error.

    With a ``profile``, the milliseconds of a call are a column. Figures that a backend
    reports, such as cycles, are columns, too. The figures of fused operators are at
    each of them as a whole, since shares are unknown. The nodes are those of the
    exported program. ``node_of`` adds those of the file of a method that is one
    delegate. Raises InputError for a report whose programs were released.
    """
    if method not in report.origin.programs:
        raise InputError(
            "input-invalid",
            f"the report has released the program of the method {method!r}",
            hint="take the node data before the report is released",
        )
    of_method = _MethodColumns(report, method, found, node_of)
    columns = of_method.columns()
    if profile is not None:
        times = of_method.times(profile)
        columns.append(NodeData("milliseconds", times, gradient=_HEATS))
    return columns


class _Place(NamedTuple):
    """An operator of the lowered program, and its delegate; None on the host."""

    row: DelegateRow | None
    node: Node


class _Figures(NamedTuple):
    """The backend's estimates (``amounts``) for a debug identifier of a delegate.

    ``handles``: the debug handles to which the identifier maps.
    """

    delegate: str
    identifier: Any
    amounts: Mapping[str, Any]
    handles: Iterable[int]


class _MethodColumns:
    """The operators of a method, and the nodes that show each of them."""

    def __init__(
        self,
        report: Report,
        method: str,
        found: OperatorVerification | None,
        node_of: NodeOf | None,
    ) -> None:
        self.origin = report.origin
        self.method = method
        self.notation = self.origin.notation(method)
        self.rows = {row.name: row for row in report.delegates if row.method == method}
        self.errors: dict[tuple[str, str], OperatorStatistics] = {}
        """(Place, node) -> the worst comparison of its values."""
        # the worst one is last, so it remains
        for row in sorted(found.operators if found else (), key=severity):
            self.errors[row.where, row.node] = row
        # Model Explorer does not show the graphs of branches; their names have dots
        delegates = [
            delegate
            for delegate in self.origin.delegates
            if delegate.method == method
            and delegate.name in self.rows
            and "." not in delegate.name
        ]
        self.places: list[_Place] = []
        self.figures: list[_Figures] = []
        for delegate in delegates:
            row_of_delegate = self.rows[delegate.name]
            self.places += [_Place(row_of_delegate, node) for node in delegate.nodes]
            for identifier, amounts in delegate.figures.items():
                handles = delegate.debug_handle_map.get(identifier, ())
                self.figures.append(
                    _Figures(delegate.name, identifier, amounts, handles)
                )
        for node in host_calls(self.origin.programs[method].graph.nodes):
            if is_operator(node):
                self.places.append(_Place(None, node))
        # a file has the nodes of one delegate
        self.node_of = node_of if len(delegates) == 1 else None
        self.files: dict[int, list[tuple[str, str]]] = {}
        """Debug handle -> (graph, node) of each node in the file that shows it."""
        if self.node_of is not None:
            for identifier, handles in delegates[0].debug_handle_map.items():
                for handle in handles:
                    self.files.setdefault(handle, []).append(self.node_of(identifier))

    def columns(self) -> list[NodeData]:
        """Return the columns of delegates, sources, refusals, errors and estimates."""
        columns = [self._delegates(), self._sources(), self._refusals()]
        if self.errors:
            columns.append(self._error_column())
        names = dict.fromkeys(
            itertools.chain(*(figures.amounts for figures in self.figures))
        )
        for name in names:
            columns.append(NodeData(name, self._amounts(name), gradient=_HEATS))
        return columns

    def _delegates(self) -> NodeData:
        """Return the column that tells where each operator runs: delegate or host."""
        backends = list(dict.fromkeys(row.backend for row in self.rows.values()))
        colors: dict[float | str, str] = {}
        for row in self.rows.values():
            tone = backends.index(row.backend) % len(_TONES)
            colors[_described(row)] = _TONES[tone]
        texts = self._texts(lambda place: _described(place.row))
        return NodeData("delegate", texts, colors=colors)

    def _sources(self) -> NodeData:
        return NodeData(
            "source", self._texts(lambda place: str(source_of(place.node) or ""))
        )

    def _refusals(self) -> NodeData:
        """Return the column of the reasons why operators are left to the host."""
        texts = self._texts(self._refusal)
        colors: dict[float | str, str] = {}
        for of_graph in texts.values():
            colors.update(dict.fromkeys(of_graph.values(), _REFUSED))
        return NodeData("refusal", texts, colors=colors)

    def _error_column(self) -> NodeData:
        colors: dict[float | str, str] = {
            _size(row): _HEATS[degree(row) - 1] for row in self.errors.values()
        }
        return NodeData("error", self._values(self._error, max), colors=colors)

    def times(self, profile: ProgramProfile) -> Mapping[str, Mapping[str, float | str]]:
        """Return graph -> node -> milliseconds.

        Each node of a fused part has the time of the whole part.
        """
        exported: dict[tuple[str, str], str] = {}
        for row, node in self.places:
            if EXPORTED in node.meta:
                where = "host" if row is None else row.name
                exported[where, node.name] = node.meta[EXPORTED]
        found: dict[str, dict[str, float | str]] = {PROGRAM: {}}
        for part in profile.parts:
            shown = set()
            for node_name in part.nodes:
                if (part.where, node_name) in exported:
                    shown.add((PROGRAM, exported[part.where, node_name]))
            if self.node_of is not None:
                for identifier in fused(part.identifier):
                    if not isinstance(identifier, Border):
                        shown.add(self.node_of(identifier))
            for graph, place in shown:
                of_graph: Any = found.setdefault(graph, {})
                of_graph[place] = round(of_graph.get(place, 0) + 1000 * part.seconds, 6)
        return found

    def _amounts(self, name: str) -> Mapping[str, Mapping[str, float | str]]:
        """Return the backend's estimates of one kind: graph -> node -> amount.

        Each node of a fusion has the estimate of the whole fusion.
        """
        found: dict[str, dict[str, float | str]] = {PROGRAM: {}}
        # (delegate, debug handle) -> nodes of the exported program, without repetition
        nodes: dict[tuple[str, int], dict[str, None]] = {}
        for row, node in self.places:
            if row is not None and EXPORTED in node.meta:
                key = row.name, node.meta.get("debug_handle", -1)
                nodes.setdefault(key, {})[node.meta[EXPORTED]] = None
        for figures in self.figures:
            if name not in figures.amounts:
                continue
            shown = set()
            for handle in figures.handles:
                for exported in nodes.get((figures.delegate, handle), ()):
                    shown.add((PROGRAM, exported))
            if self.node_of is not None:
                shown.add(self.node_of(figures.identifier))
            for graph, place in shown:
                of_graph: Any = found.setdefault(graph, {})
                of_graph[place] = of_graph.get(place, 0) + figures.amounts[name]
        return found

    def _texts(
        self, text_of: Callable[[_Place], str]
    ) -> Mapping[str, Mapping[str, float | str]]:
        """Return the texts of nodes; a node of several operators has each text once."""
        return self._values(
            lambda place: text_of(place) or None,
            lambda texts: "; ".join(dict.fromkeys(texts)),
        )

    def _values(
        self,
        value_of: Callable[[_Place], Any],
        combine: Callable[[list[Any]], float | str],
    ) -> Mapping[str, Mapping[str, float | str]]:
        """Return graph -> node -> the combined values of its operators."""
        values: dict[str, dict[str, list[Any]]] = {PROGRAM: {}}
        for place in self.places:
            value = value_of(place)
            if value is None:
                continue
            for graph, node in self._shown(place.node):
                values.setdefault(graph, {}).setdefault(node, []).append(value)
        return {
            graph: {node: combine(listed) for node, listed in of_graph.items()}
            for graph, of_graph in values.items()
        }

    def _shown(self, node: Node) -> Iterable[tuple[str, str]]:
        """Return the graph and the node of each place that shows an operator."""
        shown = list(self.files.get(node.meta.get("debug_handle", -1), ()))
        exported = node.meta.get(EXPORTED)
        if exported:
            shown.insert(0, (PROGRAM, exported))
        return shown

    def _refusal(self, place: _Place) -> str:
        """Return why an operator is on the host; "" if it is in a delegate."""
        if place.row is not None:
            return ""
        reasons = self.origin.reasons.get(self.method, {})
        texts = [
            f"{backend}: {self.notation.text(reason)}"
            for backend, reason in refused_by(place.node, reasons, self.origin.backends)
            if reason != NOT_TAGGED
        ]
        return "; ".join(texts)

    def _error(self, place: _Place) -> float | None:
        """Return the relative error of an operator; None if it was not compared."""
        where = "host" if place.row is None else place.row.name
        row = self.errors.get((where, place.node.name))
        return None if row is None else _size(row)


def _size(row: OperatorStatistics) -> float:
    """Return the relative error; infinite if some elements are not finite."""
    return math.inf if row.figures.mismatched else row.figures.relative_error


def _described(row: DelegateRow | None) -> str:
    """Return the text of a place: ``host``, or a delegate with its size and facts."""
    if row is None:
        return "host"
    facts = [format_size(row.bytes)]
    if "compile" in row.seconds:
        facts.append(f"compiled in {format_seconds(row.seconds['compile'])}")
    facts += [f"{name} {value}" for name, value in row.facts.items()]
    return f"{row.name} of {row.backend}: {', '.join(facts)}"
