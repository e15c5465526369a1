"""Compares the results of a lowered program with those of eager PyTorch, output by
output.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

from delegraph_programs.compare_with_eager import OutputStatistics, compare, finite
from torch.utils import _pytree as pytree

from ..errors import DelegraphError, InputError
from ..io.escape_for_terminal import printable


@contextmanager
def call_of_model(method: str) -> Iterator[None]:
    """Turn errors in the block into InputError; a DelegraphError stays as it is.

    The block only runs the model in PyTorch, so the model or its inputs are at fault.
    ``method``: for the message.
    """
    try:
        yield
    except DelegraphError:
        raise
    except Exception as e:
        raise InputError(
            "input-invalid",
            f"the model's method {method!r} raises {type(e).__name__} on these"
            f" inputs: {e}",
            hint="give inputs on which the model itself runs",
        ) from e


@dataclass(frozen=True, repr=False)
class Verification:
    """How the outputs of a call compare with eager PyTorch's; one entry for each
    output.

    ``tolerance``: the relative error that is accepted; None: the tolerance in
    ``TOLERANCES`` for the type of each output.
    """

    outputs: tuple[OutputStatistics, ...]
    tolerance: float | None = field(default=None, kw_only=True)

    @classmethod
    def of(cls, got: Any, wanted: Any) -> Verification:
        """Compare two results of the same structure, output by output. ``wanted``: the
        results of eager.
        """
        pairs = zip(pytree.tree_leaves(got), pytree.tree_leaves(wanted), strict=True)
        return cls(
            tuple(compare(f"output_{k}", a, b) for k, (a, b) in enumerate(pairs))
        )

    def within(self, tolerance: float | None) -> Self:
        """Return the same figures, judged by ``tolerance``; None judges each output by
        the tolerance of its type.
        """
        return replace(self, tolerance=tolerance)

    def __repr__(self) -> str:
        verdict = "agrees with" if self.agrees() else "differs from"
        return (
            f"<Verification: {verdict} eager, largest ratio {self.relative_error:.2g}>"
        )

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(printable(str(self), kept=chr(10)))}</pre>"

    @property
    def relative_error(self) -> float:
        """Return the largest relative error of all outputs; infinite if some are NaN or
        infinite on one side only.
        """
        if any(o.mismatched for o in self.outputs):
            return float("inf")
        return max((o.relative_error for o in self.outputs), default=0.0)

    @property
    def has_only_non_finite(self) -> bool:
        """Return whether some output has elements, but no finite one. Of such an output,
        no numbers were compared.
        """
        return any(o.has_only_non_finite for o in self.outputs)

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary of plain values; infinite figures, which JSON lacks,
        become None.
        """
        rows = [
            {**o.to_json(), "agrees": o.agrees(self.tolerance)} for o in self.outputs
        ]
        return {
            "relative_error": finite(self.relative_error),
            "agrees": self.agrees(),
            "outputs": rows,
        }

    def agrees(self, tolerance: float | None = None) -> bool:
        """Return whether every output is within ``tolerance``; None takes
        ``self.tolerance``.
        """
        accepted = self.tolerance if tolerance is None else tolerance
        return all(o.agrees(accepted) for o in self.outputs)

    @classmethod
    def worst_of(cls, several: Sequence[Verification]) -> Verification:
        """Return a verification with the worst figures of each output. ``several``: the
        verifications of one method with different inputs. The result has no
        ``tolerance`` of its own.
        """
        columns = zip(*(v.outputs for v in several), strict=True)
        return Verification(tuple(map(_worst, columns)))

    def __str__(self) -> str:
        return "\n".join(
            [
                "compared with eager:",
                *(f"  {o.line(self.tolerance)}" for o in self.outputs),
            ]
        )


def _worst(column: Sequence[OutputStatistics]) -> OutputStatistics:
    """Return the worst figures in ``column``: the figures of one output in several
    runs.

    If the worst run has no remark, the result has the first remark of another run.
    """
    # a run that differs from eager is worse than one that agrees; the next entries of
    # the key decide between two runs that are equal so far
    worst = max(
        column,
        key=lambda o: (
            not o.agrees(),
            o.mismatched,
            o.has_only_non_finite,
            o.relative_error,
        ),
    )
    remarks = [worst.remark, *(o.remark for o in column)]
    return worst._replace(remark=next(filter(None, remarks), ""))
