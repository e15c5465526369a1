"""What the uses of integers prove of them: an index that is out of its range is an error in eager, so it is inside.

Token ids are inside of the embedding's table, whatever the program does with them before and beside that.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from ...ir.sizes import range_of
from ...ir.types import DType
from ..torch_values.sizes import shape_of_tensor, size_of
from ..torch_values.types import DTYPES
from .ranges import COUNTED, Range, inside, meet, range_of_type

aten = torch.ops.aten
Found = Iterable[tuple[Any, Range]]
"""Arguments of a call, and in which range their elements are."""


def bounds_of(nodes: Iterable[Node], indexes_of: Callable[[Node], Found]) -> dict[Node, Range]:
    """Node -> the range in which its elements are unless one of ``nodes`` raises; users come after what they use.

    ``indexes_of``: the arguments of a call that are indices, with the ranges outside of which it raises.
    """
    bounds: dict[Node, Range] = {}
    parts: dict[Node, list[Part]] = {}
    for node in reversed(list(nodes)):
        _note(bounds, indexes_of(node))
        if node not in bounds or 0 in _shape(node):  # nothing is said of what is left out
            continue
        if node.target in PASSING:
            _note(bounds, PASSING[node.target](node, bounds[node]))
        elif node.target in _TAKING:
            _note(bounds, _joined(node, bounds[node], parts))
    return bounds


def _note(bounds: dict[Node, Range], found: Found) -> None:
    for argument, range in found:
        if isinstance(argument, Node) and _dtype(argument) in (torch.int32, torch.int64):
            bounds[argument] = meet(bounds[argument], range) if argument in bounds else range


def _dtype(node: Node) -> torch.dtype | None:
    val = node.meta.get("val")
    return val.dtype if isinstance(val, torch.Tensor) else None


def _shape(node: Node) -> list[Any]:
    return list(shape_of_tensor(node.meta["val"].shape))


def _argument(node: Node, position: int, name: str, default: Any = None) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def _first(node: Node, range: Range) -> Found:
    return [(node.args[0], range)]


def _listed(node: Node, range: Range) -> Found:
    return [(part, range) for part in node.args[0]]  # type: ignore[union-attr]


def _cast(node: Node, range: Range) -> Found:
    """To a type that has all values of the one before."""
    before, after = (DTYPES.get(_dtype(n)) for n in (node.args[0], node))  # type: ignore[arg-type]
    whole = before in COUNTED and after in COUNTED and inside(range_of_type(before), range_of_type(after))
    return [(node.args[0], range)] if whole else []


def _copied(node: Node, range: Range) -> Found:
    """(self, src): the source, in self's type."""
    return [(node.args[1], range)] if _dtype(node) is _dtype(node.args[1]) else []  # type: ignore[arg-type]


def _summed(sign: int) -> Callable[[Node, Range], Found]:
    """x + c or x - c, or with a row of numbers as c. int64 that wraps around comes to where the result is not."""

    def rule(node: Node, range: Range) -> Found:
        if _dtype(node) is not torch.int64 or _argument(node, 2, "alpha", 1) != 1:
            return []
        left, right = node.args
        found = [(left, right, sign)] if sign < 0 else [(left, right, 1), (right, left, 1)]
        return [pair for x, c, s in found for pair in _less(x, _numbers(c), s, range)]

    return rule


def _less(x: Any, numbers: Range | None, sign: int, range: Range) -> Found:
    """x, if x + sign * c is in ``range`` for every c of ``numbers``."""
    if numbers is None:
        return []
    low, high = sorted((sign * numbers[0], sign * numbers[1]))
    before = range[0] - low, range[1] - high
    return [(x, before)] if before[0] <= before[1] and inside(before, range_of_type(DType.INT64)) else []


def _numbers(argument: Any) -> Range | None:
    """The range of numbers that the program makes itself, whatever its inputs are, in whatever shape."""
    if type(argument) is int:
        return argument, argument
    if not isinstance(argument, Node):
        return None
    if _dtype(argument) is torch.bool:
        return 0, 1
    made = _MADE.get(argument.target) if _dtype(argument) is torch.int64 else None
    if made is not None:
        return made(argument)
    return _numbers(argument.args[0]) if PASSING.get(argument.target) is _first else None


def _counting(node: Node) -> Range | None:
    """An arange in steps of 1."""
    start, end = [_end(given) for given in [0, *node.args[:2]][-2:]]
    return (start[0], max(end[1] - 1, start[0])) if start and end else None


def _end(given: Any) -> Range | None:
    """The range of a whole number or a size."""
    number = given.meta.get("val") if isinstance(given, Node) else given
    return range_of(size_of(number)) if type(number) is int or isinstance(number, torch.SymInt) else None


def _multiplied(node: Node) -> Range | None:
    left, right = map(_numbers, node.args)
    if left is None or right is None:
        return None
    corners = [x * y for x in left for y in right]
    found = min(corners), max(corners)
    return found if inside(found, range_of_type(DType.INT64)) else None


