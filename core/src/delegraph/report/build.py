"""Builds the rows of a report.

A report calls this module when its rows are first read. So a lowering spends no time on
rows that are never read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from delegraph_programs.call_names import count_operators
from torch.fx import Node

from ..delegates.find_delegates import DelegateInfo
from .left_on_host import add_up, figures_by_line, left_operators
from .root_causes import find_causes
from .rows import Compilation, DelegateRow, LineFigures, ReportOrigin, Rows
from .user_names import Notation


def build_rows(
    origin: ReportOrigin,
    nodes: Mapping[str, Iterable[Node]],
    backends: Mapping[str, str],
) -> Rows:
    """Build the rows for the programs and delegates in ``origin``.

    ``nodes``: method -> all nodes of its program, subgraphs included. ``backends``:
    backend id -> name.
    """
    # (backend id, target) of each delegate, once
    targets = {(d.backend_id, d.facts.get("target")) for d in origin.delegates}
    # backend id -> number of different targets
    target_count = Counter(backend_id for backend_id, _ in targets)
    rows = Rows()
    for delegate in origin.delegates:
        row = _delegate_row(
            delegate,
            backends[delegate.backend_id],
            origin.notation(delegate.method),
            several_targets=target_count[delegate.backend_id] > 1,
        )
        rows.delegates.append(row)
    for method in origin.programs:
        operators = left_operators(nodes[method])
        rows.host[method] = dict(Counter(entry.operator for entry in operators))
        by_line = figures_by_line(d for d in origin.delegates if d.method == method)
        rows.figures += [
            LineFigures(method, sources, figures)
            for sources, figures in by_line.items()
        ]
        rows.causes += find_causes(method, operators, origin, origin.notation(method))
        # partitions that a compiler refused, with the user's names of sizes in reasons
        given_back = [row for row in origin.given_back if row.method == method]
        rows.given_back += [
            replace(row, reason=origin.notation(method).text(row.reason))
            for row in given_back
        ]
    return rows


def _delegate_row(
    info: DelegateInfo, backend: str, notation: Notation, several_targets: bool
) -> DelegateRow:
    """Return the row of one delegate.

    ``several_targets``: whether the backend compiled delegates for different targets.
    If not, the row leaves out the fact "target", which all its rows would repeat.
    """
    module = info.module
    target = info.facts.get("target", "")
    facts = dict(info.facts)
    if not several_targets:
        facts.pop("target", None)
    compilation = Compilation(
        info.producer,
        target,
        dict(info.seconds),
        info.compiled,
        module.meta.get("output", ""),
    )
    return DelegateRow(
        method=info.method,
        name=info.name,
        backend=backend,
        operators=count_operators(info.nodes),
        inputs=tuple(map(notation.argument, module.inputs)),
        outputs=tuple(map(notation.argument, module.outputs)),
        bytes=len(module.blob),
        facts=facts,
        figures=add_up(info.figures.values()),
        compilation=compilation,
    )
