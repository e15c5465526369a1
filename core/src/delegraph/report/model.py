"""``Report``: the operators that each backend got, and why others are on the host."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..discovery.first_party import provided
from ..errors import NotFullyDelegated
from ..io.escape_for_terminal import printable
from .rows import (
    Cause,
    DelegateRow,
    GivenBack,
    LineFigures,
    MethodRow,
    RefusalRow,
    ReportOrigin,
    Rows,
)
from .values_as_text import Fact, WithFacts, list_seconds, pluralize

if TYPE_CHECKING:
    from ..host.verify import Verification

SCHEMA = "delegraph.report/1"
_LONGEST_CELL = 20_000
"""The most characters of a report that a notebook shows."""
_MOST_LINES = 10
"""The most lines of the user's program for which a text that is not verbose shows
figures.
"""


class Report(WithFacts):
    """The results of one lowering.

    ``print`` the report, convert it by ``to_json()``, or write a file by ``save``.
    ``rows`` are built when they are first read. Rows and pictures are made from the
    lowered programs, which the report keeps alive until ``release``. ``notes``:
    sentences about the lowering. ``seconds``: phase -> duration.
    """

    def __init__(
        self,
        rows: Rows | Callable[[], Rows] | None = None,
        notes: Sequence[str] = (),
        seconds: Mapping[str, float] | None = None,
        origin: ReportOrigin | None = None,
    ) -> None:
        """``rows``: the rows, or a function that builds them; None: no rows.
        ``origin``: see ``ReportOrigin``.
        """
        self._source = Rows() if rows is None else rows
        self.notes = list(notes)
        self.seconds = dict(seconds or {})
        self.origin = origin or ReportOrigin()

    @property
    def rows(self) -> Rows:
        """Return all rows; the first access builds them."""
        source = self._source  # read once: another thread may replace it
        if not isinstance(source, Rows):
            source = source()
            self._source = source
        return source

    @property
    def delegates(self) -> list[DelegateRow]:
        """Return one row for each delegate."""
        return self.rows.delegates

    @property
    def host(self) -> dict[str, dict[str, int]]:
        """Return method -> operator -> how many calls of it were left to the host."""
        return self.rows.host

    @property
    def methods(self) -> dict[str, MethodRow]:
        """Return name of a method -> its row."""
        return {
            m: MethodRow(m, [r for r in self.delegates if r.method == m], left)
            for m, left in self.host.items()
        }

    @property
    def causes(self) -> list[Cause]:
        """Return the causes that keep operators on the host, method by method.

        ``find_causes`` describes their order within a method.
        """
        return self.rows.causes

    @property
    def refusals(self) -> list[RefusalRow]:
        """Return one row for each operator and reason of each cause."""
        return [row for cause in self.causes for row in cause.refusals]

    @property
    def given_back(self) -> list[GivenBack]:
        """Return the partitions that a partitioner took and the compiler refused."""
        return self.rows.given_back

    @property
    def figures(self) -> list[LineFigures]:
        """Return amounts that backends expect, such as cycles, by the user's lines.

        Rows are sorted by method, and within a method by amount, the largest first.
        """
        return self.rows.figures

    def expect_full(self) -> None:
        """Raise NotFullyDelegated, with this report, if the host has an operator."""
        if self.host_operators:
            count = (
                "1 operator is"
                if self.host_operators == 1
                else f"{self.host_operators} operators are"
            )
            text = "\n  ".join([f"{count} left to the host:", *map(str, self.causes)])
            hint = "without require_full the host runs them"
            error = NotFullyDelegated("not-fully-delegated", text, hint=hint)
            error.report = self
            raise error

    @property
    def delegated_share(self) -> float:
        """Return the share of operators that are in delegates, from 0 to 1.

        1 if there are no operators.
        """
        total = self.delegated_operators + self.host_operators
        return self.delegated_operators / total if total else 1.0

    def release(self) -> None:
        """Drop the reference to the programs, so that their memory can be freed."""
        # the property builds the rows while the programs are still there
        self._source = self.rows
        self.origin = ReportOrigin()

    @property
    def host_operators(self) -> int:
        """Return how many operators were left to the host, in all methods together.

        An operator that the host decomposes counts once. Unpacking, arithmetic on
        sizes, and casts at the border of a delegate do not count.
        """
        return sum(sum(counts.values()) for counts in self.host.values())

    @property
    def delegated_operators(self) -> int:
        """Return the number of operators in delegates, in all methods together."""
        return sum(row.operator_count for row in self.delegates)

    def save(
        self,
        path: str | os.PathLike[str],
        verifications: Mapping[str, Verification] | None = None,
        profiles: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the report in the format that the path's suffix chooses.

        The core has ``.txt`` and ``.json``; plugins have others. ``verifications``:
        method -> result of ``verify``, to be written with the report. ``profiles``:
        method -> result of ``LoweredProgram.profile``, likewise.

        Raises FormatNotFound if no plugin declares the suffix; its hint is the command
        that installs one. Raises WriteError if the file cannot be written.
        """
        from .formats import LoweringResult, write_report

        write_report(
            LoweringResult(self, dict(verifications or {}), dict(profiles or {})), path
        )

    def to_html(self, verifications: Mapping[str, Verification] | None = None) -> str:
        """Return the HTML page with pictures that ``save("report.html")`` writes.

        Needs ``delegraph-analysis``. Raises PluginUnavailable, with the pip command as
        hint, if that distribution is not installed.
        """
        render = provided("delegraph_analysis:render_page", "the report as a page")
        page: str = render(self, verifications)
        return page

    def to_text(self, verbose: bool = False) -> str:
        """Return the report as ``print`` shows it.

        ``verbose`` adds operators, inputs, outputs and time of each delegate.
        Characters that do not print, such as those that move a terminal's cursor, are
        replaced by escapes.
        """
        return printable("\n".join(self._lines(verbose)), kept="\n")

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return f"<Report: {self.summary()}>"

    def _repr_html_(self) -> str:
        """Return the text for notebooks, cut after ``_LONGEST_CELL`` characters."""
        # imported late: its table of all entities is needed in notebooks only
        import html

        return f"<pre>{html.escape(self.to_text()[:_LONGEST_CELL])}</pre>"

    def summary(self) -> str:
        """Return how much of the program is delegated, in one line."""
        total = self.delegated_operators + self.host_operators
        count = pluralize(len(self.delegates), "delegate")
        share = (
            f"{self.delegated_operators} of {pluralize(total, 'operator')} delegated"
        )
        return f"{share}, in {count}; {self.host_operators} on the host"

    def _lines(self, verbose: bool) -> Iterator[str]:
        """Yield the lines of ``to_text``."""
        yield self.summary()
        for method in self.methods.values():
            yield from self._method_lines(method, verbose)
        yield from (f"note: {text}" for text in self.notes)
        yield from self.details()

    def _method_lines(self, method: MethodRow, verbose: bool) -> Iterator[str]:
        """Yield the lines of ``to_text`` about one method.

        In order: its name and facts, its delegates, figures by line of the program,
        partitions that a compiler refused, and operators on the host. A heading without
        lines below it is left out.
        """
        yield f"{method.name}:"
        yield from (f"  {line}" for line in method.details())
        for row in method.delegates:
            yield f"  {row}"
            if verbose:
                yield from (f"      {line}" for line in row.details())
        figures = [row for row in self.figures if row.method == method.name]
        shown = figures if verbose else figures[:_MOST_LINES]
        if shown:
            yield "  by line of the program:"
        yield from (f"    {row}" for row in shown)
        if len(shown) < len(figures):
            yield f"    and {len(figures) - len(shown)} more"
        given_back = [row for row in self.given_back if row.method == method.name]
        if given_back:
            yield "  refused when they were compiled:"
        yield from (f"    {row}" for row in given_back)
        causes = [cause for cause in self.causes if cause.method == method.name]
        if method.left:
            heading = "  left to the host:"
            if not causes:
                operators = pluralize(method.host_operators, "operator")
                heading += f" {operators}; no backend was asked"
            yield heading
        yield from (f"    {cause}" for cause in causes)

    KEYS = (
        "delegated_operators",
        "host_operators",
        "delegates",
        "host",
        "causes",
        "notes",
        "seconds",
        "methods",
        "given_back",
        "figures",
    )
    FACTS = (Fact("seconds", "time", entries=list_seconds),)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON values, with its ``schema``.

        The key "cause" of a refusal is the index of its cause in "causes".
        """
        refusals = [
            {**row.to_json(), "cause": k}
            for k, cause in enumerate(self.causes)
            for row in cause.refusals
        ]
        return {"schema": SCHEMA, **super().to_json(), "refusals": refusals}
