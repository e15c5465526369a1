"""Ranges of integers that follow from how a program uses them later.

Eager raises for an index that is out of range, so in a program that runs without error
each index is in range. The proof walks backwards from an index to the tensors from
which it is computed. For example, token ids are rows of the embedding's table, and so
the program's input is in that range too, less the offset that the program adds to it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from ...ir.dynamic_sizes import range_of
from ...ir.types import DType
from ..torch_values.symbolic_sizes import shape_of_tensor, size_of
from ..torch_values.tensor_types import DTYPES
from .value_ranges import (
    COUNTED,
    Range,
    inside,
    meet,
    range_of_corners,
    range_of_type,
    union,
)

aten = torch.ops.aten
ArgumentRanges = Iterable[tuple[Any, Range]]
"""Pairs: an argument of a call, and the range in which its elements lie."""


def bounds_of(
    nodes: Iterable[Node], indexes_of: Callable[[Node], ArgumentRanges]
) -> dict[Node, Range]:
    """Map nodes to the range of their elements, if no call raises an error.

    ``nodes`` are in graph order, which is walked backwards. ``indexes_of`` gives the
    arguments of a call that are indices, each with the range outside of which the call
    raises.
    """
    bounds: dict[Node, Range] = {}
    parts: dict[Node, list[Part]] = {}
    for node in reversed(list(nodes)):
        _narrow_each(bounds, indexes_of(node))
        # every element of an empty result is in any range, so it proves nothing of the
        # operands
        if node not in bounds or 0 in _shape(node):
            continue
        if node.target in PASSING:
            _narrow_each(bounds, PASSING[node.target](node, bounds[node]))
        elif node.target in _TAKING:
            _narrow_each(bounds, _whole_from_parts(node, bounds[node], parts))
    return bounds


def _narrow_each(bounds: dict[Node, Range], argument_ranges: ArgumentRanges) -> None:
    """Narrow the ``bounds`` of integer arguments to their ranges."""
    for argument, range in argument_ranges:
        if not isinstance(argument, Node):
            continue
        if dtype_of_node(argument) not in (torch.int32, torch.int64):
            continue
        if argument in bounds:
            bounds[argument] = meet(bounds[argument], range)
        else:
            bounds[argument] = range


def dtype_of_node(node: Node) -> torch.dtype | None:
    """Return the element type that torch recorded for ``node``.

    None if it is no tensor.
    """
    val = node.meta.get("val")
    return val.dtype if isinstance(val, torch.Tensor) else None


def _shape(node: Node) -> list[Any]:
    """Return the sizes of the tensor ``node``; some may be known at run time only."""
    return list(shape_of_tensor(node.meta["val"].shape))


def argument_of_call(node: Node, position: int, name: str, default: Any = None) -> Any:
    """Return an argument of the call ``node``, or ``default`` if it is not passed.

    The call passes it at ``position`` or as the keyword ``name``.
    """
    if position < len(node.args):
        return node.args[position]
    return node.kwargs.get(name, default)


def _first_argument(node: Node, range: Range) -> ArgumentRanges:
    """Return the first argument with ``range``, for a call that keeps all elements."""
    return [(node.args[0], range)]


def _each_listed(node: Node, range: Range) -> ArgumentRanges:
    """Return each tensor of the list, as in ``cat``, with the result's ``range``."""
    return [(part, range) for part in node.args[0]]  # type: ignore[union-attr]


def _first_node(node: Node) -> Node:
    """Return the first argument of a call that takes a tensor first."""
    (first, *_) = node.args
    assert isinstance(first, Node)
    return first


def _operand_of_cast(node: Node, range: Range) -> ArgumentRanges:
    """Return the operand of a cast with ``range``, if the new type is not narrower.

    [] for any other cast, which may change elements.
    """
    operand = _first_node(node)
    before = DTYPES.get(dtype_of_node(operand))  # type: ignore[arg-type]
    after = DTYPES.get(dtype_of_node(node))  # type: ignore[arg-type]
    if before not in COUNTED or after not in COUNTED:
        return []
    if not inside(range_of_type(before), range_of_type(after)):
        return []
    return [(operand, range)]


def _source_of_copy(node: Node, range: Range) -> ArgumentRanges:
    """Return ``src`` of ``copy(self, src)`` with ``range``, if the cast is exact."""
    source: Any = node.args[1]
    if dtype_of_node(node) is not dtype_of_node(source):
        return []
    return [(source, range)]


def _operands_of_add(node: Node, range: Range) -> ArgumentRanges:
    """Return the operands of ``x + c``, for each that is not known beforehand.

    See ``_operand_of_sum``.
    """
    if not _is_plain_int64(node):
        return []
    left, right = node.args
    of_left = _operand_of_sum(left, _range_known_beforehand(right), 1, range)
    of_right = _operand_of_sum(right, _range_known_beforehand(left), 1, range)
    return [*of_left, *of_right]


