"""Which indices an operator takes: eager raises for any other, so a program that runs has none.

A rule says it of its arguments, by name: ``@lowers(aten.embedding.default, indexes={"indices": rows("weight")})``.
Such a bound gets the arguments of a call, by name. It returns the range of the indices, a list of ranges for a list of
tensors, or None if nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch.fx import Node

from ...ir.sizes import range_of
from ..torch_values.sizes import shape_of_tensor
from .ranges import Range

Arguments = Callable[[str], Any]
"""The argument of a call that has a name."""

Bound = Callable[[Arguments], Range | list[Range] | None]


def rows(table: str) -> Bound:
    """Indices of the first axis."""
    return lambda argument: _below(_shape(argument(table))[0])


def positions(tensor: str, dim: str, from_end: bool = False) -> Bound:
    """Indices of the axis that ``dim`` names; of all elements, if that is None. ``from_end``: -1 is the last one."""

    def bound(argument: Arguments) -> Range:
        axis, shape = argument(dim), _shape(argument(tensor)) or [1]
        return _below(math.prod(shape) if axis is None else shape[axis], from_end)

    return bound


def each_axis(tensor: str) -> Bound:
    """Of a list of indices, one tensor an axis: those of its axis, -1 is the last one."""
    return lambda argument: [_below(size, True) for size in _shape(argument(tensor))]


def elements(tensor: str) -> Bound:
    """Indices of all elements, -1 is the last one."""
    return lambda argument: _below(math.prod(_shape(argument(tensor))), True)


def beginnings(row: str) -> Bound:
    """Where parts of a row begin; an empty one may begin at its end."""
    return lambda argument: (0, range_of(math.prod(_shape(argument(row))))[1])


def places(size: str) -> Bound:
    """Places in a plane or volume of a size that is known."""

    def bound(argument: Arguments) -> Range | None:
        sizes = argument(size)
        return _below(math.prod(sizes)) if all(type(size) is int for size in sizes) else None

    return bound


def classes(count: str) -> Bound:
    """Numbers below ``count``; with -1 torch counts the classes itself."""

    def bound(argument: Arguments) -> Range | None:
        number = argument(count)
        return _below(number) if isinstance(number, int) and number > 0 else None

    return bound


def labels(scores: str, ignored: str) -> Bound:
    """Classes, for which ``scores`` [N,C,*S] or [C] has C, or the number that is ignored."""

    def bound(argument: Arguments) -> Range:
        shape, number = _shape(argument(scores)), argument(ignored)
        low, high = _below(shape[1] if len(shape) > 1 else shape[0])
        return min(low, number), max(high, number)

    return bound


def _below(size: Any, from_end: bool = False) -> Range:
    """Indices of an axis of this size, at least 0 so that the range has a number."""
    _, most = range_of(size)
    return (-most if from_end else 0), max(most - 1, 0)


def _shape(node: Node) -> list[Any]:
    return list(shape_of_tensor(node.meta["val"].shape))
