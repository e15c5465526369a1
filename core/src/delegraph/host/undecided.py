"""Finds where eager PyTorch disagrees with itself: equal scores that change places, decisions that depend on rounding.

It only looks at the outputs. What this may hide: docs/decisions/0021-eager-disagrees-with-itself.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod
from typing import Any, Literal

import torch
from torch.utils import _pytree as pytree

from .other_rounding import OtherRounding
from .output_statistics import TOLERANCES, OutputStatistics, compare

SHARES = (1 / 128, 1 / 1024, 1 / 8192)
"""How far results are off in a run, as shares of the tolerance of their type.

The least is the last digit of a float32.
"""
_COUNTED = 100_000_000
"""The most elements that are compared to count how often an item occurs."""
_WHATS: tuple[Literal["order", "rounding"], ...] = ("order", "rounding")
_RUNS = [(what, share, sign) for share in SHARES for what, sign in product(_WHATS, (1, -1))]


def settle(
    found: Sequence[OutputStatistics], got: Any, eager: Any, run: Callable[[OtherRounding], Any]
) -> tuple[OutputStatistics, ...]:
    """``found``, where an output that differs is compared with the nearest result that eager returns in some run.

    ``run`` calls eager in a mode: up to twelve times, but only four if a difference has another cause. ``got`` and
    ``eager`` are the results that ``found`` compares.
    """
    gots, eagers = (list(map(_tensor_of, pytree.tree_leaves(v))) for v in (got, eager))
    if any(a.shape != b.shape or a.dtype != b.dtype for a, b in zip(gots, eagers, strict=True)):
        return tuple(found)
    groups = [_Items(listed, found, gots, eagers) for listed in _items([e.shape for e in eagers])]
    groups = [group for group in groups if group.differs.any()]
    for what, share, sign in _RUNS:
        if all(g.is_explained for g in groups) or (share < SHARES[0] and any(g.is_hopeless for g in groups)):
            break
        try:
            with torch.compiler.set_stance("force_eager"):  # what is compiled in a mode is not to be called without it
                returned = run(OtherRounding(what, share, sign))
        except RuntimeError:  # what the model asserts of its values hangs on their rounding too
            continue
        others = list(map(_tensor_of, pytree.tree_leaves(returned)))
        if [o.shape for o in others] == [e.shape for e in eagers]:  # else it decided how many there are
            for group in groups:
                group.consider(others)
    settled = {k: row for group in groups for k, row in group.settled(gots)}
    return tuple(settled.get(k, row) for k, row in enumerate(found))


def _tensor_of(value: Any) -> torch.Tensor:
    """An output as a tensor; an empty one for what is no number, which was compared already."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    return torch.tensor(value) if isinstance(value, (bool, int, float, complex)) else torch.empty(0)


def _items(shapes: Sequence[torch.Size]) -> list[tuple[int, list[int]]]:
    """(Number of places, outputs that have something there), by the longest leading sizes that two outputs share.

    Scores [N, K], labels [N, K] and boxes [N, K, 4] are N x K items, which change places as a whole. An output that
    shares none has an item for each element, or for each vector along the last of three or more dimensions.
    """
    places: dict[torch.Size, list[int]] = {}
    for k, shape in enumerate(shapes):
        if not prod(shape):
            continue
        alone = shape[:-1] if len(shape) > 2 else shape
        shared = [shape[:n] for n in range(1, len(shape) + 1) if prod(shape[:n]) > 1]
        common = [lead for lead in shared for j, other in enumerate(shapes) if j != k and other[: len(lead)] == lead]
        places.setdefault(max(common, key=len, default=alone), []).append(k)
    return [(prod(lead), listed) for lead, listed in places.items()]


