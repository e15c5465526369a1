"""Ranges of integers that follow from how a program uses them later.

Eager raises for an index that is out of range, so in a program that runs without error
each index is in range. The proof walks backwards from an index to the tensors from
which it is computed. For example, token ids are rows of the embedding's table, and so
the program's input is in that range too, less the offset that the program adds to it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from ...ir.dynamic_sizes import range_of
from ...ir.types import DType
from ..torch_values.symbolic_sizes import shape_of_tensor, size_of
from ..torch_values.tensor_types import DTYPES
from .value_ranges import COUNTED, Range, inside, meet, range_of_type

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
        if isinstance(argument, Node) and dtype_of_node(argument) in (
            torch.int32,
            torch.int64,
        ):
            bounds[argument] = (
                meet(bounds[argument], range) if argument in bounds else range
            )


def dtype_of_node(node: Node) -> torch.dtype | None:
    """Return the element type that torch recorded for ``node``.

    None if it is no tensor.
    """
    val = node.meta.get("val")
    return val.dtype if isinstance(val, torch.Tensor) else None


def _shape(node: Node) -> list[Any]:
    """Return the sizes of the tensor ``node``; some may be known at run time only."""
    return list(shape_of_tensor(node.meta["val"].shape))


def _argument(node: Node, position: int, name: str, default: Any = None) -> Any:
    """Return the argument of a call by position or name.

    ``default`` if the call does not pass it.
    """
    return (
        node.args[position]
        if len(node.args) > position
        else node.kwargs.get(name, default)
    )


def _first_argument(node: Node, range: Range) -> ArgumentRanges:
    """Return the first argument with ``range``, for a call that keeps all elements."""
    return [(node.args[0], range)]


def _each_listed(node: Node, range: Range) -> ArgumentRanges:
    """Return each tensor of the list, as in ``cat``, with the result's ``range``."""
    return [(part, range) for part in node.args[0]]  # type: ignore[union-attr]


def _operand_of_cast(node: Node, range: Range) -> ArgumentRanges:
    """Return the operand of a cast with ``range``, if the new type is not narrower.

    [] for any other cast, which may change elements.
    """
    before, after = (DTYPES.get(dtype_of_node(n)) for n in (node.args[0], node))  # type: ignore[arg-type]
    is_lossless = (
        before in COUNTED
        and after in COUNTED
        and inside(range_of_type(before), range_of_type(after))
    )
    return [(node.args[0], range)] if is_lossless else []


def _source_of_copy(node: Node, range: Range) -> ArgumentRanges:
    """Return ``src`` of ``copy(self, src)`` with ``range``, if the cast is exact."""
    return (
        [(node.args[1], range)]
        if dtype_of_node(node) is dtype_of_node(node.args[1])  # type: ignore[arg-type]
        else []
    )


def _operands_of_sum(sign: int) -> Callable[[Node, Range], ArgumentRanges]:
    """Return the rule for ``x + c`` (sign 1) or ``x - c`` (sign -1).

    c does not depend on the program's inputs. If the result is in ``range``, x is in
    ``range`` shifted by -c or c. This holds also where int64 wraps around: a wrapped
    sum is outside of ``range``.
    """

    def rule(node: Node, range: Range) -> ArgumentRanges:
        """Return the operands' ranges for a sum ``node`` that lies in ``range``.

        [] unless it is int64 without alpha.
        """
        if (
            dtype_of_node(node) is not torch.int64
            or _argument(node, 2, "alpha", 1) != 1
        ):
            return []
        left, right = node.args
        cases = (
            [(left, right, sign)] if sign < 0 else [(left, right, 1), (right, left, 1)]
        )
        return [
            pair
            for x, c, s in cases
            for pair in _operand_of_sum(x, _range_known_beforehand(c), s, range)
        ]

    return rule


def _operand_of_sum(
    x: Any, numbers: Range | None, sign: int, range: Range
) -> ArgumentRanges:
    """Return x with its range, for which ``x + sign * c`` is in ``range``.

    This holds for every c in ``numbers``. [] if ``numbers`` is None (c is not known),
    or if no range of int64 has this property.
    """
    if numbers is None:
        return []
    low, high = sorted((sign * numbers[0], sign * numbers[1]))
    before = range[0] - low, range[1] - high
    return (
        [(x, before)]
        if before[0] <= before[1] and inside(before, range_of_type(DType.INT64))
        else []
    )


