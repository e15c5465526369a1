"""Runs eager PyTorch again with other rounding, to find ties: equal scores that change
places, decisions by rounding.

Only the outputs are compared. What this may hide:
docs/decisions/0021-eager-disagrees-with-itself.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod
from typing import Any, Literal

import torch
from delegraph import LoweredProgram
from delegraph.host import TOLERANCES, OutputStatistics, Verification, compare
from delegraph.runtime import Observer
from torch.utils import _pytree as pytree

from .other_rounding import OtherRounding

SHARES = (1 / 128, 1 / 1024, 1 / 8192)
"""By how much results of eager are changed in a run, as shares of the tolerance of
their type.

The smallest one changes the last digit of a float32.
"""
_COUNTED = 100_000_000
"""The largest number of elements that are compared to count how often items occur."""
_WHATS: tuple[Literal["order", "rounding"], ...] = ("order", "rounding")
_RUNS = [
    (what, share, sign) for share in SHARES for what, sign in product(_WHATS, (1, -1))
]


def verify_ties(
    lowered: LoweredProgram,
    *args: Any,
    method: str | None = None,
    runtime: str | None = None,
    observer: Observer | None = None,
    **kwargs: Any,
) -> Verification:
    """Do as ``lowered.verify`` does, and accept what another run of eager returns.

    If the results differ, eager runs again, at most twelve times, with other rounding
    and another order of equal elements. Where its own results then differ, the figures
    are those of the nearest run, and the remark of the output counts these places.
    """
    seed = torch.get_rng_state()
    actual, expected = lowered.run_both(
        args, kwargs, method=method, runtime=runtime, observer=observer
    )
    found = Verification.of(actual, expected)
    if found.agrees():
        return found

    def run(mode: OtherRounding) -> Any:
        """The results of eager with the same seed."""
        torch.set_rng_state(seed)
        return lowered.run_eager(args, kwargs, method=method, mode=mode)

    return Verification(settle(found.outputs, actual, expected, run))


def settle(
    found: Sequence[OutputStatistics],
    got: Any,
    eager: Any,
    run: Callable[[OtherRounding], Any],
) -> tuple[OutputStatistics, ...]:
    """Compare outputs that differ once more, with the nearest result that any run of
    eager returns.

    Returns ``found``, in which such comparisons replace those of the outputs concerned.
    ``got`` and ``eager`` are the results that ``found`` compares. ``run(mode)`` calls
    eager again, with other rounding: up to twelve times, but only four if some
    difference is not one of rounding. ``found`` stays as it is if results differ in
    shape or type.
    """
    gots, eagers = (list(map(_tensor_of, pytree.tree_leaves(v))) for v in (got, eager))
    if any(
        a.shape != b.shape or a.dtype != b.dtype
        for a, b in zip(gots, eagers, strict=True)
    ):
        return tuple(found)
    groups = [
        _Items(outputs, found, gots, eagers)
        for outputs in _items([e.shape for e in eagers])
    ]
    groups = [group for group in groups if group.differs.any()]
    for what, share, sign in _RUNS:
        # a difference at a place where the runs with the largest share agree has
        # another cause: more runs do not help
        if all(g.is_explained for g in groups) or (
            share < SHARES[0] and any(g.is_hopeless for g in groups)
        ):
            break
        try:
            # else torch.compile would keep code made in this mode
            with torch.compiler.set_stance("force_eager"):
                returned = run(OtherRounding(what, share, sign))
        except RuntimeError:  # an assertion of the model may depend on rounding, too
            continue
        results = list(map(_tensor_of, pytree.tree_leaves(returned)))
        # else this run decided for another number of items
        if [o.shape for o in results] == [e.shape for e in eagers]:
            for group in groups:
                group.consider(results)
    settled = {k: row for group in groups for k, row in group.settled(gots)}
    return tuple(settled.get(k, row) for k, row in enumerate(found))


def _tensor_of(value: Any) -> torch.Tensor:
    """An output as a tensor; an empty one for an output that is no number, since that
    is never rounded.
    """
    if isinstance(value, torch.Tensor):
        return value.detach()
    return (
        torch.tensor(value)
        if isinstance(value, (bool, int, float, complex))
        else torch.empty(0)
    )


def _items(shapes: Sequence[torch.Size]) -> list[tuple[int, list[int]]]:
    """Groups of outputs that list the same items: (number of items, positions of the
    outputs).

    Scores [N, K], labels [N, K] and boxes [N, K, 4] are one group of N * K items, which
    change places as a whole. Outputs are grouped by the longest leading sizes that two
    of them share. An output that shares none has an item for each element, or for each
    vector along the last of three or more dimensions. Empty outputs are left out.
    """
    group_by_sizes: dict[torch.Size, list[int]] = {}
    for k, shape in enumerate(shapes):
        if not prod(shape):
            continue
        own_sizes = shape[:-1] if len(shape) > 2 else shape
        # leading sizes that stand for several items; a single item cannot change places
        leading = [shape[:n] for n in range(1, len(shape) + 1) if prod(shape[:n]) > 1]
        common = [
            lead
            for lead in leading
            for j, other in enumerate(shapes)
            if j != k and other[: len(lead)] == lead
        ]
        group_by_sizes.setdefault(max(common, key=len, default=own_sizes), []).append(k)
    return [(prod(sizes), outputs) for sizes, outputs in group_by_sizes.items()]


class _Items:
    """A group of outputs that list the same items, and eager's item nearest to ours at
    each place.

    ``grouped``: the number of places, and the positions of the outputs (``_items``).
    ``gots`` are our outputs, ``eagers`` those of eager's first run. ``differs``: places
    where our item is not eager's. ``_varies``: such places where runs of eager differ
    from each other. ``_nearest`` and ``_distance``: eager's nearest items so far, and
    how far ours are from them, in units of the tolerance. ``_ours`` and ``_theirs``:
    how often our item at a place occurs among all of our items, and among eager's;
    counted at places ``_counted``.
    """

    def __init__(
        self,
        grouped: tuple[int, list[int]],
        found: Sequence[OutputStatistics],
        gots: Sequence[torch.Tensor],
        eagers: Sequence[torch.Tensor],
    ) -> None:
        """See the class.

        Nothing is known of other runs yet: ``_nearest`` is eager's first run.
        """
        self._places, self._listed = grouped
        self._found = [found[k] for k in self._listed]
        self._got, self._eager = self._rows(gots), self._rows(eagers)
        self._nearest = [rows.clone() for rows in self._eager]
        self._distance = self._between(self._got, self._eager)
        self.differs = self._distance > 1  # beyond the tolerance
        self._varies = torch.zeros_like(self.differs)
        differing = self.differs.nonzero().flatten().tolist()
        elements = sum(rows.numel() for rows in self._got)
        # counting compares each differing item with all items, which takes too long for
        # large outputs
        self._counted = differing if len(differing) * elements <= _COUNTED else []
        self._ours, self._theirs = self._count(self._got), self._count(self._eager)

    def _rows(self, outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Each output of the group as [places, elements of one item]."""
        return [outputs[k].reshape(self._places, -1) for k in self._listed]

    def _between(
        self, ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """For each place, the largest distance between two results over all outputs of
        the group.
        """
        return torch.stack(list(map(_distance, ours, theirs, self._found))).amax(0)

    def _count(self, among: Sequence[torch.Tensor]) -> torch.Tensor:
        """For each place in ``_counted``, how many items in ``among`` equal our item
        there; 0 for other places.
        """
        counts = torch.zeros(self._places, dtype=torch.int64)
        for place in self._counted:
            our_item = [rows[place].expand_as(rows) for rows in self._got]
            # equal: within the tolerance
            counts[place] = (self._between(our_item, among) <= 1).sum()
        return counts

    def consider(self, run: Sequence[torch.Tensor]) -> None:
        """Take another run of eager, ``run``, into account.

        Where an item of ``run`` differs from that of the first run and is nearer to
        ours than the nearest so far, it becomes the nearest.
        """
        rows = self._rows(run)
        varies = self.differs & (self._between(rows, self._eager) > 1)
        distance = self._between(self._got, rows)
        nearer = varies & (distance < self._distance)
        self._varies |= varies
        self._distance = torch.where(nearer, distance, self._distance)
        self._theirs = self._theirs.maximum(self._count(rows))
        for nearest, row in zip(self._nearest, rows, strict=True):
            nearest[nearer] = row[nearer]

    @property
    def _repeats(self) -> torch.Tensor:
        """Places whose item we return several times although no run of eager does so
        more than once.
        """
        return (self._theirs == 1) & (self._ours > 1)

    @property
    def is_explained(self) -> bool:
        """Whether our item at every place is that of some run of eager."""
        return bool(((self._distance <= 1) & ~self._repeats).all())

    @property
    def is_hopeless(self) -> bool:
        """Whether some place differs although all runs of eager agree there."""
        return bool((self.differs & ~self._varies).any())

    def settled(
        self, gots: Sequence[torch.Tensor]
    ) -> Iterator[tuple[int, OutputStatistics]]:
        """(position, figures) of each output for which another run of eager is nearer;
        compared with the nearest items.

        ``gots``: our outputs. Places where we repeat an item are compared with eager's
        first run, and so count as different.
        """
        for nearest, eager in zip(self._nearest, self._eager, strict=True):
            nearest[self._repeats] = eager[self._repeats]
        for k, found, nearest, eager in zip(
            self._listed, self._found, self._nearest, self._eager, strict=True
        ):
            if count := int((_distance(nearest, eager, found) > 1).sum()):
                remark = (
                    f"compared with another run of eager at {count} of {self._places}"
                    " places, where its runs differ"
                )
                yield (
                    k,
                    compare(
                        found.name, gots[k], nearest.reshape(gots[k].shape)
                    )._replace(remark=remark),
                )


def _distance(
    ours: torch.Tensor, theirs: torch.Tensor, found: OutputStatistics
) -> torch.Tensor:
    """For each place, the largest difference between two results, in units of what the
    tolerance accepts.

    Both are [places, elements of one item]. ``found``: the figures of the output, for
    its tolerance.
    """
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    # where nothing is tolerated, as for integers, any difference counts as at least
    # 1e-30 / 1e-31, which is above 1
    error = (
        (_wide(ours) - _wide(theirs))
        .abs()
        .nan_to_num(torch.inf, torch.inf)
        .clamp_min(1e-30)
    )
    accepted = found.max_abs_value * TOLERANCES.get(found.dtype, 0.0)
    return torch.where(same, 0.0, error / (accepted or 1e-31)).amax(1)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in float64, or complex128."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
