"""Run eager PyTorch again with other rounding, to excuse differences by ties.

A tie is a choice between equal scores, or one that rounding decides, such as the order
of two nearly equal scores in a top-k. Only the outputs are compared. docs/decisions/0021-eager-disagrees-with-itself.md lists errors that this
may hide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod
from typing import Any, Literal, NamedTuple

import torch
from delegraph import LoweredProgram
from delegraph.host import TOLERANCES, OutputStatistics, Verification, compare
from delegraph.runtime import Observer
from torch.utils import _pytree as pytree

from .other_rounding import OtherRounding

SHARES = (1 / 128, 1 / 1024, 1 / 8192)
"""The changes of eager's results in a run, as shares of the tolerance of their type.

The smallest one changes the last digit of a float32.
"""
_COUNTED = 100_000_000
"""The largest number of elements that are compared to count equal items."""
Kind = Literal["order", "rounding"]
_KINDS: tuple[Kind, ...] = ("order", "rounding")
_RUNS = list(product(SHARES, _KINDS, (1, -1)))
"""Share, kind and sign of each run of ``OtherRounding``."""


def verify_ties(
    lowered: LoweredProgram,
    *args: Any,
    method: str | None = None,
    runtime: str | None = None,
    observer: Observer | None = None,
    **kwargs: Any,
) -> Verification:
    """Verify like ``lowered.verify``, and accept results of other runs of eager.

    If the results differ, eager runs again, at most twelve times, with other rounding
    and another order of equal elements. If eager's own results then differ at a place,
    the figures are those of the nearest run. The remark of the output counts these
    places.
    """
    seed = torch.get_rng_state()
    actual, expected = lowered.run_both(
        args, kwargs, method=method, runtime=runtime, observer=observer
    )
    found = Verification.of(actual, expected)
    if found.agrees():
        return found

    def run(mode: OtherRounding) -> Any:
        """Return the results of eager with the same seed."""
        torch.set_rng_state(seed)
        return lowered.run_eager(args, kwargs, method=method, mode=mode)

    return Verification(settle(found.outputs, actual, expected, run))


def settle(
    found: Sequence[OutputStatistics],
    got: Any,
    eager: Any,
    run: Callable[[OtherRounding], Any],
) -> tuple[OutputStatistics, ...]:
    """Compare differing outputs again, with the nearest results of further runs.

    Returns ``found`` with these comparisons. ``got`` and ``eager`` are the results that
    ``found`` compares. ``run(mode)`` calls eager with other rounding: up to twelve
    times, but only four if a difference has another cause. If results differ in shape
    or type, ``found`` does not change.
    """
    gots = [_tensor_of(leaf) for leaf in pytree.tree_leaves(got)]
    eagers = [_tensor_of(leaf) for leaf in pytree.tree_leaves(eager)]
    for ours, theirs in zip(gots, eagers, strict=True):
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return tuple(found)
    shapes = [theirs.shape for theirs in eagers]
    groups = [_Items(group, found, gots, eagers) for group in _groups(shapes)]
    groups = [group for group in groups if group.differs.any()]
    for share, kind, sign in _RUNS:
        if all(group.is_explained for group in groups):
            break
        # if the runs with the largest share agree at a differing place, the difference
        # has another cause, and more runs do not help
        if share < SHARES[0] and any(group.is_hopeless for group in groups):
            break
        try:
            # otherwise torch.compile would keep code made in this mode
            with torch.compiler.set_stance("force_eager"):
                returned = run(OtherRounding(kind, share, sign))
        except RuntimeError:  # an assertion of the model may depend on rounding, too
            continue
        results = [_tensor_of(leaf) for leaf in pytree.tree_leaves(returned)]
        # a run with another number of items is not comparable
        if [result.shape for result in results] == shapes:
            for group in groups:
                group.consider(results)
    settled = list(found)
    for group in groups:
        for k, row in group.settled(gots):
            settled[k] = row
    return tuple(settled)


def _tensor_of(value: Any) -> torch.Tensor:
    """Return an output as a tensor; an empty one if it is neither tensor nor number."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, (bool, int, float, complex)):
        return torch.tensor(value)
    return torch.empty(0)


class _Group(NamedTuple):
    """Outputs that list the same items: the number of items, and the positions of the
    outputs.
    """

    items: int
    outputs: list[int]


def _groups(shapes: Sequence[torch.Size]) -> list[_Group]:
    """Return groups of outputs that list the same items.

    Scores [N, K], labels [N, K] and boxes [N, K, 4] are one group of N * K items, which
    change places as a whole. Outputs are grouped by the longest leading sizes that two
    of them share. An output that shares none has an item for each element, or for each
    vector along the last of three or more dimensions. Empty outputs are left out.
    """
    outputs_by_sizes: dict[torch.Size, list[int]] = {}
    for k, shape in enumerate(shapes):
        if not prod(shape):
            continue
        sizes = shape[:-1] if len(shape) > 2 else shape
        others = [other for j, other in enumerate(shapes) if j != k]
        for n in range(len(shape), 0, -1):
            leading = shape[:n]
            # a single item cannot change places
            if prod(leading) > 1 and any(other[:n] == leading for other in others):
                sizes = leading
                break
        outputs_by_sizes.setdefault(sizes, []).append(k)
    return [_Group(prod(sizes), outputs) for sizes, outputs in outputs_by_sizes.items()]