def _operand_of_sub(node: Node, range: Range) -> ArgumentRanges:
    """Return x of ``x - c`` with its range; see ``_operand_of_sum``."""
    if not _is_plain_int64(node):
        return []
    left, right = node.args
    return _operand_of_sum(left, _range_known_beforehand(right), -1, range)


def _is_plain_int64(node: Node) -> bool:
    """Return whether a call of add or sub computes int64 and has no factor alpha."""
    return (
        dtype_of_node(node) is torch.int64
        and argument_of_call(node, 2, "alpha", 1) == 1
    )


def _operand_of_sum(
    x: Any, numbers: Range | None, sign: int, range: Range
) -> ArgumentRanges:
    """Return x with its range, for which ``x + sign * c`` is in ``range``.

    c is any integer in the range ``numbers``: with c in 1 .. 2 and x + c in 0 .. 9, x is
    in -2 .. 8. Returns [] if ``numbers`` is None (not known), or if no range of int64
    has this property. The range of x holds even if int64 may wrap around: a wrapped sum
    is outside of ``range``.
    """
    if numbers is None:
        return []
    low, high = sorted((sign * numbers[0], sign * numbers[1]))
    least = range[0] - low
    most = range[1] - high
    if least > most or not inside((least, most), range_of_type(DType.INT64)):
        return []
    return [(x, (least, most))]


def _range_known_beforehand(argument: Any) -> Range | None:
    """Return the range of a number, a bool tensor or a tensor such as an arange.

    Returns None for a tensor of integers that depend on the program's inputs.
    """
    if type(argument) is int:
        return argument, argument
    if not isinstance(argument, Node):
        return None
    dtype = dtype_of_node(argument)
    if dtype is torch.bool:
        return 0, 1
    if dtype is torch.int64 and argument.target in _KNOWN_BEFOREHAND:
        rule = _KNOWN_BEFOREHAND[argument.target]
        return rule(argument)
    if PASSING.get(argument.target) is _first_argument:
        # a view has the elements of its base
        return _range_of_first(argument)
    return None


def _range_of_first(node: Node) -> Range | None:
    """Return ``_range_known_beforehand`` of the first argument of a call."""
    return _range_known_beforehand(node.args[0])


def _range_of_arange(node: Node) -> Range | None:
    """Return the range of arange(end) or arange(start, end), which have no step.

    None if a bound is neither int nor size. For an arange that may be empty, the range
    still contains ``start``, because a Range cannot be empty.
    """
    start: Any = 0
    end = node.args[0]
    if len(node.args) > 1:
        start, end = node.args[:2]
    range_of_start = _range_of_number(start)
    range_of_end = _range_of_number(end)
    if range_of_start is None or range_of_end is None:
        return None
    least = range_of_start[0]
    most = range_of_end[1] - 1
    return least, max(most, least)


def _range_of_number(argument: Any) -> Range | None:
    """Return the range of an int or of a symbolic size; None for anything else."""
    number = argument.meta.get("val") if isinstance(argument, Node) else argument
    if type(number) is int or isinstance(number, torch.SymInt):
        return range_of(size_of(number))
    return None


def _range_of_product(node: Node) -> Range | None:
    """Return the range of a product.

    None if an operand depends on the program's inputs, or if int64 may overflow.
    """
    left, right = map(_range_known_beforehand, node.args)
    if left is None or right is None:
        return None
    product = range_of_corners(operator.mul, left, right)
    if not inside(product, range_of_type(DType.INT64)):
        return None
    return product


KEEPING_ALL = (
    "alias clone contiguous detach lift_fresh_copy view reshape _unsafe_view view_as"
    " unsqueeze squeeze flatten unflatten permute transpose swapaxes swapdims movedim t"
    " mT numpy_T expand expand_as broadcast_to repeat tile flip roll"
).split()
"""Operators that return exactly the elements of the first argument.

Shape and order may change.
"""


def overloads(*names: str) -> list[Any]:
    """Return the overloads of the operators ``names``, without view.dtype.

    view.dtype reinterprets the bits.
    """
    found: list[Any] = []
    for name in names:
        packet = getattr(aten, name)
        found += [getattr(packet, overload) for overload in packet.overloads()]
    return [overload for overload in found if overload is not aten.view.dtype]


PASSING: dict[Any, Callable[[Node, Range], ArgumentRanges]] = {
    **dict.fromkeys(overloads(*KEEPING_ALL), _first_argument),
    **dict.fromkeys(overloads("cat", "concat", "concatenate", "stack"), _each_listed),
    **dict.fromkeys(overloads("to", "_to_copy", "type_as"), _operand_of_cast),
    **dict.fromkeys(overloads("add"), _operands_of_add),
    **dict.fromkeys(overloads("sub"), _operand_of_sub),
    aten.copy.default: _source_of_copy,
}
"""Maps an operator to a function from its result's range to its operands' ranges."""

