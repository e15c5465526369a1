"""The indices that eager accepts, for each operator: for any other index eager raises.

A rule declares them for its arguments, by name: ``@lowers(aten.embedding.default,
indexes={"indices": rows("weight")})``. ``rows("weight")`` is a ``Bound``: a function
that computes the accepted indices of each call. All public functions here return such a
bound, and their parameters are names of the call's arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch.fx import Node

from ...ir.dynamic_sizes import range_of
from ..torch_values.symbolic_sizes import shape_of_tensor
from .value_ranges import Range

Arguments = Callable[[str], Any]
"""Returns the argument of a call by its name in the schema."""

Bound = Callable[[Arguments], Range | list[Range] | None]
"""The range of the indices that eager accepts in a call.

A list of ranges if the argument is a list of tensors. None if no range is known.
"""


def rows(table: str) -> Bound:
    """Return the bound for indices into the first axis of the argument ``table``.

    Negative ones are not accepted.
    """

    def bound(argument: Arguments) -> Range:
        """Return the indices for one call, which ``argument`` describes."""
        count = _shape(argument(table))[0]
        return _range_below(count)

    return bound


def positions(tensor: str, dim: str, from_end: bool = False) -> Bound:
    """Return the bound of indices into the axis ``dim`` of the argument ``tensor``.

    If the call's ``dim`` is None, they are indices into all elements. ``from_end``:
    whether negative indices count from the end.
    """

    def bound(argument: Arguments) -> Range:
        """Return the indices for one call, which ``argument`` describes."""
        axis = argument(dim)
        shape = _shape(argument(tensor)) or [1]  # a tensor [] has one element
        count = math.prod(shape) if axis is None else shape[axis]
        return _range_below(count, from_end)

    return bound


def each_axis(tensor: str) -> Bound:
    """Return the bounds of a list of index tensors: one range for each tensor.

    The k-th tensor has indices into axis k of the argument ``tensor``. Negative indices
    count from the end.
    """

    def bound(argument: Arguments) -> list[Range]:
        """Return the indices into each axis for one call."""
        shape = _shape(argument(tensor))
        return [_range_below(size, from_end=True) for size in shape]

    return bound


def elements(tensor: str) -> Bound:
    """Return the bound for indices into the flattened argument ``tensor``.

    Negative ones count from the end.
    """

    def bound(argument: Arguments) -> Range:
        """Return the indices for one call."""
        count = math.prod(_shape(argument(tensor)))
        return _range_below(count, from_end=True)

    return bound


def beginnings(row: str) -> Bound:
    """Return the bound of positions at which parts of the argument ``row`` begin.

    Empty parts may begin at its end.
    """

    def bound(argument: Arguments) -> Range:
        """Return the positions for one call."""
        count = math.prod(_shape(argument(row)))
        _, most = range_of(count)
        return 0, most

    return bound


def places(size: str) -> Bound:
    """Return the bound of flat indices into a plane or volume of size ``size``."""

    def bound(argument: Arguments) -> Range | None:
        """Return the indices for one call; None if a size is known at run time only."""
        sizes = argument(size)
        if not all(type(size) is int for size in sizes):
            return None
        return _range_below(math.prod(sizes))

    return bound


def classes(count: str) -> Bound:
    """Return the bound for classes, 0 .. n - 1, where the argument ``count`` is n."""

    def bound(argument: Arguments) -> Range | None:
        """Return the classes for one call.

        None for a count of -1, with which torch takes as many as there are.
        """
        number = argument(count)
        if not isinstance(number, int) or number <= 0:
            return None
        return _range_below(number)

    return bound


def labels(scores: str, ignored: str) -> Bound:
    """Return the bound for labels: a class, or the number that is ignored.

    The number is the call's argument ``ignored``. Classes are 0 .. C - 1, where C is
    the number of classes of the argument ``scores`` [N,C,*S] or [C].
    """

    def bound(argument: Arguments) -> Range:
        """Return the labels for one call."""
        shape = _shape(argument(scores))
        ignored_label = argument(ignored)
        low, high = _range_below(shape[1] if len(shape) > 1 else shape[0])
        return min(low, ignored_label), max(high, ignored_label)

    return bound


def _range_below(size: Any, from_end: bool = False) -> Range:
    """Return the valid indices of an axis of ``size``.

    With ``from_end``, they begin at -size. An empty axis gets the index 0, since a
    Range cannot be empty.
    """
    # of a size known at run time only, the largest that it can be
    _, most = range_of(size)
    least = -most if from_end else 0
    return least, max(most - 1, 0)


def _shape(node: Node) -> list[Any]:
    """Return the sizes of the tensor ``node``; some may be known at run time only."""
    return list(shape_of_tensor(node.meta["val"].shape))
