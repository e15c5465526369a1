"""Which indices an operator takes: eager raises for any other, so a program that runs has none.

A rule says it for its arguments, by name: ``@lowers(aten.embedding.default, indexes={"indices": rows("weight")})``. The
functions here make such a bound. A bound is called with a function that returns a call's argument by name. It returns
the range of the indices, a list of ranges if the argument is a list of tensors, or None if nothing is known.
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
"""Returns the argument of a call that has a name."""

Bound = Callable[[Arguments], Range | list[Range] | None]


def rows(table: str) -> Bound:
    """Indices into the first axis of the argument ``table``."""
    return lambda argument: _range_below(_shape(argument(table))[0])


def positions(tensor: str, dim: str, from_end: bool = False) -> Bound:
    """Indices into the axis of ``tensor`` that the argument ``dim`` gives; into all its elements if that is None.

    ``from_end``: whether negative ones count from the end, so that -1 is the last one.
    """

    def bound(argument: Arguments) -> Range:
        axis, shape = argument(dim), _shape(argument(tensor)) or [1]
        return _range_below(math.prod(shape) if axis is None else shape[axis], from_end)

    return bound


def each_axis(tensor: str) -> Bound:
    """For a list of index tensors, one for each axis of ``tensor``.

    Indices into that axis, where -1 is the last one.
    """
    return lambda argument: [_range_below(size, True) for size in _shape(argument(tensor))]


def elements(tensor: str) -> Bound:
    """Indices into all elements of ``tensor``, where -1 is the last one."""
    return lambda argument: _range_below(math.prod(_shape(argument(tensor))), True)


def beginnings(row: str) -> Bound:
    """Indices at which parts of ``row`` begin; an empty part may begin at its end."""
    return lambda argument: (0, range_of(math.prod(_shape(argument(row))))[1])


def places(size: str) -> Bound:
    """Indices into a plane or volume whose sizes the argument ``size`` lists; None if one is known at run time only."""

    def bound(argument: Arguments) -> Range | None:
        sizes = argument(size)
        return _range_below(math.prod(sizes)) if all(type(size) is int for size in sizes) else None

    return bound


def classes(count: str) -> Bound:
    """Numbers below the argument ``count``. With -1 torch counts the classes itself, and nothing is known."""

    def bound(argument: Arguments) -> Range | None:
        number = argument(count)
        return _range_below(number) if isinstance(number, int) and number > 0 else None

    return bound


def labels(scores: str, ignored: str) -> Bound:
    """Numbers of classes, of which ``scores`` [N,C,*S] or [C] has C, or the number ``ignored`` that marks no class."""

    def bound(argument: Arguments) -> Range:
        shape, number = _shape(argument(scores)), argument(ignored)
        low, high = _range_below(shape[1] if len(shape) > 1 else shape[0])
        return min(low, number), max(high, number)

    return bound


def _range_below(size: Any, from_end: bool = False) -> Range:
    """The indices of an axis of this size. Even an empty one has the index 0 here, since a range cannot be empty."""
    _, most = range_of(size)
    return (-most if from_end else 0), max(most - 1, 0)


def _shape(node: Node) -> list[Any]:
    return list(shape_of_tensor(node.meta["val"].shape))