def _range_known_beforehand(argument: Any) -> Range | None:
    """Return the range of a number or tensor, or None.

    Tensors are bool, or int64 that does not depend on inputs. An arange is an int64
    tensor of this kind. None for anything else.
    """
    if type(argument) is int:
        return argument, argument
    if not isinstance(argument, Node):
        return None
    if dtype_of_node(argument) is torch.bool:
        return 0, 1
    rule = (
        _KNOWN_BEFOREHAND.get(argument.target)
        if dtype_of_node(argument) is torch.int64
        else None
    )
    if rule is not None:
        return rule(argument)
    # a view has the elements of its base
    return (
        _range_known_beforehand(argument.args[0])
        if PASSING.get(argument.target) is _first_argument
        else None
    )


def _range_of_arange(node: Node) -> Range | None:
    """Return the range of arange(end) or arange(start, end), which have no step.

    None if a bound is neither int nor size. For an arange that may be empty, the range
    still contains ``start``, because a Range cannot be empty.
    """
    # the last two of (0, end) or of (0, start, end)
    start, end = [_range_of_number(argument) for argument in [0, *node.args[:2]][-2:]]
    return (start[0], max(end[1] - 1, start[0])) if start and end else None


def _range_of_number(argument: Any) -> Range | None:
    """Return the range of an int or of a symbolic size; None for anything else."""
    number = argument.meta.get("val") if isinstance(argument, Node) else argument
    return (
        range_of(size_of(number))
        if type(number) is int or isinstance(number, torch.SymInt)
        else None
    )


def _range_of_product(node: Node) -> Range | None:
    """Return the range of a product.

    None if an operand depends on the program's inputs, or if int64 may overflow.
    """
    left, right = map(_range_known_beforehand, node.args)
    if left is None or right is None:
        return None
    corners = [x * y for x in left for y in right]
    range = min(corners), max(corners)
    return range if inside(range, range_of_type(DType.INT64)) else None


KEEPING_ALL = (
    "alias clone contiguous detach lift_fresh_copy view reshape _unsafe_view view_as"
    " unsqueeze squeeze flatten unflatten permute transpose swapaxes swapdims movedim t"
    " mT numpy_T expand expand_as broadcast_to repeat tile flip roll"
).split()
"""Operators that return exactly the elements of the first argument.

Shape and order may change.
"""


def overloads(name: str) -> list[Any]:
    """Return the overloads of the operator ``name``, without view.dtype.

    view.dtype reinterprets the bits.
    """
    packet = getattr(aten, name)
    return [
        getattr(packet, overload)
        for overload in packet.overloads()
        if (name, overload) != ("view", "dtype")
    ]


PASSING: dict[Any, Callable[[Node, Range], ArgumentRanges]] = {
    **{
        overload: _first_argument
        for name in KEEPING_ALL
        for overload in overloads(name)
    },
    **{
        overload: _each_listed
        for name in ("cat", "concat", "concatenate", "stack")
        for overload in overloads(name)
    },
    **{
        overload: _operand_of_cast
        for name in ("to", "_to_copy", "type_as")
        for overload in overloads(name)
    },
    **{overload: _operands_of_sum(1) for overload in overloads("add")},
    **{overload: _operands_of_sum(-1) for overload in overloads("sub")},
    aten.copy.default: _source_of_copy,
}
"""Maps an operator to a function from its result's range to its operands' ranges."""

