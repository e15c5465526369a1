"""Finds casts of floats to int64 that may be clamped to fit int32.

torch casts infinity to the smallest int64, which int32 cannot hold. Often no result
depends on it: the program takes the minimum with a number, or uses the integer as an
index only where a condition is true, as T5 does to sort distances into buckets. A
cast may be clamped to a range if every use of the integer has one of two effects for a
number beyond an end: it raises, or it gives the same result as for the end.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from typing import Any

import torch
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from ...ir.graph import Value
from ...ir.operators import CLAMP
from ...ir.types import FLOATS, NanMode
from ..builder import Tosa
from ..ranges.bounds import PASSING
from ..ranges.ints_as_floats import EXACT
from ..ranges.value_ranges import Range, inside, union
from ..registry import RULES, indexes_of

aten = torch.ops.aten
_CASTS = {
    aten.to.dtype,
    aten.to.dtype_layout,
    aten.to.device,
    aten.to.other,
    aten._to_copy.default,
    aten.type_as.default,
}
_PASSED = {
    aten.where.self: (1, 2),
    aten.where.ScalarOther: (1,),
    aten.where.ScalarSelf: (2,),
    aten.minimum.default: (0, 1),
    aten.maximum.default: (0, 1),
    aten.min.other: (0, 1),
    aten.max.other: (0, 1),
    aten.clamp.default: (0,),
    aten.clamp_min.default: (0,),
    aten.clamp_max.default: (0,),
}
"""Maps operators that return or clamp operands to the positions of these operands."""


def saturating_casts(
    nodes: Collection[Node], bounds: Mapping[Node, Range]
) -> dict[Node, Range]:
    """Map casts of floats to int64 to the range to which their operand may be clamped.

    Casts without such a range are left out. ``bounds`` are the ranges that uses of
    ``nodes`` prove (``bounds_of``).
    """
    uses = _Uses(nodes, bounds)
    ranges = {}
    for node in nodes:
        if node.target in _CASTS and _is_from_float(node):
            range = uses.range_of(node)
            # CLAMP has its limits as floats, so fp32 must hold both ends exactly
            if range is not None and inside(range, EXACT):
                ranges[node] = range
    return ranges


def _is_from_float(cast: Node) -> bool:
    """Return whether the call is a cast from a float type to int64."""
    operand = cast.args[0]
    before = operand.meta.get("val") if isinstance(operand, Node) else None
    after = cast.meta.get("val")
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return False
    return before.is_floating_point() and after.dtype is torch.int64


def saturated(t: Tosa, x: Value, range: Range) -> Value:
    """Return x [*S] clamped to ``range`` if it has computed floats, else x itself.

    NaN becomes the lower end of the range.
    """
    if x.dtype not in FLOATS or type(x) is not Value:
        return x
    low, high = range
    clamped = t.emit(
        CLAMP,
        (x,),
        min_val=float(low),
        max_val=float(high),
        nan_mode=NanMode.IGNORE,
    )
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
            # if a use leads back here, it gives no range
            self._known[node] = None
            self._known[node] = self._of_all_uses(node)
        return self._known[node]

    def _of_all_uses(self, node: Node) -> Range | None:
        """Return the union of the ranges from all uses; None if one gives no range."""
        ranges = []
        for user in node.users:
            if _reads_type(user, node):
                continue
            range = self._of_use(user, node)
            if range is None:
                return None
            ranges.append(range)
        return _union(ranges) if ranges else None

    def _of_use(self, user: Node, node: Node) -> Range | None:
        """Return a range to which ``user`` lets ``node`` be clamped, or None."""
        # a use outside of the delegate may do anything
        if user not in self._nodes:
            return None
        # an index has to be inside of the tensor that it indexes
        indexes = indexes_of(user)
        if indexes:
            return _range_proven_by(node, indexes, user)
        places = _PASSED.get(user.target)  # type: ignore[call-overload]
        if places is not None and _is_only_at(node, user, places):
            # ``user`` returns or clamps elements of ``node``: a range for the result is
            # also one for ``node``
            return self.range_of(user)
        if user.target not in PASSING:
            return None
        range = self.range_of(user)
        if range is None:
            return None
        return _range_proven_by(node, PASSING[user.target](user, range), user)


def _reads_type(user: Node, node: Node) -> bool:
    """Return whether the call reads only type and shape of ``node``, like full_like."""
    rule = RULES.get((user.target, Value))  # type: ignore[arg-type]
    return rule is not None and _is_only_at(node, user, rule.types)


def _is_only_at(node: Node, user: Node, places: Container[int]) -> bool:
    """Return whether ``node`` is an argument of ``user`` at no other position."""
    for position, argument in enumerate(user.args):
        if argument is node and position not in places:
            return False
    return True


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
    arguments = tree_leaves((user.args, user.kwargs))
    uses = [argument for argument in arguments if argument is node]
    if not ranges or len(ranges) != len(uses):
        return None
    return _union(ranges)
