"""Lowers ``cond`` and ``while_loop``.

A call is lowered with its subgraphs or not at all. ``cond`` and ``while_loop`` become
COND_IF and WHILE_LOOP; ``map`` and ``scan`` are in ``map_and_scan``. Calls in a subgraph
are lowered by the same rules as elsewhere, in a dry run too. If one of them is refused,
so is the whole call, and the core lowers the subgraph as a program of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from delegraph.errors import Unsupported
from torch.fx import Node

from ...ir import operators as tosa
from ...ir.dynamic_sizes import Symbol
from ...ir.formulas import Relation
from ...ir.graph import Value
from ...ir.types import INTEGERS, DType
from ..builder import Tosa
from ..builder.size_numbers import truth
from ..lazy.lazy_values import real
from ..ranges.conditions import assumed
from ..ranges.value_ranges import INT32, Range, inside, range_of, range_of_type, union
from ..registry import lowers_control
from ..torch_values.tensor_types import DTYPES, type_of
from .subgraphs import (
    Key,
    OperandOf,
    Subgraph,
    Wanted,
    argument_in,
    crossing,
    have_one_quantization,
    held,
    is_quantized,
    keys_of,
    operands_of,
    require_control_flow,
    seen,
    value_in,
)

if TYPE_CHECKING:
    from ..interpret.interpreter import Interpreter

Ranges = list[Range | None]
"""The range of each value that a loop carries; None for a value that is no integer."""


def _as_rules_see(
    t: Tosa, call: Node, outputs: Sequence[Value], like: Sequence[Value], ranges: Ranges
) -> tuple[Value, ...]:
    """Return the values that rules see for the ``outputs`` of a control flow operator.

    An output is a tensor of the graph: the integers of a quantized value, or int32 for
    an int64. Each one gets the quantization or the type of the value at its position in
    ``like``, and the range in ``ranges``. Raises Unsupported if torch recorded another
    type for a result of ``call``.
    """
    results = []
    for k, val in enumerate(call.meta["val"]):
        value = seen(t, outputs[k], like[k], ranges[k])
        recorded = type_of(val, f"result {k}")
        t.refuse_unless(
            value.type == recorded,
            f"result {k} is {value.type}, and torch expects {recorded}",
        )
        results.append(value)
    return tuple(results)


def _range_if_integer(value: Value) -> Range | None:
    """Return the range of an integer value; None for others."""
    return range_of(value) if value.dtype in INTEGERS else None


@lowers_control(torch.ops.higher_order.cond)
def cond(outer: Interpreter, call: Node) -> tuple[Value, ...]:
    """COND_IF, which needs the extension `controlflow`; its predicate is one bool"""
    t = outer.t
    predicate, if_true, if_false, operands = call.args
    condition = _predicate(outer, predicate)
    operand_of = operands_of(outer, operands)
    require_control_flow(t, tosa.COND_IF, condition)
    then = Subgraph(outer, if_true, operand_of)  # type: ignore[arg-type]
    other = Subgraph(outer, if_false, operand_of)  # type: ignore[arg-type]
    for k in range(len(then.results)):
        if not have_one_quantization(then.results[k], other.results[k]):
            # the branches return result k in different quantizations, or only one of
            # them quantized: use floats
            then.compute(k)
            other.compute(k)
    # both graphs take the same inputs: a key names an operand by position, or a size
    keys = keys_of((then, other))
    then_graph = then.graph(keys)
    else_graph = other.graph(keys)
    inputs = [crossing(t, operand_of(key)) for key in keys]
    outputs = t.control(
        tosa.COND_IF,
        [condition, *inputs],
        then_graph=then_graph,
        else_graph=else_graph,
    )
    # an integer that either branch may return is in the union of the ranges from both
    ranges = _unions(_integer_ranges(then.results), _integer_ranges(other.results))
    return _as_rules_see(t, call, outputs, then.results, ranges)


def _integer_ranges(values: Iterable[Value]) -> Ranges:
    """Return the range of each integer value; None for others."""
    return [_range_if_integer(value) for value in values]


def _unions(left: Ranges, right: Ranges) -> Ranges:
    """Return the union of each pair of ranges; None where one of them is None."""
    return [union(a, b) if a and b else None for a, b in zip(left, right, strict=True)]


def _all_inside(ranges: Ranges, limits: Ranges) -> bool:
    """Return whether each range lies in its limits; None is no integer."""
    for range, limit in zip(ranges, limits, strict=True):
        if range is not None and limit is not None and not inside(range, limit):
            return False
    return True


def _predicate(outer: Interpreter, argument: Any) -> Value:
    """Return the predicate ``argument`` as a bool value.

    Operators compute it if it is a comparison of sizes (``Relation``). Raises
    Unsupported for any other Python value, such as a size.
    """
    value = argument_in(outer, argument, "the predicate is")
    if isinstance(value, Relation):
        return truth(outer.t, value)
    return value_in(outer, argument, "the predicate is")


@lowers_control(torch.ops.higher_order.while_loop)
def while_loop(outer: Interpreter, call: Node) -> tuple[Value, ...]:
    """WHILE_LOOP, which needs the extension `controlflow`; the condition bounds int64.

    WHILE_LOOP carries everything that its two graphs use. So operands that are no
    constants, and sizes, are carried too, and the body returns them unchanged.
    """
    t = outer.t
    require_control_flow(t, tosa.WHILE_LOOP)
    loop = _Loop(outer, call)
    # decide which carried values are quantized, then find ranges of integers that hold
    # after any number of steps
    loop.settle()
    ranges = loop.invariant()
    if not t.has_int64:
        _expect_32_bits(t, loop.start, ranges)
    condition, body = loop.subgraphs(ranges)
    # both graphs take the same inputs: the carried values, then the operands and sizes
    # that the body passes on unchanged
    count = len(ranges)
    keys = keys_of((condition, body), range(count))
    passed = keys[count:]
    cond_graph = condition.graph(keys)
    body_graph = body.graph(keys, passed)
    operands = [*loop.start, *[loop.operand_of(key) for key in passed]]
    inputs = [crossing(t, operand) for operand in operands]
    results = t.control(
        tosa.WHILE_LOOP, inputs, cond_graph=cond_graph, body_graph=body_graph
    )
    return _as_rules_see(t, call, results[:count], loop.start, ranges)


def _expect_32_bits(t: Tosa, carried: Sequence[Value], ranges: Ranges) -> None:
    """Raise Unsupported unless each int64 of ``carried`` fits into 32 bits."""
    for k, limits in enumerate(ranges):
        if carried[k].dtype is DType.INT64 and limits is not None:
            why = (
                f"the loop carries an int64, value {k}, of {limits[0]} to {limits[1]},"
                " which does not fit into 32 bits; bound it in the loop's condition"
            )
            t.refuse_unless(inside(limits, INT32), why)


class _Loop:
    """A call of ``while_loop``: which carried values are quantized, ranges of integers."""

    def __init__(self, outer: Interpreter, call: Node) -> None:
        """``call`` is the node of ``while_loop(condition, body, carried, additional)``.

        ``owners`` are the nodes that fetch the subgraphs of condition and body,
        ``start`` the carried values before the first step. ``operand_of`` returns an
        operand of the call: first the carried values, then the additional ones.
        """
        self.outer = outer
        self.owners: Any = call.args[:2]
        carried: Any = call.args[2]
        additional: Any = call.args[3]
        self.start = [value_in(outer, v, "the loop carries") for v in carried]
        self.operand_of = operands_of(outer, [*carried, *additional])

    def subgraphs(
        self, ranges: Ranges, only: Wanted | None = None
    ) -> tuple[Subgraph, Subgraph]:
        """Return condition and body, lowered for carried values in ``ranges``.

        The body runs only if the condition is true, so the condition narrows the ranges
        for the body. ``only`` selects results of the body by their nodes; None selects
        all.
        """
        condition = Subgraph(self.outer, self.owners[0], self._at(ranges))
        # placeholder of the condition -> the range in which it lies if the condition is
        # true
        bounds = assumed(condition.nodes, condition.inner.value_of)
        narrowed = list(ranges)
        for node, bound in bounds.items():
            # the first placeholders are the carried values; the others are additional
            # operands, which have no range here
            k = condition.position[node]
            range = narrowed[k] if k < len(narrowed) else None
            if range is None:
                continue
            low = max(range[0], bound[0])
            high = min(range[1], bound[1])
            # an empty intersection means that the body never runs: any range is right
            # then
            if low <= high:
                narrowed[k] = (low, high)
        body = Subgraph(self.outer, self.owners[1], self._at(narrowed), only)
        return condition, body

    def _at(self, ranges: Ranges) -> OperandOf:
        """Return a function that gives the operands of condition and body.

        Carried values lie in ``ranges``. A carried value is a new value of the type and
        quantization with which the loop starts. It is never constant, even if the loop
        starts with a constant.
        """

        def operand_of(key: Key) -> Value | int:
            """Return a carried value by position, or an unchanged operand."""
            # a key from len(ranges) on, or a size, is an operand that no step changes
            if isinstance(key, Symbol) or key >= len(ranges):
                return self.operand_of(key)
            start = self.start[key]
            return seen(self.outer.t, Value(held(start).type), start, ranges[key])

        return operand_of

    def settle(self) -> None:
        """Decide which carried values are quantized, and start all others in floats.

        A carried value is quantized if the body returns it in the quantization in which
        it starts. A value that becomes float may change the other results of the body,
        so this repeats until nothing changes.
        """
        quantized = {k for k, v in enumerate(self.start) if is_quantized(v)}
        while quantized:
            ranges = _integer_ranges(self.start)
            for k in quantized:
                ranges[k] = None
            _, body = self.subgraphs(ranges)
            changed = {
                k
                for k in quantized
                if not have_one_quantization(self.start[k], body.results[k])
            }
            if not changed:
                return
            for k in changed:
                self.start[k] = real(self.outer.t, self.start[k])
            quantized -= changed

    def invariant(self) -> Ranges:
        """Return ranges of carried integers that hold before and after each step.

        Such a range is a loop invariant. The body is lowered for candidate ranges,
        first those before the first step. If its results leave them, they are widened
        to the next of ``WIDTHS``. If its results stay inside, the ranges are proven;
        then the ranges of these results are tried, which may be narrower. If no
        candidate is proven, the ranges are those of the types. None means a
        carried value that is no integer.
        """
        start = _integer_ranges(self.start)
        if not any(start):
            return start
        ranges = start
        proven: Ranges | None = None
        # each round lowers the body once; with two ends to widen, 2 * len(WIDTHS)
        # rounds nearly always suffice
        for _ in WIDTHS * 2:
            try:
                after = self._ranges_after(ranges)
            # a rule of the body may refuse a range as too wide; the ranges that are
            # proven so far still hold
            except Unsupported:
                if proven is None:
                    raise
                return proven
            # before the first step or after a step from ``ranges``, the values lie in
            # ``grown``
            grown = _unions(start, after)
            if grown == ranges:
                return ranges
            if _all_inside(grown, ranges):
                proven = ranges
                ranges = grown
            elif proven is not None:
                return proven
            else:
                wanted = _unions(grown, ranges)
                ranges = [
                    _widen(before, after) if before and after else None
                    for before, after in zip(ranges, wanted, strict=True)
                ]
        if proven is not None:
            return proven
        return [
            range_of_type(value.dtype) if range else None
            for range, value in zip(start, self.start, strict=True)
        ]

    def _ranges_after(self, ranges: Ranges) -> Ranges:
        """Return the ranges of carried values after a step from ``ranges``.

        They are None where ``ranges`` has None. Raises Unsupported if a rule of the
        body refuses them.
        """
        # only integer results of the body are lowered, so the k-th of them belongs to
        # the k-th range that is not None
        _, body = self.subgraphs(ranges, _is_integer)
        results = iter(body.results)
        return [None if r is None else range_of(next(results)) for r in ranges]


def _is_integer(node: Node) -> bool:
    """Return whether torch recorded an integer tensor for ``node``."""
    val = node.meta.get("val")
    return isinstance(val, torch.Tensor) and DTYPES.get(val.dtype) in INTEGERS


WIDTHS = (0, 7, 15, 30, 31, 63)
"""Numbers of bits, without the sign bit, to which a loop's integers are widened.

Integers of w bits lie between -2**w and 2**w - 1.
"""
_LOWER_ENDS = [-(2**width) for width in WIDTHS]
_UPPER_ENDS = [2**width - 1 for width in WIDTHS]


def _widen(before: Range, after: Range) -> Range:
    """Widen ends of ``after`` that differ from ``before`` to the next of ``WIDTHS``.

    A loop such as a counter changes a range at each step. With wide ranges instead of
    exact ones, ``invariant`` needs few rounds.
    """
    low, high = after
    if low != before[0]:
        low = max(end for end in _LOWER_ENDS if end <= low)
    if high != before[1]:
        high = min(end for end in _UPPER_ENDS if end >= high)
    return low, high
