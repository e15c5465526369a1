"""Finds casts of floats to int64 that may be clamped to fit int32.

torch casts infinity to the smallest int64, which int32 cannot hold. Often no result
depends on it: the program takes the minimum with a number, or uses the integer as an
index only where a condition is true, as T5 does to sort distances into buckets. If
every use of an integer treats all numbers beyond an end of a range like this end, or
raises for them, then the floats may be clamped to this range before the cast.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from ...ir.graph import Value
from ...ir.operators import CLAMP
from ...ir.types import FLOATS, NanMode
from ..builder import Tosa
from ..ranges.bounds import PASSING
from ..ranges.value_ranges import Range, inside, union
from ..registry import RULES, indexes_of

aten = torch.ops.aten
EXACT = (-(1 << 24), 1 << 24)
"""The range of integers that fp32 holds exactly."""

_CASTS = {aten.to.dtype, aten.to.dtype_layout, aten.to.device, aten.to.other}
_CASTS |= {aten._to_copy.default, aten.type_as.default}
_CAST_IDS = frozenset(map(id, _CASTS))
"""Ids of the casts. Hashing an operator, computed in Python, would be slow."""
_CHOICES = {
    aten.where.self: (1, 2),
    aten.where.ScalarOther: (1,),
    aten.where.ScalarSelf: (2,),
}
_MONOTONOUS = {
    **dict.fromkeys(
        (aten.minimum.default, aten.maximum.default, aten.min.other, aten.max.other),
        (0, 1),
    ),
    **dict.fromkeys(
        (aten.clamp.default, aten.clamp_min.default, aten.clamp_max.default), (0,)
    ),
}
_PASSED = {**_CHOICES, **_MONOTONOUS}
"""Maps operators that return or clamp operands to the positions of these operands."""


def saturating_casts(
    nodes: Collection[Node], bounds: Mapping[Node, Range]
) -> dict[Node, Range]:
    """Cast of floats to int64 -> the range to which its operand may be clamped.

    Other casts are left out. ``bounds`` are the ranges that uses of ``nodes`` prove
    (``bounds_of``).
    """
    casts = [n for n in nodes if id(n.target) in _CAST_IDS and _is_from_float(n)]
    if not casts:
        return {}
    uses = _Uses(nodes, bounds)
    ranges = {n: uses.range_of(n) for n in casts}
    # CLAMP has its limits as floats, so fp32 must hold both ends exactly
    return {
        n: range
        for n, range in ranges.items()
        if range is not None and inside(range, EXACT)
    }


def _is_from_float(cast: Node) -> bool:
    """Return whether the call is a cast from a float type to int64."""
    before: Any = getattr(cast.args[0], "meta", {}).get("val")
    after: Any = cast.meta.get("val")
    both = isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor)
    return both and before.is_floating_point() and after.dtype is torch.int64


def saturated(t: Tosa, x: Value, range: Range) -> Value:
    """Return x [*S] clamped to ``range`` if it has computed floats, else x itself.

    NaN becomes the lower end of the range.
    """
    if x.dtype not in FLOATS or type(x) is not Value:
        return x
    low, high = map(float, range)
    clamped = t.emit(CLAMP, (x,), min_val=low, max_val=high, nan_mode=NanMode.IGNORE)
    clamped.range = range
    return clamped


class _Uses:
    """Finds ranges to which an integer tensor can be clamped without changing results.

    Only uses among ``nodes`` count.
    """

    def __init__(self, nodes: Iterable[Node], bounds: Mapping[Node, Range]) -> None:
        """``nodes`` are the delegate's calls, ``bounds`` the ranges that uses prove."""
        self._nodes = set(nodes)
        self._bounds = bounds
        self._known: dict[Node, Range | None] = {}

    def range_of(self, node: Node) -> Range | None:
        """Return a range to which ``node`` can be clamped for all its uses, or None."""
        if node in self._bounds:
            return self._bounds[node]
        if node not in self._known:
            # no range is known unless each use gives one
            self._known[node] = None
            by_use = [
                self._of_use(user, node)
                for user in node.users
                if not _reads_type(user, node)
            ]
            known = [range for range in by_use if range is not None]
            if known and len(known) == len(by_use):
                self._known[node] = _union(known)
        return self._known[node]

    def _of_use(self, user: Node, node: Node) -> Range | None:
        """Return a range to which ``user`` lets ``node`` be clamped, or None."""
        # a use outside of the delegate may do anything
        if user not in self._nodes:
            return None
        # an index has to be inside of the tensor that it indexes
        indexes = indexes_of(user)
        if indexes:
            return _range_proven_by(node, indexes, user)
        # else a range to which the result of ``user`` can be clamped may give one for
        # ``node``
        places = _PASSED.get(user.target)  # type: ignore[call-overload]
        passes = places is not None and all(
            k in places for k, a in enumerate(user.args) if a is node
        )
        if not passes and user.target not in PASSING:
            return None
        range = self.range_of(user)
        # an operator that returns or clamps ``node``: the range of the result is one
        # for ``node`` too
        if range is None or passes:
            return range
        return _range_proven_by(node, PASSING[user.target](user, range), user)


def _reads_type(user: Node, node: Node) -> bool:
    """Return whether the call reads only type and shape of ``node``, like full_like."""
    rule = RULES.get((user.target, Value))  # type: ignore[arg-type]
    return rule is not None and all(
        k in rule.types for k, a in enumerate(user.args) if a is node
    )


def _union(ranges: Iterable[Range]) -> Range:
    """Return the union of all ranges."""
    first, *others = ranges
    for other in others:
        first = union(first, other)
    return first


def _range_proven_by(
    node: Node, argument_ranges: Iterable[tuple[Any, Range]], user: Node
) -> Range | None:
    """Return the union of the ranges of ``node`` in ``argument_ranges``.

    ``argument_ranges`` has pairs of an argument of ``user`` and its range. None unless
    there is a range for each time that ``user`` has ``node`` as an argument.
    """
    ranges = [range for argument, range in argument_ranges if argument is node]
    places = sum(a is node for a in tree_leaves((user.args, user.kwargs)))
    return _union(ranges) if ranges and len(ranges) == places else None
