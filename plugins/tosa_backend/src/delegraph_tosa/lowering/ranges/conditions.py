"""What the condition of a loop proves of integers in the loop's body.

``i < n`` proves that ``i`` is at most ``n - 1``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import Node

from ...ir.graph import Value
from ...ir.sizes import range_of as size_range
from ...ir.types import INTEGERS, DType
from ..torch_values.sizes import is_size
from .ranges import Range, meet, range_of, range_of_type

aten = torch.ops.aten
ValueOf = Callable[[Node], Value | int]


def assumed(nodes: Sequence[Node], value_of: ValueOf) -> dict[Node, Range]:
    """Placeholder -> the range in which its elements lie whenever the condition returns true.

    ``nodes`` are those of the condition's graph, which returns one truth value. ``value_of`` gives the value or size
    that a node stands for.
    """
    result: Any = nodes[-1].args[0]
    (truth,) = result if isinstance(result, (tuple, list)) else (result,)
    known: dict[Node, Range] = {}
    for node, bound in _conjuncts(truth, value_of):
        known[node] = meet(known[node], bound) if node in known else bound
    return known


def _conjuncts(truth: Any, value_of: ValueOf) -> Iterator[tuple[Node, Range]]:
    """The bounds that follow from ``truth`` being true: those of each comparison in it that is joined by ``and``."""
    truth = _same_element(truth)
    if not isinstance(truth, Node):
        return
    if truth.target in _BOTH:
        for part in truth.args[:2]:
            yield from _conjuncts(part, value_of)
    elif truth.target in _COMPARISONS:
        left, right = map(_same_element, truth.args[:2])
        below, above = _COMPARISONS[truth.target]
        yield from _bounds_of_left(left, right, below, above, value_of)
        yield from _bounds_of_left(right, left, _negated(above), _negated(below), value_of)


def _negated(distance: int | None) -> int | None:
    """The distance seen from the other operand."""
    return None if distance is None else -distance


def _bounds_of_left(
    left: Any, right: Any, below: int | None, above: int | None, value_of: ValueOf
) -> Iterator[tuple[Node, Range]]:
    """The range of ``left``, given left <= right + below and left >= right + above; None: there is no such bound."""
    numbers = _range_of_operand(right, value_of)
    if isinstance(left, Node) and left.op == "placeholder" and _is_one_integer(left) and numbers is not None:
        low, high = range_of_type(DType.INT64)
        low = low if above is None else numbers[0] + above
        high = high if below is None else numbers[1] + below
        yield left, (low, high)


def _range_of_operand(argument: Any, value_of: ValueOf) -> Range | None:
    """The range of an int, a size or a tensor of one integer; None for anything else."""
    if type(argument) is int:
        return argument, argument
    if not isinstance(argument, Node) or not (is_size(argument) or _is_one_integer(argument)):
        return None
    value = value_of(argument)
    if not isinstance(value, Value):
        return size_range(value)
    return range_of(value) if value.dtype in INTEGERS else None


def _is_one_integer(node: Node) -> bool:
    """Whether ``node`` is an integer tensor of one element."""
    val = node.meta.get("val")
    if not isinstance(val, torch.Tensor) or val.is_floating_point() or val.dtype is torch.bool:
        return False
    return all(type(size) is int for size in val.shape) and math.prod(val.shape) == 1


def _same_element(argument: Any) -> Any:
    """``argument``, a node of one element, traced back through views and copies to the node that made the element."""
    while isinstance(argument, Node) and argument.target in _COPIES:
        argument = argument.args[0]
    return argument


_COPIES = frozenset(
    getattr(getattr(aten, name), overload)
    for name in "alias clone detach view reshape squeeze unsqueeze lift_fresh_copy all any".split()
    for overload in getattr(aten, name).overloads()
    if (name, overload) != ("view", "dtype")
)
"""Operators that, of a tensor with one element, return that element; ``all`` and ``any`` do of one truth value."""
_BOTH = frozenset({aten.logical_and.default, aten.bitwise_and.Tensor, aten.__and__.Tensor})
_COMPARISONS: dict[Any, tuple[int | None, int | None]] = {
    **dict.fromkeys((aten.lt.Scalar, aten.lt.Tensor), (-1, None)),
    **dict.fromkeys((aten.le.Scalar, aten.le.Tensor), (0, None)),
    **dict.fromkeys((aten.gt.Scalar, aten.gt.Tensor), (None, 1)),
    **dict.fromkeys((aten.ge.Scalar, aten.ge.Tensor), (None, 0)),
    **dict.fromkeys((aten.eq.Scalar, aten.eq.Tensor), (0, 0)),
}
"""Comparison -> (below, above): left <= right + below and left >= right + above if it is true. None: no such bound."""
