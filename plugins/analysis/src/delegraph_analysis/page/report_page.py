"""Render a report as one HTML page without network: pictures and tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from delegraph.errors import InputError
from delegraph.host import OutputStatistics, Verification
from delegraph.report import (
    SCHEMA,
    Cause,
    DelegateRow,
    Fact,
    LoweringResult,
    MethodRow,
    Report,
    ReportFormat,
    list_counts,
    pluralize,
)
from delegraph_programs import Source

from ..accuracy.operators import (
    OperatorStatistics,
    OperatorVerification,
    operators_of,
    severity,
)
from ..drawing import TONES, frame, head, share, swatch, text
from ..profiling import ProgramProfile
from .graphs import Drawn, Links, boxes_about, method_pictures, tones
from .heat import SHARES
from .tables import cell, code, fact_cell, fact_class, lines, link, places, table

BOXES = 3000
"""The most boxes that are drawn inside delegates of a page.

Later delegates are in the table only.
"""
_WORST = 20
"""The most operators with large errors that the page lists."""
_SLOWEST = 100
"""The most rows of a table of times."""
_DEGREES = (
    "agrees with float64",
    "near its tolerance",
    "differs",
    "differs by more than ten times that",
)
_HINT = (
    "Values flow down. Point at a box or a line for types, the line of your program,"
    " and reasons. A delegate links to its picture, an operator of the host to the"
    " reason of its refusal. Drag to move, Ctrl and wheel or + and - to scale."
)


class PageReport(ReportFormat):
    """``.html``: the page."""

    @staticmethod
    def render(result: LoweringResult) -> str:
        assert result.report is not None
        return render_page(result.report, result.verifications, result.profiles) + "\n"


def render_page(
    report: Report,
    verifications: Mapping[str, Verification] | None = None,
    profiles: Mapping[str, ProgramProfile] | None = None,
) -> str:
    """Return one page with a picture of each method, which loads nothing from outside.

    ``verifications``: by method the result of ``verify``, which the page shows; that of
    ``verify_operators`` colors the pictures. ``profiles``: by method the result of
    ``profile``; its pictures are colored by time instead. Two runs of one lowering
    differ in the times only. Raises InputError for other objects.
    """
    for method, found in (verifications or {}).items():
        if not isinstance(found, Verification):
            text = (
                f"method {method} has {type(found).__name__}, not the result of verify"
            )
            raise InputError(
                "input-invalid", text, hint="to_html({'forward': lowered.verify(...)})"
            )
    for method, profile in (profiles or {}).items():
        if not isinstance(profile, ProgramProfile):
            text = (
                f"method {method} has {type(profile).__name__}, not the result of"
                " profile"
            )
            raise InputError(
                "input-invalid",
                text,
                hint="render_page(report, {}, {'forward': lowered.profile(...)})",
            )
    return "".join(_Page(report, verifications or {}, profiles or {}).parts())


class _Page:
    """A page that is being written."""

    def __init__(
        self,
        report: Report,
        verifications: Mapping[str, Verification],
        profiles: Mapping[str, ProgramProfile],
    ) -> None:
        self.report = report
        self.tones = tones(report)
        self.room = BOXES
        self.verifications = verifications
        self.profiles = profiles
        self.ids = {method: f"m{k}" for k, method in enumerate(report.host)}

    def parts(self) -> Iterator[str]:
        yield head("Delegation report")
        yield (
            "<body>\n<header>\n<h1>Delegation"
            f" report</h1>\n<p>{text(self.report.summary())}.</p>\n"
        )
        yield from self._shares()
        yield "</header>\n"
        if len(self.report.host) > 1:
            yield from self._contents()
        for row in self.report.methods.values():
            yield f'<h2 id="{self.ids[row.name]}">Method {text(row.name)}</h2>\n'
            yield from _MethodSection(self, row).parts()
        yield from self._notes()
        yield from self._facts()
        yield f'<p class="faint">{SCHEMA}</p>\n</body></html>\n'

    def _shares(self) -> Iterator[str]:
        """Yield a bar with each backend's share of operators, and a legend of colours."""
        parts = []
        for backend, tone in self.tones.items():
            count = sum(
                row.operator_count
                for row in self.report.delegates
                if row.backend == backend
            )
            label = f"{backend}: {pluralize(count, 'operator')}"
            parts.append((f"t{tone % TONES}", count, label))
        left = self.report.host_operators
        if left:
            parts.append(("host", left, f"host: {pluralize(left, 'operator')}"))
        yield share(parts)

        # classes of a box -> their meaning
        legend = [(classes, label) for classes, _, label in parts]
        if self.report.causes:
            legend.append(("host marked", "refused by a backend"))
        legend.append(("border", "input, output"))
        if self.profiles:
            legend += _heat_legend(SHARES)
        for method, verification in self.verifications.items():
            if method not in self.profiles and operators_of(verification):
                legend += _heat_legend(_DEGREES)
                break
        items = "".join(
            f"<li>{swatch(classes)}{text(label)}</li>" for classes, label in legend
        )
        yield f'<ul class="legend" aria-label="Colours of the pictures">{items}</ul>\n'

    def _contents(self) -> Iterator[str]:
        """Yield a table of the methods with their totals, and a link to each."""
        facts = MethodRow.FACTS
        rows = [
            [link(self.ids[m], m), *(fact_cell(f, row) for f in facts)]
            for m, row in self.report.methods.items()
        ]
        listed = table(
            ("method", *(f.label for f in facts)),
            rows,
            "name",
            *["number"] * len(facts),
            around="short",
        )
        yield f'<nav aria-label="Methods">\n{listed}</nav>\n'

    def affordable(self, insides: Mapping[str, Drawn]) -> dict[str, Drawn]:
        """Return the first pictures for which the page has room; see ``BOXES``."""
        chosen: dict[str, Drawn] = {}
        for name, drawn in insides.items():
            self.room -= len(drawn.picture.boxes)
            if self.room < 0:
                break
            chosen[name] = drawn
        return chosen

    def _notes(self) -> Iterator[str]:
        """Yield the notes of the report."""
        if self.report.notes:
            items = "".join(f"<li>{text(note)}</li>\n" for note in self.report.notes)
            yield f"<h2>Notes</h2>\n<ul>\n{items}</ul>\n"

    def _facts(self) -> Iterator[str]:
        """Yield facts about the whole lowering, each with a heading."""
        for fact in self.report.FACTS:
            entries = fact.entries(fact.of(self.report)) if fact.entries else ()
            if entries:
                items = "".join(f"<li>{text(entry)}</li>\n" for entry in entries)
                yield f"<h2>{text(fact.label.capitalize())}</h2>\n<ul>\n{items}</ul>\n"