class _Items:
    """A group of outputs that have one item at each place, and for each place eager's item that is nearest to ours.

    ``grouped``: the number of places, and the positions of the outputs. ``gots`` are our outputs, ``eagers`` those of
    eager's first run. ``differs``: the places where both differ; ``_wavers``: those of them where runs of eager differ.
    """

    def __init__(
        self,
        grouped: tuple[int, list[int]],
        found: Sequence[OutputStatistics],
        gots: Sequence[torch.Tensor],
        eagers: Sequence[torch.Tensor],
    ) -> None:
        self._places, self._listed = grouped
        self._found = [found[k] for k in self._listed]
        self._got, self._eager = self._rows(gots), self._rows(eagers)
        self._nearest = [rows.clone() for rows in self._eager]
        self._distance = self._between(self._got, self._eager)
        self.differs = self._distance > 1
        self._wavers = torch.zeros_like(self.differs)
        changed = self.differs.nonzero().flatten().tolist()
        elements = sum(rows.numel() for rows in self._got)
        self._counted = changed if len(changed) * elements <= _COUNTED else []
        self._ours, self._theirs = self._count(self._got), self._count(self._eager)

    def _rows(self, outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """[places, elements of one item] of each output."""
        return [outputs[k].reshape(self._places, -1) for k in self._listed]

    def _between(self, ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> torch.Tensor:
        """For each place, the largest distance between two results over all outputs."""
        return torch.stack(list(map(_distance, ours, theirs, self._found))).amax(0)

    def _count(self, among: Sequence[torch.Tensor]) -> torch.Tensor:
        """For each place that differs, how many of the items ``among`` are our item there."""
        counts = torch.zeros(self._places, dtype=torch.int64)
        for place in self._counted:
            ours = [rows[place].expand_as(rows) for rows in self._got]
            counts[place] = (self._between(ours, among) <= 1).sum()
        return counts

    def consider(self, others: Sequence[torch.Tensor]) -> None:
        """Take another run of eager into account.

        Where it differs from the first, and is nearer to ours, keep its items.
        """
        rows = self._rows(others)
        wavers = self.differs & (self._between(rows, self._eager) > 1)
        distance = self._between(self._got, rows)
        nearer = wavers & (distance < self._distance)
        self._wavers |= wavers
        self._distance = torch.where(nearer, distance, self._distance)
        self._theirs = self._theirs.maximum(self._count(rows))
        for nearest, row in zip(self._nearest, rows, strict=True):
            nearest[nearer] = row[nearer]

    @property
    def _repeats(self) -> torch.Tensor:
        """Places with an item that we return several times, and eager only once in every run."""
        return (self._theirs == 1) & (self._ours > 1)

    @property
    def is_explained(self) -> bool:
        """Whether at each place our item is that of some run of eager."""
        return bool(((self._distance <= 1) & ~self._repeats).all())

    @property
    def is_hopeless(self) -> bool:
        """Whether some place differs where all runs of eager returned the same."""
        return bool((self.differs & ~self._wavers).any())

    def settled(self, gots: Sequence[torch.Tensor]) -> Iterator[tuple[int, OutputStatistics]]:
        """Position and figures of each output in which runs of eager differ, compared with the nearest items."""
        for nearest, eager in zip(self._nearest, self._eager, strict=True):
            nearest[self._repeats] = eager[self._repeats]
        for k, found, nearest, eager in zip(self._listed, self._found, self._nearest, self._eager, strict=True):
            if count := int((_distance(nearest, eager, found) > 1).sum()):
                said = f"eager disagrees with itself at {count} of {self._places} places, where it gives this as well"
                yield k, compare(found.name, gots[k], nearest.reshape(gots[k].shape))._replace(remark=said)


def _distance(ours: torch.Tensor, theirs: torch.Tensor, found: OutputStatistics) -> torch.Tensor:
    """For each place, the largest difference between ours and theirs, in units of what the tolerance accepts."""
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    error = (_wide(ours) - _wide(theirs)).abs().nan_to_num(torch.inf, torch.inf).clamp_min(1e-30)
    accepted = found.max_abs_value * TOLERANCES.get(found.dtype, 0.0)
    return torch.where(same, 0.0, error / (accepted or 1e-31)).amax(1)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in float64, or complex128."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
