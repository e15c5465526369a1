"""Finds ranges of integers in a loop's body from the loop's condition.

After ``i < n``, i is at most n - 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from ...ir.dynamic_sizes import range_of as size_range
from ...ir.graph import Value
from ...ir.types import INTEGERS, DType
from ..torch_values.symbolic_sizes import is_size
from .bounds import overloads
from .value_ranges import Range, meet, range_of, range_of_type

aten = torch.ops.aten
ValueOf = Callable[[Node], Value | int]


def assumed(nodes: Sequence[Node], value_of: ValueOf) -> dict[Node, Range]:
    """Map placeholders to their ranges if the condition returns true.

    ``nodes`` are the nodes of the condition's graph, which returns one bool.
    ``value_of`` returns the lowered value, or the size, of a node.
    """
    result: Any = nodes[-1].args[0]  # the last node is the output
    (truth,) = result if isinstance(result, (tuple, list)) else (result,)
    bounds: dict[Node, Range] = {}
    for node, bound in _conjuncts(truth, value_of):
        bounds[node] = meet(bounds[node], bound) if node in bounds else bound
    return bounds


def _conjuncts(truth: Any, value_of: ValueOf) -> Iterator[tuple[Node, Range]]:
    """Yield placeholders and ranges for the comparisons that ``truth`` implies.

    ``truth`` is the condition's result: a comparison, or several joined by ``and``;
    nothing follows from other calls.
    """
    truth = _same_element(truth)
    if not isinstance(truth, Node):
        return
    if truth.target in _BOTH:
        for part in truth.args[:2]:
            yield from _conjuncts(part, value_of)
    elif truth.target in _COMPARISONS:
        left, right = map(_same_element, truth.args[:2])
        comparison = _COMPARISONS[truth.target]
        yield from _bounds_of_left(left, right, comparison, value_of)
        yield from _bounds_of_left(right, left, comparison.swapped(), value_of)


class Comparison(NamedTuple):
    """left <= right + below and left >= right + above; None means no such bound."""

    below: int | None
    above: int | None

    def swapped(self) -> Comparison:
        """Return the same comparison with ``left`` and ``right`` exchanged.

        left <= right + d is the same as right >= left - d.
        """
        below = None if self.above is None else -self.above
        above = None if self.below is None else -self.below
        return Comparison(below, above)


def _bounds_of_left(
    left: Any, right: Any, comparison: Comparison, value_of: ValueOf
) -> Iterator[tuple[Node, Range]]:
    """Yield the range of ``left`` if ``comparison`` holds.

    With right in 0 .. 9 and left < right, left is at most 8. Yields nothing unless
    ``left`` is a placeholder of one integer and the range of ``right`` is known.
    """
    if not isinstance(left, Node) or left.op != "placeholder":
        return
    if not _is_one_integer(left):
        return
    range_of_right = _range_of_operand(right, value_of)
    if range_of_right is None:
        return
    low, high = range_of_type(DType.INT64)
    if comparison.above is not None:
        low = range_of_right[0] + comparison.above
    if comparison.below is not None:
        high = range_of_right[1] + comparison.below
    yield left, (low, high)


def _range_of_operand(argument: Any, value_of: ValueOf) -> Range | None:
    """Return the range of an int, a size or a tensor of one integer.

    None for anything else.
    """
    if type(argument) is int:
        return argument, argument
    if not isinstance(argument, Node):
        return None
    if not is_size(argument) and not _is_one_integer(argument):
        return None
    value = value_of(argument)
    if not isinstance(value, Value):
        return size_range(value)
    if value.dtype not in INTEGERS:
        return None
    return range_of(value)


def _is_one_integer(node: Node) -> bool:
    """Return whether ``node`` is an integer tensor of one element."""
    val = node.meta.get("val")
    if not isinstance(val, torch.Tensor):
        return False
    if val.is_floating_point() or val.dtype is torch.bool:
        return False
    return all(type(size) is int for size in val.shape) and math.prod(val.shape) == 1


def _same_element(argument: Any) -> Any:
    """Return the node that computed the element of a one-element tensor.

    Skips views and copies. An argument that is no node is returned as it is.
    """
    while isinstance(argument, Node) and argument.target in _COPIES:
        argument = argument.args[0]
    return argument


_COPIES = frozenset(
    overloads(
        "alias",
        "all",
        "any",
        "clone",
        "detach",
        "lift_fresh_copy",
        "reshape",
        "squeeze",
        "unsqueeze",
        "view",
    )
)
"""Operators that return the same element if their operand has one element.

For ``all`` and ``any`` it is a bool.
"""
_BOTH = frozenset(
    {aten.logical_and.default, aten.bitwise_and.Tensor, aten.__and__.Tensor}
)
_COMPARISONS: dict[Any, Comparison] = {
    **dict.fromkeys((aten.lt.Scalar, aten.lt.Tensor), Comparison(-1, None)),
    **dict.fromkeys((aten.le.Scalar, aten.le.Tensor), Comparison(0, None)),
    **dict.fromkeys((aten.gt.Scalar, aten.gt.Tensor), Comparison(None, 1)),
    **dict.fromkeys((aten.ge.Scalar, aten.ge.Tensor), Comparison(None, 0)),
    **dict.fromkeys((aten.eq.Scalar, aten.eq.Tensor), Comparison(0, 0)),
}
"""Maps a comparison to the bounds that it implies if true."""
