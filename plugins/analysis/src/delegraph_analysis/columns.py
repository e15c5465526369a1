"""Write figures of operators for Model Explorer, which shows a file as a column.

The form is that of ``model_explorer.node_data_builder``: graph -> node -> value. The
viewer accepts columns of numbers and of texts, although its schema in Python has only
numbers.
"""

from __future__ import annotations

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
from delegraph.host import Verification
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
"""Model Explorer's name for the graph of a ``.pt2`` file, which keeps the nodes' names.
"""
_HEATS = ("#d5efd5", "#fee08b", "#f5a524", "#d73027")
"""Colors by `degree`, relative to the tolerance.

A gradient from the least to the largest error would show rounding as a fault.
"""
_REFUSED = "#f4a6a0"
_TONES = ("#9fb8ff", "#8fdcb9", "#f3a6e2", "#d6d190", "#c4a68a")
"""Colors of backends, which Model Explorer shows on light paper."""

NodeOf = Callable[[Any], tuple[str, str]]
"""Debug identifier of an operator in a delegate's file -> its graph and node there."""


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
        stops = [
            {"stop": k / (len(self.gradient) - 1), "bgColor": c}
            for k, c in enumerate(self.gradient)
        ]
        found = {
            "name": self.name,
            "results": {node: self._value(v) for node, v in values.items()},
        }
        return {**found, "gradient": stops} if stops else found

    def _value(self, value: float | str) -> dict[str, Any]:
        shown = (
            sys.float_info.max
            if isinstance(value, float) and not math.isfinite(value)
            else value
        )
        color = self.colors.get(value)
        return {"value": shown, "bgColor": color} if color else {"value": shown}