class _MethodSection:
    """The section of one method: host operators, graph, values and delegates."""

    def __init__(self, page: _Page, row: MethodRow) -> None:
        method = row.name
        self.row = row
        self.counts = row.left
        self.rows = row.delegates
        self.verified = page.verifications.get(method)
        self.profile = page.profiles.get(method)
        found = None if self.verified is None else operators_of(self.verified)
        self.figures = [row for row in page.report.figures if row.method == method]
        self.given_back = [
            row for row in page.report.given_back if row.method == method
        ]
        prefix = page.ids[method]
        causes = [cause for cause in page.report.causes if cause.method == method]
        self.causes = {f"{prefix}c{k}": cause for k, cause in enumerate(causes)}
        listed = _listed(found) if found is not None else []
        self.values = {f"{prefix}a{k}": o for k, o in enumerate(listed)}
        # if a value has several rows, its box links to the first
        by_place = {(o.where, o.node): row for row, o in reversed(self.values.items())}
        self.pictures = method_pictures(
            page.report,
            method,
            prefix,
            found,
            Links(self.causes, by_place),
            self.profile,
        )
        self.insides = page.affordable(self.pictures.delegates) if self.pictures else {}
        self.boxes = self._boxes()

    def _boxes(self) -> dict[str, list[str]]:
        """Return the boxes of each row; for a delegate, those of the overview."""
        if self.pictures is None:
            return {}
        found = boxes_about([*self.pictures.graphs, *self.insides.values()])
        if self.pictures.overview is not None:
            for row, boxes in boxes_about([self.pictures.overview]).items():
                if row not in self.causes and row not in self.values:
                    found[row] = boxes
        return found

    def parts(self) -> Iterator[str]:
        yield from (f"<p>{text(line)}</p>\n" for line in self.row.details())
        if self.verified is not None:
            verdict = (
                "agree with eager"
                if self.verified.agrees()
                else "differ from eager by more than their tolerance"
            )
            error = _ratio(self.verified.relative_error)
            yield (
                f"<p>The outputs {verdict}; largest error {error} of the largest"
                " value.</p>\n"
            )
            if self.verified.has_only_non_finite:
                yield (
                    "<p>Some outputs have no finite element, so that no number of them"
                    " was compared.</p>\n"
                )
        yield from self._times()
        yield from self._given_back()
        yield from self._figures()
        yield from self._left()
        yield from self._graphs()
        yield from self._accuracy()
        if self.rows:
            yield f"<h3>Delegates</h3>\n{self._delegates()}"
        if self.insides:
            yield "<h3>Inside the delegates</h3>\n"
            for row in self.rows:
                if row.name in self.insides:
                    yield _inside(row, self.insides[row.name])
        if self.insides and len(self.insides) < len(self.rows):
            missing = len(self.rows) - len(self.insides)
            yield (
                f"<p>The inside of {missing:,} more is not drawn, to keep this page"
                " small.</p>\n"
            )

    def _times(self) -> Iterator[str]:
        """Yield the times of a call by line, module and place, the slowest first."""
        profile = self.profile
        if profile is None:
            return
        yield "<h3>Where the time of a call goes</h3>\n"
        yield from (f"<p>{text(line)}.</p>\n" for line in profile.facts())
        for title, listed in profile.tables():
            shown = listed[:_SLOWEST]
            rest = listed[_SLOWEST:]
            if rest:
                shown.append((f"{len(rest):,} more", sum(s for _, s in rest)))
            rows = [
                [f"{1000 * s:.3f}", f"{s / profile.total:.1%}", text(name)]
                for name, s in shown
            ]
            yield table(
                ("ms", "share", title), rows, "number", "number", "text", around="short"
            )

    def _figures(self) -> Iterator[str]:
        """Yield the backends' estimates for each line, the most expensive first."""
        if not self.figures:
            return
        names: dict[str, None] = {}
        for row in self.figures:
            names.update(dict.fromkeys(row.figures))
        rows = []
        for row in self.figures:
            cells = []
            for name in names:
                cells.append(f"{row.figures[name]:,}" if name in row.figures else "")
            rows.append(
                [*cells, "<br/>".join(map(_where, row.sources)) or _where(None)]
            )
        heads = (*names, "line")
        kinds = [*["number"] * len(names), "text"]
        listed = table(heads, rows, *kinds, around="short")
        yield f"<h3>By line of the program</h3>\n{listed}"

    def _given_back(self) -> Iterator[str]:
        """Yield the partitions that a compiler refused; other tables show their
        operators.
        """
        if not self.given_back:
            return
        rows = [
            [
                text(row.partition),
                cell(list_counts(row.operators), row.in_short()),
                f"<b>{text(row.backend)}</b>: {text(row.reason)}",
                _where(row.source),
            ]
            for row in self.given_back
        ]
        heads = ("partition", "operators", "why", "at")
        listed = table(heads, rows, "name", "op", "text", "text")
        yield f"<h3>Refused when they were compiled</h3>\n{listed}"

    def _left(self) -> Iterator[str]:
        """Yield the causes for which operators are left to the host, and all these."""
        if not self.counts:
            return
        rows = [self._cause(row, cause) for row, cause in self.causes.items()]
        operators = pluralize(sum(self.counts.values()), "operator")
        reasons = pluralize(len(rows), "reason")
        yield (
            "<h3>Left to the host:"
            f" {operators}{f', for {reasons}' if rows else ''}</h3>\n"
        )
        heads = ("operators", "which", "why", "first at", "in the graph")
        kinds = ("number", "op", "text", "text", "links")
        shown = table(heads, rows, *kinds, ids=list(self.causes), around="short causes")
        yield shown if rows else "<p>No backend was asked.</p>\n"
        every = list_counts(self.counts)
        yield (
            "<details><summary>All of them:"
            f" {pluralize(sum(self.counts.values()), 'operator')}</summary>\n"
        )
        yield f"<p>{lines(every)}</p></details>\n"

    def _cause(self, row: str, cause: Cause) -> list[str]:
        """Return a row for a cause: operators, reason and advice, first line, and
        boxes.
        """
        listed = list_counts(cause.operators)
        why = f"<b>{text(cause.backend)}</b>: {text(cause.reason)}"
        remarks = "".join(f"<li>{text(remark)}</li>" for remark in cause.remarks)
        if remarks:
            why += f"<ul>{remarks}</ul>"
        which = cell(listed, pluralize(len(listed), "kind"))
        return [
            f"{cause.count:,}",
            which,
            why,
            _where(cause.source),
            places(self.boxes.get(row, ())),
        ]

    def _graphs(self) -> Iterator[str]:
        """Yield the pictures of the method's graphs, with headings."""
        if self.pictures is None:
            yield (
                '<p class="faint">No picture: this report was separated from its'
                " program.</p>\n"
            )
            return
        titled = [(f"Graph of {drawn.title}", drawn) for drawn in self.pictures.graphs]
        if self.pictures.overview is not None:
            drawn = self.pictures.overview
            titled.insert(0, (drawn.title.capitalize(), drawn))
        for title, drawn in titled:
            yield f'<h3 id="{drawn.id}">{text(title)}</h3>\n{_figure(drawn)}'
        yield f'<p class="faint">{_HINT}</p>\n'

    def _accuracy(self) -> Iterator[str]:
        """Yield the errors of outputs, and the first and worst operators that differ."""
        if self.verified is None:
            return
        yield "<h3>Outputs beside eager</h3>\n"
        heads = (
            "output",
            "type",
            "error",
            "SNR dB",
            "largest error",
            "largest value",
            "",
        )
        rows_of_outputs = [
            _output(o, self.verified.tolerance) for o in self.verified.outputs
        ]
        yield table(heads, rows_of_outputs, "name", "text", *["number"] * 4, "text")
        found = operators_of(self.verified)
        if found is None:
            return
        missing = "".join(
            f"; {n:,} not compared: {text(why)}"
            for why, n in found.not_compared.items()
        )
        counted = (
            f"{len(found.operators):,} values compared with float64,"
            f" {len(found.differing()):,} differ{missing}"
        )
        yield f"<h3>Accuracy by operator</h3>\n<p>{counted}.</p>\n"
        rows = [self._operator(row, o) for row, o in self.values.items()]
        heads = (
            "operator",
            "in",
            "error",
            "SNR dB",
            "error of eager",
            "first at",
            "in the graph",
        )
        yield table(
            heads, rows, "text", "name", *["number"] * 3, "", "", ids=list(self.values)
        )

    def _operator(self, row: str, operator: OperatorStatistics) -> list[str]:
        """Return the cells of a compared operator. ``row``: the id of its row."""
        figures = operator.figures
        name = code(f"{operator.node} = {operator.operator}")
        if figures.remark:
            name += f"<br/>{text(figures.remark)}"
        error = _ratio(figures.relative_error)
        if figures.mismatched:
            error += f"<br/>{figures.mismatched:,} not finite"
        boxes = self.boxes.get(row, ())
        if not boxes and self.pictures:  # its inside is not drawn: link to the delegate
            delegate = self.pictures.delegates.get(operator.where)
            boxes = self.boxes.get(delegate.id if delegate else "", ())[:1]
        return [
            name,
            text(operator.where),
            error,
            _decibels(figures),
            _ratio(operator.eager_error),
            _where(operator.source),
            places(boxes),
        ]

    def _delegates(self) -> str:
        """Return a table with a row for each delegate.

        The box of a delegate without a picture links here.
        """
        facts = [
            fact
            for fact in DelegateRow.FACTS
            if any(fact_cell(fact, row) for row in self.rows)
        ]
        drawn = self.pictures.delegates if self.pictures else {}
        cells = []
        ids = []
        for row in self.rows:
            name = drawn[row.name].id if row.name in drawn else ""
            cells.append(self._delegate(row, name, facts))
            ids.append("" if row.name in self.insides else name)
        kinds = [fact_class(fact, self.rows[0]) for fact in facts]
        heads = ("delegate", "backend", *(fact.label for fact in facts), "in the graph")
        return table(heads, cells, "name", "name", *kinds, "", ids=ids)

    def _delegate(self, row: DelegateRow, id: str, facts: Sequence[Fact]) -> list[str]:
        """Return the cells of a delegate. ``id``: see ``Drawn``; "" without a picture."""
        name = link(id, row.name) if row.name in self.insides else text(row.name)
        backend = (
            f'{text(row.backend)}<br/><span class="faint">{text(row.producer)}</span>'
        )
        return [
            name,
            backend,
            *(fact_cell(f, row) for f in facts),
            places(self.boxes.get(id, ())[:1]),
        ]


