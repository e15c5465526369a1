"""Floats that are cast to int64: in which range the integers need to be right, given how they are used.

A cast turns infinity into the least int64, which 32 bits do not hold. Often nothing depends on it: the program goes on
with the smaller of it and a number, or uses it as an index only where a condition holds, as T5 does to sort distances
into buckets. If every use of an integer treats all numbers beyond the end of a range as it treats that end, or fails
there, then the floats may be limited to that range before the cast.
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
from ..ranges.ranges import Range, inside, union
from ..registry import RULES, indexes_of

aten = torch.ops.aten
EXACT = (-(1 << 24), 1 << 24)
"""Integers that fp32 has all of."""

_CASTS = {aten.to.dtype, aten.to.dtype_layout, aten.to.device, aten.to.other}
_CASTS |= {aten._to_copy.default, aten.type_as.default}
_CHOICES = {aten.where.self: (1, 2), aten.where.ScalarOther: (1,), aten.where.ScalarSelf: (2,)}
_MONOTONOUS = {
    **dict.fromkeys((aten.minimum.default, aten.maximum.default, aten.min.other, aten.max.other), (0, 1)),
    **dict.fromkeys((aten.clamp.default, aten.clamp_min.default, aten.clamp_max.default), (0,)),
}
_PASSED = {**_CHOICES, **_MONOTONOUS}
"""Operators whose result is one of their operands, or a number that lies between -> the positions of those operands."""


def saturating_casts(nodes: Collection[Node], bounds: Mapping[Node, Range]) -> dict[Node, Range]:
    """The casts of floats to int64 whose operand may be limited to a range -> that range.

    ``bounds`` are the ranges that uses of ``nodes`` prove (``bounds_of``).
    """
    casts = [n for n in nodes if n.target in _CASTS and _is_from_float(n)]
    uses = _Uses(nodes, bounds) if casts else None
    found = {n: range for n in casts if uses and (range := uses.range_of(n)) is not None}
    return {n: range for n, range in found.items() if inside(range, EXACT)}


def _is_from_float(cast: Node) -> bool:
    """Whether the call is a cast from a float type to int64."""
    before: Any = getattr(cast.args[0], "meta", {}).get("val")
    after: Any = cast.meta.get("val")
    both = isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor)
    return both and before.is_floating_point() and after.dtype is torch.int64


def saturated(t: Tosa, x: Value, range: Range) -> Value:
    """Floats [*S], each limited to ``range``; NaN becomes its least number."""
    if x.dtype not in FLOATS or type(x) is not Value:
        return x
    low, high = map(float, range)
    clamped = t.emit(CLAMP, (x,), min_val=low, max_val=high, nan_mode=NanMode.IGNORE)
    clamped.range = range
    return clamped


class _Uses:
    """Finds for integers in which range their uses, among ``nodes``, tell them apart."""

    def __init__(self, nodes: Iterable[Node], bounds: Mapping[Node, Range]) -> None:
        self._nodes, self._bounds = set(nodes), bounds
        self._known: dict[Node, Range | None] = {}

    def range_of(self, node: Node) -> Range | None:
        """The range beyond which every use treats an element as it treats the end of the range.

        None if there is none.
        """
        if node in self._bounds:
            return self._bounds[node]
        if node not in self._known:
            # no answer while the uses are asked, which may lead back here
            self._known[node] = None
            found = [self._of_use(user, node) for user in node.users if not _reads_type(user, node)]
            known = [range for range in found if range is not None]
            if known and len(known) == len(found):
                self._known[node] = _union(known)
        return self._known[node]

    def _of_use(self, user: Node, node: Node) -> Range | None:
        """The range in which the call ``user`` tells elements of ``node`` apart; None if that is not known."""
        if user not in self._nodes:
            return None
        indexes = indexes_of(user)
        if indexes:
            return _range_proven_by(node, indexes, user)
        places = _PASSED.get(user.target)  # type: ignore[call-overload]
        passes = places is not None and all(k in places for k, a in enumerate(user.args) if a is node)
        if not passes and user.target not in PASSING:
            return None
        range = self.range_of(user)
        if range is None or passes:
            return range
        return _range_proven_by(node, PASSING[user.target](user, range), user)


def _reads_type(user: Node, node: Node) -> bool:
    """Whether the call ``user`` takes only the type and shape of ``node``, not its elements, as full_like does."""
    rule = RULES.get((user.target, Value))  # type: ignore[arg-type]
    return rule is not None and all(k in rule.types for k, a in enumerate(user.args) if a is node)


def _union(ranges: Iterable[Range]) -> Range:
    """The union of all ranges."""
    first, *others = ranges
    for other in others:
        first = union(first, other)
    return first


def _range_proven_by(node: Node, found: Iterable[tuple[Any, Range]], user: Node) -> Range | None:
    """The range that ``found`` gives for ``node``.

    None unless it covers every place where ``user`` has it as an operand.
    """
    ranges = [range for argument, range in found if argument is node]
    places = sum(a is node for a in tree_leaves((user.args, user.kwargs)))
    return _union(ranges) if ranges and len(ranges) == places else None