_KNOWN_BEFOREHAND: dict[Any, Callable[[Node], Range | None]] = {
    **dict.fromkeys((aten.arange.default, aten.arange.start), _range_of_arange),
    **dict.fromkeys(overloads("to", "_to_copy"), _range_of_first),
    **dict.fromkeys((aten.mul.Tensor, aten.mul.Scalar), _range_of_product),
}
"""Operator with an int64 result -> its rule for ``_range_known_beforehand``."""


# ---- parts: if the ranges of all parts of a tensor are known, so is its own, as where
# a row of token ids is split


class Part(NamedTuple):
    """A part of a tensor that a call returns: ``positions`` along ``axis``.

    ``range`` holds for the elements there.
    """

    axis: int
    positions: range
    range: Range


def _whole_from_parts(
    node: Node, bound: Range, parts: dict[Node, list[Part]]
) -> ArgumentRanges:
    """Return [(base, range)] if the ranges of all parts of ``base`` are known, else [].

    ``base`` is the tensor of which the call ``node`` returns a part, ``bound`` is the
    range of this part. The part is added to ``parts``, the known parts of each tensor.
    """
    taken = _TAKING[node.target](node)
    if taken is None:
        return []
    shape = _shape(taken.base)
    axis = taken.dim % len(shape)
    parts.setdefault(taken.base, []).append(Part(axis, taken.positions, bound))
    along = [part for part in parts[taken.base] if part.axis == axis]
    # this nearly always decides, and is cheaper than counting positions
    if sum(len(part.positions) for part in along) < shape[axis]:
        return []
    # two parts may share positions
    covered: set[int] = set()
    for part in along:
        covered.update(part.positions)
    if len(covered) < shape[axis]:
        return []
    whole = reduce(union, [part.range for part in along])
    return [(taken.base, whole)]


class Taken(NamedTuple):
    """The part of the tensor ``base`` that a call returns: positions along ``dim``."""

    base: Any
    dim: int
    positions: range


def _taken_by_select(node: Node) -> Taken | None:
    """Return the one position that select(base, dim, index) returns."""
    arguments: Any = node.args
    base, dim, index = arguments
    return _taken_from(base, dim, index, length=1)


def _taken_by_slice(node: Node) -> Taken | None:
    """Return the positions that slice(base, dim, start, end, step) returns."""
    base = node.args[0]
    dim = argument_of_call(node, 1, "dim", 0)
    start = argument_of_call(node, 2, "start")
    end = argument_of_call(node, 3, "end")
    step = argument_of_call(node, 4, "step", 1)
    return _taken(base, dim, slice(start, end, step))


def _taken_by_narrow(node: Node) -> Taken | None:
    """Return the positions that narrow(base, dim, start, length) returns."""
    arguments: Any = node.args
    base, dim, start, length = arguments
    return _taken_from(base, dim, start, length)


def _taken_by_getitem(node: Node) -> Taken | None:
    """Return the positions of a result of split, chunk or unbind (``_CUTTING``).

    The getitem ``node`` selects the result. None for a result of another call.
    """
    call: Any = node.args[0]
    index: Any = node.args[1]
    if call.target not in _CUTTING:
        return None
    base = call.args[0]
    dim = argument_of_call(call, _CUTTING[call.target], "dim", 0)
    results = call.meta["val"]
    if call.target is aten.unbind.int:
        # single positions, without the axis
        sizes = [1] * len(results)
    else:
        sizes = [result.shape[dim] for result in results]
    return _taken_from(base, dim, sum(sizes[:index]), sizes[index])


def _taken_from(base: Any, dim: int, start: Any, length: Any) -> Taken | None:
    """Return ``length`` positions along ``dim``, starting at ``start``.

    A negative ``start`` counts from the end. None unless ``start`` and ``length`` are
    ints.
    """
    if type(start) is not int or type(length) is not int or length == 0:
        return None
    # if a negative ``start`` plus length is 0, the slice's end is None: 0 would be the
    # first element
    end = (start + length) or None
    return _taken(base, dim, slice(start, end))


def _taken(base: Any, dim: int, positions: slice) -> Taken | None:
    """Return the positions of a slice along ``dim`` of ``base``.

    None if it is empty, or if one of its numbers, or the size of the axis, is known at
    run time only.
    """
    size = _shape(base)[dim]
    numbers = (size, positions.start, positions.stop, positions.step)
    if not all(number is None or type(number) is int for number in numbers):
        return None
    taken = range(size)[positions]
    return Taken(base, dim, taken) if taken else None


_CUTTING: dict[Any, int] = {
    aten.unbind.int: 1,
    **dict.fromkeys(overloads("split", "split_with_sizes", "chunk"), 2),
}
"""Maps operators that return all parts of a tensor to the position of ``dim``."""
_TAKING: dict[Any, Callable[[Node], Taken | None]] = {
    aten.select.int: _taken_by_select,
    aten.slice.Tensor: _taken_by_slice,
    aten.narrow.default: _taken_by_narrow,
    operator.getitem: _taken_by_getitem,
}
"""Maps operators that return a part of a tensor to a function that finds it.

None if it is not known which part they return.
"""