class _Items:
    """The items of a group of outputs, and eager's nearest item at each place.

    "Ours" is the lowered program's. An item is, for example, a detection: the box, the
    score and the label at one place of a list. At each place:

    - ``differs``: our item is not that of eager's first run.
    - ``_varies``: so it is, and runs of eager differ from each other, too.
    - ``_nearest`` and ``_distance``: the item of eager's runs that is nearest to ours,
      and its distance in units of the tolerance.
    - ``_ours`` and ``_theirs``: how many of our items, and at most of a run of eager,
      are equal to our item here. Only places in ``_counted`` are counted.
    """

    def __init__(
        self,
        group: _Group,
        found: Sequence[OutputStatistics],
        gots: Sequence[torch.Tensor],
        eagers: Sequence[torch.Tensor],
    ) -> None:
        """Begin with eager's first run as the nearest one."""
        self._places = group.items
        self._listed = group.outputs
        self._found = [found[k] for k in self._listed]
        self._got = self._rows(gots)
        self._eager = self._rows(eagers)
        self._nearest = [rows.clone() for rows in self._eager]
        self._distance = self._between(self._got, self._eager)
        self.differs = self._distance > 1  # beyond the tolerance
        self._varies = torch.zeros_like(self.differs)
        differing = self.differs.nonzero().flatten().tolist()
        elements = sum(rows.numel() for rows in self._got)
        # counting compares each differing item with all items: too slow for large
        # outputs
        self._counted = differing if len(differing) * elements <= _COUNTED else []
        self._ours = self._count(self._got)
        self._theirs = self._count(self._eager)

    def _rows(self, outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return each output of the group as [places, elements of one item]."""
        return [outputs[k].reshape(self._places, -1) for k in self._listed]

    def _between(
        self, ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """Return for each place the largest distance between two results."""
        return torch.stack(list(map(_distance, ours, theirs, self._found))).amax(0)

    def _count(self, among: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return for each place in ``_counted`` the number of items in ``among`` that
        equal our item; 0 for other places.
        """
        counts = torch.zeros(self._places, dtype=torch.int64)
        for place in self._counted:
            our_item = [rows[place].expand_as(rows) for rows in self._got]
            # equal: within the tolerance
            counts[place] = (self._between(our_item, among) <= 1).sum()
        return counts

    def consider(self, run: Sequence[torch.Tensor]) -> None:
        """Take the items of another run of eager that are nearer to ours than so far."""
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
        """Return the places of items that we return several times, and eager once."""
        return (self._theirs == 1) & (self._ours > 1)

    @property
    def is_explained(self) -> bool:
        """Return whether our item at every place is an item of a run of eager."""
        return bool(((self._distance <= 1) & ~self._repeats).all())

    @property
    def is_hopeless(self) -> bool:
        """Return whether a place differs although all runs of eager agree there."""
        return bool((self.differs & ~self._varies).any())

    def settled(
        self, gots: Sequence[torch.Tensor]
    ) -> Iterator[tuple[int, OutputStatistics]]:
        """Yield position and figures of outputs that are nearer to another run.

        They are compared with the nearest items. Places where we repeat an item are
        compared with eager's first run, and so count as different.
        """
        rows = zip(self._listed, self._found, self._nearest, self._eager, strict=True)
        for k, found, nearest, eager in rows:
            nearest[self._repeats] = eager[self._repeats]
            count = int((_distance(nearest, eager, found) > 1).sum())
            if count:
                remark = (
                    f"compared with another run of eager at {count} of {self._places}"
                    " places, because its runs differ there"
                )
                wanted = nearest.reshape(gots[k].shape)
                figures = compare(found.name, gots[k], wanted)
                yield k, figures._replace(remark=remark)


def _distance(
    ours: torch.Tensor, theirs: torch.Tensor, found: OutputStatistics
) -> torch.Tensor:
    """Return for each place the largest difference, in units of the tolerance.

    Both results are [places, elements of one item]. ``found``: the figures of the
    output, for its tolerance.
    """
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    error = (_wide(ours) - _wide(theirs)).abs()
    # without a tolerance, as for integers, any difference counts as at least
    # 1e-30 / 1e-31, which is above 1
    error = error.nan_to_num(torch.inf, torch.inf).clamp_min(1e-30)
    accepted = found.max_abs_value * TOLERANCES.get(found.dtype, 0.0)
    return torch.where(same, 0.0, error / (accepted or 1e-31)).amax(1)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in float64, or complex128."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