class NodeDataReport(ReportFormat):
    """``.nodes.json``: a file for each column, ``NAME.delegate.json``.

    With several methods, the method's name is in front of the column's. If the program
    was saved as one delegate's own file, its nodes have the figures, too.
    """

    @classmethod
    def write(cls, result: LoweringResult, path: Path) -> list[Path]:
        report = result.report
        assert report is not None
        written = []
        for method in report.host:
            found = result.verifications.get(method)
            figures = operators_of(found) if found is not None else None
            timed = result.profiles.get(method)
            for column in node_data_of(
                report, method, figures, _node_of(result.output), timed
            ):
                parts = [
                    path.name[: -len(".nodes.json")],
                    *([method] if len(report.host) > 1 else []),
                    column.name,
                ]
                place = path.with_name(".".join([*parts, "json"]))
                write_whole(
                    place, f"{json.dumps(column.to_json(), indent=2)}\n".encode()
                )
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
    ``verify_operators``, ``profile`` that of ``profile_program``. If ``file`` is the
    saved program, its nodes have the figures, too. Write each column's ``to_json()`` to
    a file of its own. Raises InputError if the report was released, OptionError if the
    file's format has no names for Model Explorer's nodes.
    """
    found = None if verification is None else operators_of(verification)
    node_of = None if file is None else lowered.node_of(file)
    return node_data_of(
        lowered.report, method or lowered.methods[0], found, node_of, profile
    )


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
        text = f"the report has no program of the method {method!r} any more"
        raise InputError(
            "input-invalid",
            text,
            hint="take the node data before the report is released or pickled",
        )
    columns = _MethodColumns(report, method, found, node_of)
    times = (
        []
        if profile is None
        else [NodeData("milliseconds", columns.times(profile), gradient=_HEATS)]
    )
    return columns.columns() + times


class _Place(NamedTuple):
    """An operator of the lowered program, and the delegate that computes it, if any."""

    row: DelegateRow | None
    node: Node


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
        self.errors = {
            (o.where, o.node): o
            for o in sorted(found.operators if found else (), key=severity)
        }
        delegates = [
            d
            for d in self.origin.delegates
            if d.method == method and d.name in self.rows
        ]
        # Model Explorer does not show the graphs of branches
        own = [d for d in delegates if "." not in d.name]
        host = [
            n
            for n in host_calls(self.origin.programs[method].graph.nodes)
            if is_operator(n)
        ]
        self.places = [_Place(self.rows[d.name], n) for d in own for n in d.nodes] + [
            _Place(None, n) for n in host
        ]
        self.files: dict[int, list[tuple[str, str]]] = {}
        self.figures = [
            (d.name, identifier, amounts, d.debug_handle_map.get(identifier, ()))
            for d in own
            for identifier, amounts in d.figures.items()
        ]
        self.node_of = node_of if len(own) == 1 else None
        if node_of is not None and len(own) == 1:
            for identifier, handles in own[0].debug_handle_map.items():
                for handle in handles:
                    self.files.setdefault(handle, []).append(node_of(identifier))

    def columns(self) -> list[NodeData]:
        backends = list(dict.fromkeys(row.backend for row in self.rows.values()))
        tones: dict[float | str, str] = {
            _described(row): _TONES[backends.index(row.backend) % len(_TONES)]
            for row in self.rows.values()
        }
        refusals = self._texts(self._refusal)
        kept: dict[float | str, str] = {
            text: _REFUSED
            for of_graph in refusals.values()
            for text in of_graph.values()
        }
        columns = [
            NodeData(
                "delegate",
                self._texts(lambda place: _described(place.row)),
                colors=tones,
            ),
            NodeData(
                "source", self._texts(lambda place: str(source_of(place.node) or ""))
            ),
            NodeData("refusal", refusals, colors=kept),
        ]
        if self.errors:
            heats: dict[float | str, str] = {
                _size(o): _HEATS[degree(o) - 1] for o in self.errors.values()
            }
            columns.append(
                NodeData("error", self._values(self._error, max), colors=heats)
            )
        names = dict.fromkeys(name for amounts in self.figures for name in amounts[2])
        return columns + [
            NodeData(name, self._amounts(name), gradient=_HEATS) for name in names
        ]

    def times(self, profile: ProgramProfile) -> Mapping[str, Mapping[str, float | str]]:
        """Return the milliseconds of parts: graph -> node -> milliseconds."""
        shown_at: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for row, node in self.places:
            key = ("host" if row is None else row.name, node.name)
            shown_at[key] = (
                [(PROGRAM, node.meta[EXPORTED])] if EXPORTED in node.meta else []
            )
        found: dict[str, dict[str, float | str]] = {PROGRAM: {}}
        for part in profile.parts:
            at = {
                place
                for node in part.nodes
                for place in shown_at.get((part.where, node), ())
            }
            inside = [
                one for one in fused(part.identifier) if not isinstance(one, Border)
            ]
            at |= (
                {self.node_of(one) for one in inside}
                if self.node_of is not None
                else set()
            )
            for graph, place in at:
                of_graph: Any = found.setdefault(graph, {})
                of_graph[place] = round(of_graph.get(place, 0) + 1000 * part.seconds, 6)
        return found

    def _amounts(self, name: str) -> Mapping[str, Mapping[str, float | str]]:
        """Return the backend's estimates: graph -> node -> amount.

        The estimate of a fusion is on each of its nodes.
        """
        found: dict[str, dict[str, float | str]] = {PROGRAM: {}}
        nodes: dict[tuple[str, int], dict[str, None]] = {}
        for row, node in self.places:
            if row is not None and EXPORTED in node.meta:
                key = row.name, node.meta.get("debug_handle", -1)
                nodes.setdefault(key, {})[node.meta[EXPORTED]] = None
        for delegate, identifier, amounts, handles in self.figures:
            shown = {
                (PROGRAM, exported)
                for handle in handles
                for exported in nodes.get((delegate, handle), ())
            }
            shown |= {self.node_of(identifier)} if self.node_of is not None else set()
            for graph, place in shown if name in amounts else ():
                of_graph: Any = found.setdefault(graph, {})
                of_graph[place] = of_graph.get(place, 0) + amounts[name]
        return found

    def _texts(
        self, say: Callable[[_Place], str]
    ) -> Mapping[str, Mapping[str, float | str]]:
        """Return texts, each once for the operators that became one."""
        return self._values(
            lambda place: say(place) or None,
            lambda texts: "; ".join(dict.fromkeys(texts)),
        )

    def _values(
        self, say: Callable[[_Place], Any], together: Callable[[list[Any]], float | str]
    ) -> Mapping[str, Mapping[str, float | str]]:
        """Return graph -> node -> the values of its operators, combined by
        ``together``.
        """
        said: dict[str, dict[str, list[Any]]] = {PROGRAM: {}}
        for place, value in ((place, say(place)) for place in self.places):
            for graph, node in self._shown(place.node) if value is not None else ():
                said.setdefault(graph, {}).setdefault(node, []).append(value)
        return {
            graph: {node: together(values) for node, values in of.items()}
            for graph, of in said.items()
        }

    def _shown(self, node: Node) -> Iterable[tuple[str, str]]:
        """Return the graph and node of all that show an operator."""
        exported = node.meta.get(EXPORTED)
        return [
            *([(PROGRAM, exported)] if exported else []),
            *self.files.get(node.meta.get("debug_handle", -1), ()),
        ]

    def _refusal(self, place: _Place) -> str:
        if place.row is not None:
            return ""
        reasons = refused_by(
            place.node, self.origin.reasons.get(self.method, {}), self.origin.backends
        )
        return "; ".join(
            f"{backend}: {self.notation.text(reason)}"
            for backend, reason in reasons
            if reason != NOT_TAGGED
        )

    def _error(self, place: _Place) -> float | None:
        """Return the error relative to the largest value; None if it was not compared."""
        row = self.errors.get(
            ("host" if place.row is None else place.row.name, place.node.name)
        )
        return None if row is None else _size(row)


def _size(row: OperatorStatistics) -> float:
    return math.inf if row.figures.mismatched else row.figures.relative_error


def _described(row: DelegateRow | None) -> str:
    if row is None:
        return "host"
    seconds = (
        f", compiled in {format_seconds(row.seconds['compile'])}"
        if "compile" in row.seconds
        else ""
    )
    facts = "".join(f", {k} {v}" for k, v in row.facts.items())
    return f"{row.name} of {row.backend}: {format_size(row.bytes)}{seconds}{facts}"
