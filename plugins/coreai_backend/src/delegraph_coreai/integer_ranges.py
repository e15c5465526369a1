"""Ranges of integers: the least and the greatest element that a value can have.

Core AI has no int64. A call that computes int64 is accepted if its operands and results
fit 32 bits, whatever the inputs are. This is proved by interval arithmetic in the order
of the graph: if x is in [0, 9], then x * 2 - 1 is in [-1, 17]. An input that is an
index has the range of its axis: eager raises an error for other indices, and so does
delegraph (``mark_indices``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from math import prod
from typing import Any, NamedTuple

import torch
from delegraph_programs import (
    bound_arguments,
    constant_tensor,
    placeholders,
    why_no_bytes,
    written_targets,
)
from delegraph_programs.call_names import INDEXED
from delegraph_programs.exported_program import CONSTANT_KINDS
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

from .border_types import operator_stem


class Range(NamedTuple):
    """The least and the greatest element, both included."""

    low: int
    high: int

    def fits(self, bits: int = 32) -> bool:
        """Return whether all elements fit signed integers of ``bits`` bits."""
        end = 1 << bits - 1
        return -end <= self.low and self.high < end

    def joined(self, other: Range) -> Range:
        """Return the smallest range that contains both."""
        return Range(min(self.low, other.low), max(self.high, other.high))


INT64 = Range(-(2**63), 2**63 - 1)
SIZES = Range(0, 2**31 - 1)
"""The range of sizes of tensors, and of positions along their axes."""
_MOVES = frozenset(
    "view reshape flatten _unsafe_view permute transpose t squeeze unsqueeze expand"
    " slice select unbind clone split split_with_sizes alias lift_fresh_copy detach"
    " gather index index_select embedding flip roll repeat tril triu amax amin max min"
    " to _to_copy getitem unfold".split()
)
"""Operators that return elements of their first operand; ``tril`` also zeros."""
_FILLS = frozenset(
    "full_like zeros_like ones_like new_full new_zeros new_ones full zeros ones"
    " scalar_tensor fill".split()
)
_JOINS = frozenset(
    "copy cat stack where masked_fill scatter slice_scatter select_scatter index_put"
    " constant_pad_nd".split()
)
"""Operators that return elements of all their operands, and literals."""


def ranges_of(program: ExportedProgram) -> Ranges:
    """Return the ranges of the values of a program.

    Those of constants are computed now, other ones on demand.
    """
    ranges = Ranges()
    written = written_targets(program)
    for node, spec in placeholders(program):
        if spec.kind not in CONSTANT_KINDS or spec.target in written:
            continue
        tensor = constant_tensor(program, spec)
        has_elements = why_no_bytes(tensor) is None and tensor.numel() > 0
        if has_elements and tensor.dtype in (torch.int32, torch.int64):
            ranges.known[node] = Range(int(tensor.min()), int(tensor.max()))
    return ranges


class Ranges:
    """The ranges of values, computed on demand. ``known``: those computed so far."""

    def __init__(self) -> None:
        self.known: dict[Node, Range] = {}

    def __getitem__(self, node: Node) -> Range:
        """Return the range of an integer value.

        Read ranges in the order of the graph: this recurses to unknown operands.
        """
        if node not in self.known:
            type_range = _range_of_type(node)
            found = type_range
            if INDEXED in node.meta:
                found = Range(*node.meta[INDEXED])
            elif node.op == "call_function":
                found = self._of_call(node) or type_range
            # a result that leaves the range of its type wraps, so it can be anything
            is_inside = type_range.low <= found.low and found.high <= type_range.high
            self.known[node] = found if is_inside else type_range
        return self.known[node]

    def _of_call(self, node: Node) -> Range | None:
        """Return the range of a result that does not wrap; None if it is not known."""
        name = operator_stem(node)
        rule = _RULES.get(name)
        if rule is not None:
            return rule(self, node)
        if name in _MOVES:
            source: Any = node.args[0]
            if _is_float(source):
                return None
            if name == "getitem":
                return self._of_item(node)
            # these set the other triangle to zeros
            if name in ("tril", "triu"):
                return self[source].joined(Range(0, 0))
            return self[source]
        if name in _FILLS | _JOINS:
            return self._of_elements(node, name)
        return None

    def _of_item(self, node: Node) -> Range:
        """Return the range of one of the results of a call."""
        source: Any = node.args[0]
        name = operator_stem(source)
        first: Any = source.args[0]
        if name in ("topk", "sort", "max", "min", "max_pool2d_with_indices"):
            if node.args[1] == 1:
                # the second result is positions
                return SIZES
        keeps_elements = name in _MOVES or name in ("topk", "sort")
        if keeps_elements and isinstance(first, Node) and not _is_float(first):
            return self[first]
        return _range_of_type(node)

    def _of_elements(self, node: Node, name: str) -> Range | None:
        """Return the range of elements that come from operands and literals."""
        if name in ("zeros_like", "new_zeros", "zeros"):
            return Range(0, 0)
        if name in ("ones_like", "new_ones", "ones"):
            return Range(1, 1)
        given = bound_arguments(node)
        if given.get("accumulate") or given.get("reduce"):
            return None
        sources = {
            "copy": "src",
            "cat": "tensors",
            "stack": "tensors",
            "where": "self other",
            "masked_fill": "self value",
            "scatter": "self src value",
            "slice_scatter": "self src",
            "select_scatter": "self src",
            "index_put": "self values",
            "constant_pad_nd": "self value",
            "scalar_tensor": "s",
            "fill": "value",
        }.get(name, "fill_value")
        leaves = pytree.tree_leaves([given.get(key) for key in sources.split()])
        return _joined(self.of(leaf) for leaf in leaves if leaf is not None)

    def of(self, value: Any) -> Range | None:
        """Return the range of an operand or a literal; None for floats."""
        if isinstance(value, Node):
            if isinstance(value.meta.get("val"), torch.SymInt):
                return SIZES
            return None if _is_float(value) else self[value]
        if isinstance(value, float) and not value.is_integer():
            return None
        if isinstance(value, (bool, int, float)):
            return Range(int(value), int(value))
        return None


def _joined(found: Iterable[Range | None]) -> Range | None:
    """Return the smallest range that contains all; None if one is not known."""
    joined: Range | None = None
    for part in found:
        if part is None:
            return None
        joined = part if joined is None else joined.joined(part)
    return joined


def _operands(ranges: Ranges, node: Node) -> list[Range | None]:
    """Return the ranges of the first two operands."""
    return [ranges.of(value) for value in node.args[:2]]


def _corners(combine: Callable[[int, int], int]) -> Callable[..., Range | None]:
    """Return the rule for an operator whose extremes are at the ends of both ranges.

    Example: the product of [-2, 3] and [4, 5] lies between -2 * 5 and 3 * 5.
    """

    def rule(ranges: Ranges, node: Node) -> Range | None:
        left, right = _operands(ranges, node)
        alpha = bound_arguments(node).get("alpha", 1) if node.args[2:] else 1
        alpha = node.kwargs.get("alpha", alpha)
        if left is None or right is None or alpha != 1:
            return None
        results = [combine(x, y) for x, y in product(left, right)]
        return Range(min(results), max(results))

    return rule


def _negated(ranges: Ranges, node: Node) -> Range | None:
    found = ranges.of(node.args[0])
    return found and Range(-found.high, -found.low)


def _absolute(ranges: Ranges, node: Node) -> Range | None:
    found = ranges.of(node.args[0])
    return found and Range(0, max(abs(found.low), abs(found.high)))


def _inverted(ranges: Ranges, node: Node) -> Range | None:
    """Return the range of ~x, which is -1 - x."""
    found = ranges.of(node.args[0])
    return found and Range(~found.high, ~found.low)


def _clamped(ranges: Ranges, node: Node) -> Range | None:
    given = bound_arguments(node)
    found = ranges.of(given["self"])
    low = ranges.of(given.get("min"))
    high = ranges.of(given.get("max"))
    if found is None:
        return None
    if low is not None:
        found = Range(max(found.low, low.low), max(found.high, low.high))
    if high is not None:
        found = Range(min(found.low, high.low), min(found.high, high.high))
    return found


def _summed(ranges: Ranges, node: Node) -> Range | None:
    """Return the range of sums: the extremes, times the number of summands."""
    source: Any = node.args[0]
    found = ranges.of(source)
    count = prod(source.meta["val"].shape)
    if found is None or not isinstance(count, int):
        return None
    return Range(min(found.low * count, 0), max(found.high * count, 0))


def _positions(ranges: Ranges, node: Node) -> Range:
    """Return the range of positions along an axis."""
    return SIZES


def _counted(ranges: Ranges, node: Node) -> Range | None:
    """Return the range of ``arange``."""
    given = bound_arguments(node)
    return _joined([ranges.of(given.get("start", 0)), ranges.of(given["end"])])


def _quotient(ranges: Ranges, node: Node) -> Range | None:
    """Return the range of a quotient, which is no larger than its dividend.

    Rounded down, it may be lower by 1.
    """
    left, right = _operands(ranges, node)
    if left is None or right is None:
        return None
    most = max(abs(left.low), abs(left.high))
    if right.low > 0:
        return Range(min(left.low, 0), most)
    return Range(-most - 1, most)


def _remainder(ranges: Ranges, node: Node) -> Range | None:
    """Return the range of a remainder, which has the sign of the divisor."""
    divisor = _operands(ranges, node)[1]
    if divisor is None:
        return None
    most = max(abs(divisor.low), abs(divisor.high))
    return Range(-most if divisor.low < 0 else 0, most)


def _bits(ranges: Ranges, node: Node) -> Range | None:
    """Return the range of a bitwise operator.

    The result has as many bits as the longer operand. It is not negative if no operand
    is.
    """
    left, right = _operands(ranges, node)
    if left is None or right is None:
        return None
    numbers = [*left, *right]
    most = 1 << max(max(n, ~n).bit_length() for n in numbers)
    return Range(0 if min(numbers) >= 0 else -most, most - 1)


_RULES: Mapping[str, Callable[[Ranges, Node], Range | None]] = {
    "add": _corners(lambda x, y: x + y),
    "sub": _corners(lambda x, y: x - y),
    "rsub": _corners(lambda x, y: y - x),
    "mul": _corners(lambda x, y: x * y),
    "maximum": _corners(max),
    "minimum": _corners(min),
    "neg": _negated,
    "abs": _absolute,
    "bitwise_not": _inverted,
    "clamp": _clamped,
    "sum": _summed,
    "cumsum": _summed,
    "argmax": _positions,
    "argmin": _positions,
    "argsort": _positions,
    "arange": _counted,
    "floor_divide": _quotient,
    "div": _quotient,
    "remainder": _remainder,
    "fmod": _quotient,
    "bitwise_and": _bits,
    "bitwise_or": _bits,
    "bitwise_xor": _bits,
}
"""Name of an operator -> the rule for the range of its result."""


def integer_values(node: Node) -> Iterator[torch.dtype]:
    """Yield the types of integer tensors among the values of a node."""
    for val in pytree.tree_leaves(node.meta.get("val")):
        if isinstance(val, torch.Tensor) and not val.dtype.is_floating_point:
            if val.dtype is not torch.bool:
                yield val.dtype


def _is_float(value: Any) -> bool:
    """Return whether an argument is a tensor of floats.

    A literal counts as one, because only tensors of integers have a range here.
    """
    if not isinstance(value, Node):
        return True
    val = value.meta.get("val")
    if isinstance(val, torch.Tensor):
        return val.dtype.is_floating_point or val.dtype.is_complex
    return False


def _range_of_type(node: Node) -> Range:
    """Return the range of the dtype of a value; that of int64 for floats and sizes."""
    val = node.meta.get("val")
    dtype = val.dtype if isinstance(val, torch.Tensor) else torch.int64
    if dtype is torch.bool:
        return Range(0, 1)
    if dtype.is_floating_point or dtype.is_complex:
        return INT64
    info = torch.iinfo(dtype)
    return Range(info.min, info.max)