_KNOWN_BEFOREHAND: dict[Any, Callable[[Node], Range | None]] = {
    **dict.fromkeys((aten.arange.default, aten.arange.start), _range_of_arange),
    **{
        overload: lambda node: _range_known_beforehand(node.args[0])
        for overload in (*overloads("to"), *overloads("_to_copy"))
    },
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
    """[(base, range)] once the ranges of all parts of ``base`` are known.

    Until then []. ``base`` is the tensor of which the call ``node`` returns a part,
    ``bound`` the range of this part. The part is added to ``parts``, the known parts of
    each tensor.
    """
    base, dim, positions = _TAKING[node.target](node)
    # which part it is depends on sizes known at run time only
    if not positions:
        return []
    axis = dim % len(_shape(base))
    size = _shape(base)[axis]
    parts.setdefault(base, []).append(Part(axis, positions, bound))
    along = [part for part in parts[base] if part.axis == axis]
    # cheaper than the next test, and enough nearly always
    if sum(len(part.positions) for part in along) < size:
        return []
    # two parts may share positions
    if len({position for part in along for position in part.positions}) < size:
        return []
    lowest = min(part.range[0] for part in along)
    highest = max(part.range[1] for part in along)
    return [(base, (lowest, highest))]


Taken = tuple[Any, int, range]
"""(tensor, axis, positions along this axis that a call returns).

The positions are empty if they are not known.
"""


def _taken_by_select(node: Node) -> Taken:
    """Return the one position that select(base, dim, index) returns."""
    arguments: Any = node.args
    base, dim, index = arguments
    return base, dim, _positions_from(base, dim, index, 1)


def _taken_by_slice(node: Node) -> Taken:
    """Return the positions that slice(base, dim, start, end, step) returns."""
    base = node.args[0]
    dim = _argument(node, 1, "dim", 0)
    ends = (
        _argument(node, 2, "start"),
        _argument(node, 3, "end"),
        _argument(node, 4, "step", 1),
    )
    return base, dim, _positions(base, dim, *ends)


def _taken_by_narrow(node: Node) -> Taken:
    """Return the positions that narrow(base, dim, start, length) returns."""
    arguments: Any = node.args
    base, dim, start, length = arguments
    return base, dim, _positions_from(base, dim, start, length)


def _taken_by_getitem(node: Node) -> Taken:
    """Return the positions of a result of split, chunk or unbind (``_CUTTING``).

    The getitem ``node`` selects the result.
    """
    call: Any = node.args[0]
    index: Any = node.args[1]
    # a result of another call: no positions
    if call.target not in _CUTTING:
        return call, 0, range(0)
    base = call.args[0]
    dim = _argument(call, _CUTTING[call.target], "dim", 0)
    # how many positions each result has: unbind returns single ones, without the axis
    sizes = [
        1 if call.target is aten.unbind.int else result.shape[dim]
        for result in call.meta["val"]
    ]
    start = sum(sizes[:index])
    return base, dim, _positions_from(base, dim, start, sizes[index])


def _positions_from(base: Any, dim: int, start: Any, length: Any) -> range:
    """Return ``length`` positions along ``dim``, starting at ``start``.

    A negative ``start`` counts from the end. Empty unless ``start`` and ``length`` are
    ints.
    """
    known = type(start) is int and type(length) is int
    # if a negative ``start`` plus length is 0, the slice's end is None: 0 would be the
    # first element
    return (
        _positions(base, dim, start, (start + length) or None)
        if known and length
        else range(0)
    )


def _positions(base: Any, dim: int, start: Any, stop: Any, step: Any = None) -> range:
    """Return the positions of the slice start:stop:step along ``dim`` of ``base``.

    Empty if one of the numbers, or the size of the axis, is known at run time only.
    """
    size = _shape(base)[dim]
    known = all(end is None or type(end) is int for end in (size, start, stop, step))
    return range(size)[start:stop:step] if known else range(0)


_CUTTING: dict[Any, int] = {
    aten.unbind.int: 1,
    **{
        overload: 2
        for name in ("split", "split_with_sizes", "chunk")
        for overload in overloads(name)
    },
}
"""Maps operators that return all parts of a tensor to the position of ``dim``."""
_TAKING: dict[Any, Callable[[Node], Taken]] = {
    aten.select.int: _taken_by_select,
    aten.slice.Tensor: _taken_by_slice,
    aten.narrow.default: _taken_by_narrow,
    operator.getitem: _taken_by_getitem,
}
"""Maps operators that return a part of a tensor to a function that finds it."""