def _listed(found: OperatorVerification) -> list[OperatorStatistics]:
    """Return the operators to list: the first that differs, the worst others, and those
    with an excused difference.
    """
    differing = found.differing()
    worst_first = sorted(differing[1:], key=severity, reverse=True)
    shown = [*differing[:1], *worst_first[:_WORST]]
    if not shown and found.worst is not None:
        shown = [found.worst]
    return [*shown, *(o for o in found.remarked[:_WORST] if o not in shown)]


def _heat_legend(meanings: Sequence[str]) -> list[tuple[str, str]]:
    """Return the classes and the meaning of each color of heat."""
    return [(f"host e{k}", meaning) for k, meaning in enumerate(meanings, start=1)]


def _figure(drawn: Drawn) -> str:
    return frame(drawn.picture, drawn.note, drawn.title, drawn.id)


def _inside(row: DelegateRow, drawn: Drawn) -> str:
    what = f"{row.name}, {row.backend}: {pluralize(row.operator_count, 'operator')}"
    body = f'<div id="{drawn.id}">\n{_figure(drawn)}</div>'
    return f"<details><summary>{text(what)}</summary>\n{body}</details>\n"


def _output(o: OutputStatistics, tolerance: float | None) -> list[str]:
    tensor = f"{o.dtype}[{', '.join(map(str, o.shape))}]"
    figures = [
        _ratio(o.relative_error),
        _decibels(o),
        f"{o.max_abs_error:.3g}",
        f"{o.max_abs_value:.3g}",
    ]
    verdict = "; ".join(filter(None, (o.verdict(tolerance), o.remark, o.non_finite())))
    return [text(o.name), code(tensor), *figures, text(verdict)]


def _decibels(o: OutputStatistics) -> str:
    return "-" if o.snr is None else f"{o.snr:.1f}"


def _ratio(value: float) -> str:
    return f"{value:.2g}" if math.isfinite(value) else "infinite"


def _where(source: Source | None) -> str:
    if source is None:
        return '<span class="faint">unknown</span>'
    if source.module and not source.is_users:
        return text(source.place)
    return (
        f"{text(source.place)}, in"
        f" {text(source.module or source.function)}<br/>{code(source.code)}"
    )
