"""The indices that eager accepts, for each operator: for any other index eager raises.

A rule declares them for its arguments, by name:
``@lowers(aten.embedding.default, indexes={"indices": rows("weight")})``. The functions here return such a bound, which
is called with a function that returns a call's argument by name. The bound returns the range of the indices, a list of
ranges if the argument is a list of tensors, or None if no range is known.
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
"""Returns the argument of a call by its name in the schema."""

Bound = Callable[[Arguments], Range | list[Range] | None]


def rows(table: str) -> Bound:
    """The bound for indices into the first axis of the argument ``table``; negative ones are not accepted."""
    return lambda argument: _range_below(_shape(argument(table))[0])


def positions(tensor: str, dim: str, from_end: bool = False) -> Bound:
    """The bound for indices into the axis that a call's argument ``dim`` names, of its argument ``tensor``.

    If the call's ``dim`` is None, they are indices into all elements. ``from_end``: whether
    negative indices count from the end.
    """

    def bound(argument: Arguments) -> Range:
        """The indices that eager accepts, from the call's arguments."""
        axis, shape = argument(dim), _shape(argument(tensor)) or [1]
        return _range_below(math.prod(shape) if axis is None else shape[axis], from_end)

    return bound


def each_axis(tensor: str) -> Bound:
    """The bounds for a list of index tensors, as a list of ranges, one for each tensor.

    The k-th tensor has indices into axis k of the argument ``tensor``. Negative indices count from the end.
    """
    return lambda argument: [_range_below(size, True) for size in _shape(argument(tensor))]


def elements(tensor: str) -> Bound:
    """The bound for indices into the flattened argument ``tensor``; negative ones count from the end."""
    return lambda argument: _range_below(math.prod(_shape(argument(tensor))), True)


def beginnings(row: str) -> Bound:
    """Positions in the argument ``row`` at which parts of it begin: 0 .. its size, where only an empty part begins."""
    return lambda argument: (0, range_of(math.prod(_shape(argument(row))))[1])


def places(size: str) -> Bound:
    """Flat indices into a plane or volume with the sizes in the argument ``size``; not known unless all are ints."""

    def bound(argument: Arguments) -> Range | None:
        """The indices that eager accepts, from the call's arguments; None if a size is not an int."""
        sizes = argument(size)
        return _range_below(math.prod(sizes)) if all(type(size) is int for size in sizes) else None

    return bound


def classes(count: str) -> Bound:
    """0 .. count - 1 for the argument ``count``; not known for -1, with which torch takes the largest class."""

    def bound(argument: Arguments) -> Range | None:
        """The classes that eager accepts, from the call's arguments; None if their number is not known."""
        number = argument(count)
        return _range_below(number) if isinstance(number, int) and number > 0 else None

    return bound


def labels(scores: str, ignored: str) -> Bound:
    """0 .. C - 1 for the argument ``scores`` [N,C,*S] or [C], or the number in the argument ``ignored``."""

    def bound(argument: Arguments) -> Range:
        """The labels that eager accepts, from the call's arguments: a class, or the ignored number."""
        shape, number = _shape(argument(scores)), argument(ignored)
        low, high = _range_below(shape[1] if len(shape) > 1 else shape[0])
        return min(low, number), max(high, number)

    return bound


def _range_below(size: Any, from_end: bool = False) -> Range:
    """The indices of an axis of ``size``, with those from the end (-size ..) if ``from_end``.

    An empty axis gets the index 0, since a Range cannot be empty.
    """
    # of a size known at run time only, the largest that it can be
    _, most = range_of(size)
    return (-most if from_end else 0), max(most - 1, 0)


def _shape(node: Node) -> list[Any]:
    """The sizes of the tensor ``node``; some may be known at run time only."""
    return list(shape_of_tensor(node.meta["val"].shape))
