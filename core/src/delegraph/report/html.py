"""A report as one HTML page that opens without network: pictures of the methods, and tables of all its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..program.operators import OperatorStatistics, OperatorVerification, severity
from ..source import Source
from .drawing import TONES, condense, figure, head, swatch, text
from .graphs import Drawn, MethodPictures, method_pictures, tones
from .rows import SCHEMA, Cause, DelegateRow, format_seconds, format_size, most_frequent, pluralize

if TYPE_CHECKING:
    from .model import Report

BOXES = 3000
"""Boxes that are drawn inside delegates, over the whole page; the delegates after these are in the table only."""
_WORST = 20
"""Operators with the largest errors that the page lists."""
_FEW = 4
"""Entries that a cell of a table shows without being unfolded."""


def page(report: Report, operators: Mapping[str, OperatorVerification] | None = None) -> str:
    """The whole page. Two runs of one lowering differ in the times only. ``operators``: figures of each, by method."""
    return "".join(_Page(report, operators or {}).parts())


def tables(title: str, sections: Iterable[tuple[str, Sequence[str], Sequence[Sequence[str]]]]) -> str:
    """A page of tables alone: of each its title, heads and rows, of text. A table without rows is left out."""
    parts = [head(title), f"<body>\n<h1>{text(title)}</h1>\n"]
    for name, heads, rows in sections:
        if rows:
            cells = [[text(cell) for cell in row] for row in rows]
            parts.append(f"<h2>{text(name)}</h2>\n{_table(heads, cells, *['text'] * len(heads))}")
    return "".join([*parts, "</body></html>\n"])


class _Page:
    """One page while it is written."""

    def __init__(self, report: Report, operators: Mapping[str, OperatorVerification]) -> None:
        self.operators = operators
        self.report, self.tones, self.room = report, tones(report), BOXES
        self.ids = {method: f"m{k}" for k, method in enumerate(report.host)}

    def parts(self) -> Iterator[str]:
        yield head("Delegation report")
        yield f"<body>\n<h1>Delegation report</h1>\n<p>{text(self.report.summary())}.</p>\n"
        yield from self._contents()
        yield from self._legend()
        for method in self.report.host:
            yield f'<h2 id="{self.ids[method]}">Method {text(method)}</h2>\n'
            yield from self._method(method)
        yield from self._notes()
        yield from self._times()
        yield f'<p class="faint">{SCHEMA}</p>\n</body></html>\n'

    def _contents(self) -> Iterator[str]:
        """The methods with their totals, and a link to each."""
        heads = ("method", "delegates", "operators in them", "size", "operators on the host")
        rows = [[_link(self.ids[m], m), *self._totals(m)] for m in self.report.host]
        yield f'<nav aria-label="Methods">\n{_table(heads, rows, "name", *["number"] * 4)}</nav>\n'

    def _totals(self, method: str) -> tuple[str, str, str, str]:
        rows = self._rows(method)
        delegated, size = sum(row.operator_count for row in rows), sum(r.bytes for r in rows)
        return f"{len(rows):,}", f"{delegated:,}", format_size(size), f"{sum(self.report.host[method].values()):,}"

    def _rows(self, method: str) -> list[DelegateRow]:
        return [row for row in self.report.delegates if row.method == method]

    def _legend(self) -> Iterator[str]:
        looks = [(f"t{tone % TONES}", backend) for backend, tone in self.tones.items()]
        if self.operators:
            degrees = ("agrees with float64", "near its tolerance", "differs", "differs by more than ten times that")
            looks += [(f"host e{k}", degree) for k, degree in enumerate(degrees, start=1)]
        looks += [("host", "host"), ("host marked", "host, refused by a backend"), ("border", "input, output")]
        items = "".join(f"<li>{swatch(classes)}{text(what)}</li>" for classes, what in looks)
        yield f'<ul class="legend" aria-label="Colours of the pictures">{items}</ul>\n'
        hint = "Values flow down. Point at a box or a line for types, the line of your program, and reasons."
        yield f'<p class="faint">{hint} An underlined box leads to what is inside.</p>\n'

    def _method(self, method: str) -> Iterator[str]:
        rows, pictures = self._rows(method), self._pictures(method)
        yield from _graphs(pictures)
        yield from self._accuracy(method)
        yield from self._left(method)
        insides = self._affordable(pictures.delegates) if pictures else {}
        if rows:
            yield f"<h3>Delegates</h3>\n{_delegates(rows, pictures, insides)}"
        if insides:
            yield "<h3>Inside the delegates</h3>\n"
            yield from (_inside(row, insides[row.name]) for row in rows if row.name in insides)
        if insides and len(insides) < len(rows):
            yield f"<p>The inside of {len(rows) - len(insides):,} more is not drawn, to keep this page small.</p>\n"

    def _pictures(self, method: str) -> MethodPictures | None:
        return method_pictures(self.report, method, self.ids[method], self.operators.get(method))

    def _accuracy(self, method: str) -> Iterator[str]:
        """What differs from float64, the first operator and then the worst."""
        found = self.operators.get(method)
        if found is None:
            return
        differing = found.differing()
        shown = [*differing[:1], *sorted(differing[1:], key=severity, reverse=True)[:_WORST]]
        shown = shown or [o for o in (found.worst,) if o is not None]
        rows = [_operator(o) for o in [*shown, *(o for o in found.remarked[:_WORST] if o not in shown)]]
        missing = "".join(f"; {n:,} not compared: {text(why)}" for why, n in found.not_compared.items())
        yield "<h3>Accuracy by operator</h3>\n"
        yield f"<p>{len(found.operators):,} values compared with float64, {len(differing):,} differ{missing}.</p>\n"
        yield _table(
            ("operator", "in", "error", "error of eager", "first at"), rows, "text", "name", "number", "number", ""
        )

    def _affordable(self, insides: Mapping[str, Drawn]) -> dict[str, Drawn]:
        """The pictures that are drawn: as many as there is room for, from the first on."""
        chosen: dict[str, Drawn] = {}
        for name, drawn in insides.items():
            self.room -= len(condense(drawn.picture)[0].boxes)
            if self.room < 0:
                break
            chosen[name] = drawn
        return chosen

    def _left(self, method: str) -> Iterator[str]:
        counts = self.report.host[method]
        if not counts:
            return
        rows = [_cause(cause) for cause in self.report.causes if cause.method == method]
        yield "<h3>Left to the host</h3>\n"
        heads = ("operators", "which", "why", "first at")
        yield _table(heads, rows, "number", "text", "text", "text") if rows else "<p>No backend was asked.</p>\n"
        every = [f"{n} x {op}" for op, n in most_frequent(counts)]
        yield f"<details><summary>All of them: {pluralize(sum(counts.values()), 'operator')}</summary>\n"
        yield f"<p>{_lines(every)}</p></details>\n"

    def _notes(self) -> Iterator[str]:
        if self.report.notes:
            items = "".join(f"<li>{text(note)}</li>\n" for note in self.report.notes)
            yield f"<h2>Notes</h2>\n<ul>\n{items}</ul>\n"

    def _times(self) -> Iterator[str]:
        rows = [[text(phase), format_seconds(s)] for phase, s in self.report.seconds.items()]
        if rows:
            yield f"<h2>Time</h2>\n{_table(('phase', 'time'), rows, 'name', 'number')}"


def _graphs(pictures: MethodPictures | None) -> Iterator[str]:
    if pictures is None:
        yield '<p class="faint">No picture: this report was separated from its program.</p>\n'
        return
    for drawn in pictures.graphs:
        yield f'<h3 id="{drawn.id}">Graph of {text(drawn.title)}</h3>\n{figure(drawn.picture, drawn.title)}'


def _inside(row: DelegateRow, drawn: Drawn) -> str:
    what = f"{row.name}, {row.backend}: {pluralize(row.operator_count, 'operator')}"
    body = f'<div id="{drawn.id}">\n{figure(drawn.picture, drawn.title)}</div>'
    return f"<details><summary>{text(what)}</summary>\n{body}</details>\n"


def _delegates(rows: Sequence[DelegateRow], pictures: MethodPictures | None, insides: Mapping[str, Drawn]) -> str:
    """One row for each delegate. Where its inside is not drawn, its box in the graph links to this row."""
    heads = ["delegate", "backend", "operators", "inputs", "outputs", "size"]
    kinds = ["name", "name", "text", "text", "text", "number"]
    extra = [name for name in ("facts", "seconds") if any(getattr(row, name) for row in rows)]
    cells = [_delegate(row, insides[row.name].id if row.name in insides else "", extra) for row in rows]
    led = {} if pictures is None else {n: d.id for n, d in pictures.delegates.items() if n not in insides}
    names = {"facts": "facts", "seconds": "time"}
    heads += [names[e] for e in extra]
    return _table(heads, cells, *kinds, *[""] * len(extra), ids=[led.get(row.name, "") for row in rows])


def _delegate(row: DelegateRow, inside: str, extra: Sequence[str]) -> list[str]:
    cells = [
        _link(inside, row.name) if inside else text(row.name),
        f'{text(row.backend)}<br/><span class="faint">{text(row.producer)}</span>',
        _cell(
            [f"{n} x {op}" for op, n in most_frequent(row.operators)],
            pluralize(row.operator_count, "operator"),
        ),
        _cell([str(a) for a in row.inputs], pluralize(len(row.inputs), "input")),
        _cell([str(a) for a in row.outputs], pluralize(len(row.outputs), "output")),
        f"{format_size(row.bytes)}",
    ]
    shown = {
        "facts": [f"{k}: {v}" for k, v in row.facts.items()],
        "seconds": [f"{phase}: {format_seconds(s)}" for phase, s in row.seconds.items()],
    }
    return [*cells, *(_lines(shown[e]) for e in extra)]


def _cause(cause: Cause) -> list[str]:
    """One row for a cause: its operators, the reason and what to do about it, the first line concerned."""
    listed = [f"{n} x {op}" for op, n in most_frequent(cause.operators)]
    remarks = "".join(f"<li>{text(remark)}</li>" for remark in cause.remarks)
    why = f"<b>{text(cause.backend)}</b>: {text(cause.reason)}" + (f"<ul>{remarks}</ul>" if remarks else "")
    return [f"{cause.count:,}", _cell(listed, pluralize(len(listed), "kind")), why, _where(cause.source)]


def _operator(o: OperatorStatistics) -> list[str]:
    remark = f"<br/>{text(o.figures.remark)}" if o.figures.remark else ""
    odd = f"<br/>{o.figures.mismatched:,} not finite" if o.figures.mismatched else ""
    errors = [f"{o.figures.relative_error:.2g}{odd}", f"{o.eager_error:.2g}"]
    return [f"{_code(f'{o.node} = {o.operator}')}{remark}", text(o.where), *errors, _where(o.source)]


def _where(source: Source | None) -> str:
    if source is None:
        return '<span class="faint">unknown</span>'
    return f"{text(source.place)}, in {text(source.function)}<br/>{_code(source.code)}"


def _code(value: str) -> str:
    return f"<code>{text(value)}</code>"


def _link(target: str, shown: str) -> str:
    return f'<a href="#{target}">{text(shown)}</a>'


def _cell(entries: Sequence[str], summary: str) -> str:
    """The entries, a line each; many are folded away behind ``summary``."""
    if len(entries) <= _FEW:
        return _lines(entries)
    return f"<details><summary>{text(summary)}</summary>{_lines(entries)}</details>"


def _lines(entries: Iterable[str]) -> str:
    return "<br/>".join(_code(entry) for entry in entries)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], *kinds: str, ids: Sequence[str] = ()) -> str:
    """A table of cells that are HTML already. ``kinds``: the class of each column. ``ids``: of rows that have one."""
    listed = list(rows)
    classes = [f' class="{kind}"' if kind else "" for kind in kinds]
    row_ids = [f' id="{ids[k]}"' if k < len(ids) and ids[k] else "" for k in range(len(listed))]
    top = "".join(f'<th scope="col"{c}>{text(h)}</th>' for c, h in zip(classes, heads, strict=True))
    body = (
        f"<tr{row_ids[k]}>{''.join(f'<td{c}>{cell}</td>' for c, cell in zip(classes, row, strict=True))}</tr>\n"
        for k, row in enumerate(listed)
    )
    return f'<div class="wide"><table>\n<thead><tr>{top}</tr></thead>\n<tbody>\n{"".join(body)}</tbody></table></div>\n'