_WHOLE = (
    "alias clone contiguous detach lift_fresh_copy view reshape _unsafe_view view_as unsqueeze squeeze flatten"
    " unflatten permute transpose swapaxes swapdims movedim t mT numpy_T expand expand_as broadcast_to repeat tile flip"
    " roll"
).split()
"""Operators each of whose results has all elements of the first argument, and no others."""


def _overloads(name: str) -> list[Any]:
    packet = getattr(aten, name)
    return [getattr(packet, overload) for overload in packet.overloads() if (name, overload) != ("view", "dtype")]


PASSING: dict[Any, Callable[[Node, Range], Found]] = {
    **{overload: _first for name in _WHOLE for overload in _overloads(name)},
    **{overload: _listed for name in ("cat", "concat", "concatenate", "stack") for overload in _overloads(name)},
    **{overload: _cast for name in ("to", "_to_copy", "type_as") for overload in _overloads(name)},
    **{overload: _summed(1) for overload in _overloads("add")},
    **{overload: _summed(-1) for overload in _overloads("sub")},
    aten.copy.default: _copied,
}
"""Operators whose results tell of their operands."""

_MADE: dict[Any, Callable[[Node], Range | None]] = {
    **dict.fromkeys((aten.arange.default, aten.arange.start), _counting),
    **{overload: lambda node: _numbers(node.args[0]) for overload in (*_overloads("to"), *_overloads("_to_copy"))},
    **dict.fromkeys((aten.mul.Tensor, aten.mul.Scalar), _multiplied),
}
"""Operators that make int64 of what the program knows: counted, converted, multiplied."""


# ---- parts: what is known of each of them is known of the whole


class Part(NamedTuple):
    """Positions along an axis that a call takes of a tensor, and the range of what is there."""

    axis: int
    positions: range
    range: Range


def _joined(node: Node, bound: Range, parts: dict[Node, list[Part]]) -> Found:
    """What ``node`` takes a part of, if ``parts`` and this one together are all of it; else the part is noted."""
    base, dim, positions = _TAKING[node.target](node)
    if not positions:
        return []
    axis = dim % len(_shape(base))
    known = parts.setdefault(base, [])
    known.append(Part(axis, positions, bound))
    along, size = [part for part in known if part.axis == axis], _shape(base)[axis]
    if sum(len(part.positions) for part in along) < size or len({p for part in along for p in part.positions}) < size:
        return []
    return [(base, (min(part.range[0] for part in along), max(part.range[1] for part in along)))]


Taken = tuple[Any, int, range]
"""A tensor, an axis of it, and the positions along that; of sizes that are not known, none."""


def _selected(node: Node) -> Taken:
    arguments: Any = node.args
    base, dim, index = arguments
    return base, dim, _run(base, dim, index, 1)


def _sliced(node: Node) -> Taken:
    base, dim = node.args[0], _argument(node, 1, "dim", 0)
    ends = _argument(node, 2, "start"), _argument(node, 3, "end"), _argument(node, 4, "step", 1)
    return base, dim, _positions(base, dim, *ends)


def _narrowed(node: Node) -> Taken:
    arguments: Any = node.args
    base, dim, start, length = arguments
    return base, dim, _run(base, dim, start, length)


def _unpacked(node: Node) -> Taken:
    """One tensor of a list into which a call has cut another one."""
    arguments: Any = node.args
    call, index = arguments
    if call.target not in _CUTTING:
        return call, 0, range(0)
    base, dim = call.args[0], _argument(call, _CUTTING[call.target], "dim", 0)
    sizes = [1 if call.target is aten.unbind.int else part.shape[dim] for part in call.meta["val"]]
    return base, dim, _run(base, dim, sum(sizes[:index]), sizes[index])


def _run(base: Any, dim: int, start: Any, length: Any) -> range:
    """``length`` positions from ``start`` on, which may count from the end."""
    known = type(start) is int and type(length) is int
    return _positions(base, dim, start, (start + length) or None) if known and length else range(0)


def _positions(base: Any, dim: int, start: Any, stop: Any, step: Any = None) -> range:
    size = _shape(base)[dim]
    known = all(end is None or type(end) is int for end in (size, start, stop, step))
    return range(size)[start:stop:step] if known else range(0)


_CUTTING: dict[Any, int] = {
    aten.unbind.int: 1,
    **{overload: 2 for name in ("split", "split_with_sizes", "chunk") for overload in _overloads(name)},
}
"""Operators that return a list of all parts of a tensor, and the position of their argument ``dim``."""
_TAKING: dict[Any, Callable[[Node], Taken]] = {
    aten.select.int: _selected,
    aten.slice.Tensor: _sliced,
    aten.narrow.default: _narrowed,
    operator.getitem: _unpacked,
}
"""Operators whose results are parts of a tensor."""
