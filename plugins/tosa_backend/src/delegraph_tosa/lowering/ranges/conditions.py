"""What the condition of a loop proves of integers in its body: ``i < n`` that ``i`` is at most ``n - 1``."""

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
    """Placeholder -> the range in which its elements are if the subgraph, which returns one truth, returns true.

    ``value_of`` gives what the nodes of the subgraph stand for.
    """
    result: Any = nodes[-1].args[0]
    (truth,) = result if isinstance(result, (tuple, list)) else (result,)
    known: dict[Node, Range] = {}
    for node, bound in _conjuncts(truth, value_of):
        known[node] = meet(known[node], bound) if node in known else bound
    return known


def _conjuncts(truth: Any, value_of: ValueOf) -> Iterator[tuple[Node, Range]]:
    """What each comparison says that has to hold for ``truth`` to."""
    truth = _same_element(truth)
    if not isinstance(truth, Node):
        return
    if truth.target in _BOTH:
        for part in truth.args[:2]:
            yield from _conjuncts(part, value_of)
    elif truth.target in _COMPARISONS:
        left, right = map(_same_element, truth.args[:2])
        below, above = _COMPARISONS[truth.target]
        yield from _compared(left, right, below, above, value_of)
        yield from _compared(right, left, _turned(above), _turned(below), value_of)


def _turned(distance: int | None) -> int | None:
    return None if distance is None else -distance


def _compared(
    left: Any, right: Any, below: int | None, above: int | None, value_of: ValueOf
) -> Iterator[tuple[Node, Range]]:
    """left <= right + below and left >= right + above, where None says nothing."""
    numbers = _numbers(right, value_of)
    if isinstance(left, Node) and left.op == "placeholder" and _is_one_integer(left) and numbers is not None:
        low, high = range_of_type(DType.INT64)
        low = low if above is None else numbers[0] + above
        high = high if below is None else numbers[1] + below
        yield left, (low, high)


def _numbers(argument: Any, value_of: ValueOf) -> Range | None:
    if type(argument) is int:
        return argument, argument
    if not isinstance(argument, Node) or not (is_size(argument) or _is_one_integer(argument)):
        return None
    value = value_of(argument)
    if not isinstance(value, Value):
        return size_range(value)
    return range_of(value) if value.dtype in INTEGERS else None


def _is_one_integer(node: Node) -> bool:
    val = node.meta.get("val")
    if not isinstance(val, torch.Tensor) or val.is_floating_point() or val.dtype is torch.bool:
        return False
    return all(type(size) is int for size in val.shape) and math.prod(val.shape) == 1


def _same_element(argument: Any) -> Any:
    """What ``argument``, of one element, is a view or a copy of."""
    while isinstance(argument, Node) and argument.target in _COPIES:
        argument = argument.args[0]
    return argument


_COPIES = frozenset(
    getattr(getattr(aten, name), overload)
    for name in "alias clone detach view reshape squeeze unsqueeze lift_fresh_copy all any".split()
    for overload in getattr(aten, name).overloads()
    if (name, overload) != ("view", "dtype")
)
"""Operators that, of one element, give that element; ``all`` and ``any`` of one truth."""
_BOTH = frozenset({aten.logical_and.default, aten.bitwise_and.Tensor, aten.__and__.Tensor})
_COMPARISONS: dict[Any, tuple[int | None, int | None]] = {
    **dict.fromkeys((aten.lt.Scalar, aten.lt.Tensor), (-1, None)),
    **dict.fromkeys((aten.le.Scalar, aten.le.Tensor), (0, None)),
    **dict.fromkeys((aten.gt.Scalar, aten.gt.Tensor), (None, 1)),
    **dict.fromkeys((aten.ge.Scalar, aten.ge.Tensor), (None, 0)),
    **dict.fromkeys((aten.eq.Scalar, aten.eq.Tensor), (0, 0)),
}
"""Comparison -> how far below, and above, the right operand the left one ends and begins; None: no end there."""
