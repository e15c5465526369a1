"""The scores of programs over data: sums, worst samples, text and JSON."""

from __future__ import annotations

import html
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from delegraph.command import Outcome, as_json
from delegraph.errors import UsageError
from delegraph.host import finite
from delegraph.io.atomic_write import write_whole
from delegraph.io.escape_for_terminal import printable, table

from .page import Table, render

WORST = 10
"""The number of worst samples that are listed, and that the page has pictures of."""
SUFFIXES = (".html", ".json", ".txt")


@dataclass(frozen=True)
class SampleScores:
    """The score of each column for one sample; ``index`` counts from 0."""

    index: int
    scores: tuple[float, ...]

    @property
    def loss(self) -> float:
        """Return how far the worst column is below eager; see ``loss_of``."""
        return max(self.loss_of(k) for k in range(1, len(self.scores)))

    def loss_of(self, column: int) -> float:
        """Return how far one column is below eager.

        It is 0 if both are NaN, or the same infinity. It is infinite for NaN on one
        side only.
        """
        eager = self.scores[0]
        score = self.scores[column]
        if eager == score or (math.isnan(eager) and math.isnan(score)):
            return 0.0
        loss = eager - score
        return math.inf if math.isnan(loss) else loss


class ColumnScores(NamedTuple):
    """The scores of one program over all samples.

    ``mean``: of all samples. ``loss``: the mean of the losses of samples, which is the
    mean of eager minus ``mean`` if all scores are finite. ``worse`` and ``better``: the
    numbers of samples with a lower or a higher score than eager.
    """

    name: str
    mean: float
    loss: float
    worse: int
    better: int


@dataclass
class VerificationOverData:
    """The scores of eager PyTorch (the first column) and of other programs, by sample.

    ``metric``: its name. ``pictures``: index -> HTML that shows the inputs, for the
    worst samples. ``_pictured``: the samples of ``pictures``, worst first.
    """

    columns: tuple[str, ...]
    metric: str
    samples: list[SampleScores] = field(default_factory=list)
    pictures: dict[int, str] = field(default_factory=dict, repr=False)
    _pictured: list[SampleScores] = field(default_factory=list, repr=False)

    def add(self, row: SampleScores, picture: Callable[[], str]) -> None:
        """Add the scores of a sample. ``picture`` is called if it is one of the worst."""
        self.samples.append(row)
        ordered = _worst_first([*self._pictured, row])
        self._pictured = ordered[:WORST]
        if row in self._pictured:
            self.pictures[row.index] = picture()
        # drop the picture of a sample that is no longer one of the worst
        for better in ordered[WORST:]:
            self.pictures.pop(better.index, None)

    def worst(self, count: int = WORST) -> list[SampleScores]:
        """Return the samples with the largest loss of any program, largest first."""
        return _worst_first(self.samples)[:count]

    def summary(self) -> list[ColumnScores]:
        """Return the figures of each column over all samples."""
        rows = []
        for column, name in enumerate(self.columns):
            losses = [row.loss_of(column) for row in self.samples]
            mean = _mean([row.scores[column] for row in self.samples])
            worse = sum(loss > 0 for loss in losses)
            better = sum(loss < 0 for loss in losses)
            rows.append(ColumnScores(name, mean, _mean(losses), worse, better))
        return rows

    def to_text(self) -> str:
        """Return a table of the columns, with the worst samples below it."""
        heads = ["", "MEAN", "LOSS", "WORSE", "BETTER"]
        parts = [self._title(), table([heads, *self._column_rows()])]
        worst = self._worst_rows()
        if worst:
            heads = ["SAMPLE", *(name.upper() for name in self.columns)]
            parts += ["worst samples:", table([heads, *worst])]
        return printable("\n".join(parts), kept="\n")

    def to_html(self) -> str:
        """Return a page with the worst samples and their pictures."""
        worst = []
        for index, *scores in self._worst_rows():
            worst.append([index, self.pictures.get(int(index), ""), *scores])
        return render(
            self._title(),
            Table(["program", "mean", "loss", "worse", "better"], self._column_rows()),
            Table(["sample", "input", *self.columns], worst, pictures=True),
        )

    def _title(self) -> str:
        count = len(self.samples)
        return f"{count} samples, metric {self.metric}; larger is better"

    def _column_rows(self) -> list[list[str]]:
        rows = []
        for column in self.summary():
            row = [column.name, f"{column.mean:.6g}", f"{column.loss:.3g}"]
            rows.append([*row, str(column.worse), str(column.better)])
        return rows

    def _worst_rows(self) -> list[list[str]]:
        """Return the index and the scores of the worst samples that lose anything."""
        rows = []
        for row in self.worst():
            if row.loss > 0:
                rows.append([str(row.index), *(f"{s:.6g}" for s in row.scores)])
        return rows

    def to_json(self) -> dict[str, Any]:
        """Return the scores as plain values; NaN and infinity become None."""
        columns = []
        for column in self.summary():
            figures = column._asdict().items()
            columns.append({name: finite(figure) for name, figure in figures})
        samples = []
        for row in self.samples:
            scores = [finite(score) for score in row.scores]
            samples.append({"index": row.index, "scores": scores})
        return {
            "schema": "delegraph.accuracy-over-data/1",
            "metric": self.metric,
            "columns": columns,
            "samples": samples,
            "worst": [row.index for row in self.worst()],
        }

    def save(self, path: str | Path) -> None:
        """Write a page (``.html``), ``.json`` or ``.txt``. Raises UsageError for others."""
        suffix = check_suffix(Path(path))
        text = self.to_text()
        if suffix == ".html":
            text = self.to_html()
        elif suffix == ".json":
            content = self.to_json()
            text = as_json(Outcome(content["schema"], content, text))
        write_whole(path, f"{text}\n".encode())

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.to_text())}</pre>"


def _mean(numbers: list[float]) -> float:
    """Return the mean; NaN for infinities of both signs."""
    # not ``math.fsum``, which raises for these
    return sum(numbers) / len(numbers)


def _worst_first(rows: list[SampleScores]) -> list[SampleScores]:
    return sorted(rows, key=lambda row: -row.loss)


def check_suffix(path: Path) -> str:
    """Return the suffix of a file to write. Raises UsageError for an unknown one."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        known = ", ".join(SUFFIXES)
        raise UsageError(
            "usage-invalid", f"scores are written to {known} files, not {path.name!r}"
        )
    return suffix
