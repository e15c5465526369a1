"""Compares the results of a lowered program with those of eager PyTorch, output by output."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils import _pytree as pytree

from ..io.escape import printable
from .output_statistics import OutputStatistics, compare, finite


@dataclass(frozen=True, repr=False)
class Verification:
    """How every output compares with eager PyTorch's."""

    outputs: tuple[OutputStatistics, ...]

    @classmethod
    def of(cls, got: Any, wanted: Any) -> Verification:
        """Compare two results of the same structure, output by output."""
        pairs = zip(pytree.tree_leaves(got), pytree.tree_leaves(wanted), strict=True)
        return cls(tuple(compare(f"output_{k}", a, b) for k, (a, b) in enumerate(pairs)))

    def settled(self, got: Any, wanted: Any, run: Callable[[Any], Any]) -> Verification:
        """Beside eager as it decides where it disagrees with itself; ``run`` calls it in a torch dispatch mode."""
        from .undecided import settle

        return self if self.agrees() else Verification(settle(self.outputs, got, wanted, run))

    def __repr__(self) -> str:
        verdict = "agrees with" if self.agrees() else "differs from"
        return f"<Verification: {verdict} eager, largest ratio {self.relative_error:.2g}>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(printable(str(self), kept=chr(10)))}</pre>"

    @property
    def relative_error(self) -> float:
        """The largest relative error of all outputs; infinite if elements differ in being finite."""
        if any(o.mismatched for o in self.outputs):
            return float("inf")
        return max((o.relative_error for o in self.outputs), default=0.0)

    def to_json(self) -> dict[str, Any]:
        """As a dictionary; infinite figures, which JSON lacks, become None."""
        rows = [o.to_json() for o in self.outputs]
        return {"relative_error": finite(self.relative_error), "agrees": self.agrees(), "outputs": rows}

    def agrees(self, tolerance: float | None = None) -> bool:
        """Whether every output is within ``tolerance`` (by default that of its type in ``TOLERANCES``)."""
        return all(o.agrees(tolerance) for o in self.outputs)

    @classmethod
    def worst_of(cls, several: Sequence[Verification]) -> Verification:
        """The worst figures of each output over ``several`` verifications of one method, with different inputs."""
        columns = zip(*(v.outputs for v in several), strict=True)
        return Verification(tuple(map(_worst, columns)))

    def __str__(self) -> str:
        return "\n".join(["compared with eager:", *(f"  {o}" for o in self.outputs)])


def _worst(column: Sequence[OutputStatistics]) -> OutputStatistics:
    """The worst figures of one output; what was remarked in another run stays said."""
    worst = max(column, key=lambda o: (not o.agrees(), o.mismatched, o.relative_error))
    return worst._replace(remark=worst.remark or next(filter(None, (o.remark for o in column)), ""))
