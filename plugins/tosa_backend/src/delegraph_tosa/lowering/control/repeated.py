"""``map`` and ``scan``: the operators of all steps, or a loop of many.

TOSA has neither. Up to ``MOST_STEPS`` steps are written out, which needs no extension. More of them, or as many as only
run time says, are a WHILE_LOOP that counts its steps: GATHER takes the rows of what is mapped over, SCATTER collects
those that are made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from ...ir import operators as tosa
from ...ir.graph import Graph, Operator, Value
from ...ir.sizes import is_dynamic
from ...ir.sizes import range_of as size_range
from ...ir.types import INTEGERS, DType
from ...ir.witnesses import sizes_of, untold
from ..aten.index import movable
from ..lazy.values import real
from ..promotion import converted
from ..ranges.ranges import range_of, range_of_type
from ..registry import lowers_control
from ..torch_values.hints import int64_carried, other_target
from ..torch_values.types import refused, type_of
from .subgraphs import Key, expect_taken, lower_calls, module_of, operands_of, own, results_of, value_in

if TYPE_CHECKING:
    from ..interpret.interpreter import Interpreter

MOST_STEPS = 1024
"""Steps that are written out."""


@lowers_control(torch.ops.higher_order.map_impl)
def map_impl(outer: Interpreter, call: Node) -> tuple[Value, ...]:
    """The operators of all its steps; of more than 1024 steps, or of as many as run time says, a WHILE_LOOP.

    That needs the extension `controlflow`.
    """
    body, xs, additional = call.args
    steps = _Steps(outer, body, xs)
    if steps.are_too_many:
        return _Loop(steps, (), additional).results()
    return steps.stacked([steps.run(k, (), additional) for k in range(steps.count)])


@lowers_control(torch.ops.higher_order.scan)
def scan(outer: Interpreter, call: Node) -> tuple[Value, ...]:
    """As `map`; each step gets what the one before carries.

    In a loop that is no int64 where the target has none: it would have to fit after any number of steps, and no
    condition bounds it, as one of `while_loop` does. Steps that are written out prove one after the other what fits.
    """
    body, start, xs, additional = call.args
    steps, rows = _Steps(outer, body, xs), []
    carried: Sequence[Value] = [value_in(outer, v, "the scan carries") for v in start]  # type: ignore[union-attr]
    if steps.are_too_many:
        return _Loop(steps, carried, additional).results()
    for k in range(steps.count):
        results = steps.run(k, carried, additional)
        carried, row = results[: len(carried)], results[len(carried) :]
        rows.append(row)
    return (*carried, *steps.stacked(rows))


class _Steps:
    """The steps of ``map`` and ``scan`` over the first axis of ``xs``."""

    def __init__(self, outer: Interpreter, body: Any, xs: Any) -> None:
        self.outer, self.name, self.nodes = outer, str(body.target), list(module_of(body).graph.nodes)
        self.position = {n: k for k, n in enumerate(n for n in self.nodes if n.op == "placeholder")}
        self.xs = [value_in(outer, x, "a step takes a slice of") for x in xs]
        self.count = self.xs[0].shape[0]
        self.most = size_range(self.count)[1]
        self.are_too_many = is_dynamic(self.count) or self.count > MOST_STEPS

    def run(self, step: int, carried: Sequence[Value], additional: Any) -> list[Value]:
        """The results of one step."""
        t, source = self.outer.t, self.outer.t.source
        rows = [t.slice(x, (step, *[0] * (x.rank - 1)), (1, *x.shape[1:])) for x in self.xs]
        slices = [t.reshape(row, row.shape[1:]) for row in rows]
        given = dict(enumerate([*carried, *slices]))
        later = operands_of(self.outer, additional)

        def operand(node: Node) -> Value | int:
            k = self.position[node]
            return given[k] if k in given else later(k - len(given))

        inner = self.outer.enter(self.nodes, operand)
        lower_calls(inner, self.nodes, self.name)
        t.source = source
        return [value_in(inner, v, "a step returns") for v in results_of(self.nodes)]

    def stacked(self, rows: Sequence[Sequence[Value]]) -> tuple[Value, ...]:
        """The results of all steps, joined along a new first axis."""
        t = self.outer.t
        return tuple([t.concat([t.reshape(v, (1, *v.shape)) for v in column], 0) for column in zip(*rows, strict=True)])


class _Loop:
    """The steps as a WHILE_LOOP.

    It carries, in this order, the number of the step, what the scan carries, the rows that the steps made so far, what
    is mapped over, how many steps there are if only run time says so, and what else the body uses. No step changes the
    last three.
    """

    def __init__(self, steps: _Steps, start: Sequence[Value], additional: Any) -> None:
        self.steps, self.outer, self.t = steps, steps.outer, steps.outer.t
        self._expect_loops()
        self.start = [real(self.t, v) for v in start]
        if not self.t.has_int64 and any(v.dtype is DType.INT64 for v in self.start):
            raise refused(
                int64_carried("a scan of more steps than are written out carries an int64, which nothing bounds")
            )
        self.given = operands_of(self.outer, additional)
        made: list[Any] = list(results_of(steps.nodes)[len(start) :])
        self.made = [type_of(node.meta["val"], "what a step returns") for node in made]
        self.xs = [real(self.t, x) for x in steps.xs]
        self.taken = list(map(self._rows, self.xs))
        first, self.count = self.t.constant(0, DType.INT32, ()), self.t.constant(steps.count, DType.INT32, ())
        if self.count.constant is None:
            self.taken.append(self.count)
        self.carried = [first, *map(self.t.held, self.start), *map(self._empty, self.made)]
        self.passed: dict[Key, Value] = {}

    def _expect_loops(self) -> None:
        text = f"its {self.steps.count} steps are more than the {MOST_STEPS} that are written out without a loop"
        if is_dynamic(self.steps.count):
            text = f"it has {self.steps.count} steps, which are not written out without a loop"
        if "EXT-CONTROLFLOW" not in self.t.spec.names:
            raise refused(other_target(self.t.spec, text, [frozenset({"EXT-CONTROLFLOW"})]))
        expect_taken(self.t, tosa.WHILE_LOOP)

    def _rows(self, x: Value) -> Value:
        """x [N,*S] -> [1,N,C], as GATHER takes it"""
        x = self.t.reshape(x, (1, x.shape[0], math.prod(x.shape[1:])))
        return self.t.held(converted(self.t, x, movable(self.t, x.dtype)))

    def _empty(self, row: Any) -> Value:
        """Zeros [1,N,C] for rows of that type, as SCATTER takes them."""
        dtype = self.t.held_type(row).dtype
        shape, dtype = (1, self.steps.count, math.prod(row.shape)), movable(self.t, dtype)
        if any(map(is_dynamic, shape)):
            return self.t.tile(self.t.constant(0, dtype, (1, 1, 1)), shape)
        return self.t.constant(0, dtype, shape)

    def results(self) -> tuple[Value, ...]:
        t, n = self.t, len(self.start)
        body, rows = self._body()
        inputs = [*self.carried, *self.taken, *map(self._passing, self.passed)]
        found = t.control(tosa.WHILE_LOOP, inputs, cond_graph=self._condition(inputs), body_graph=body)
        last = [self._seen(v, like) for v, like in zip(found[1:], self.start, strict=False)]
        stacked = []
        for value, row, made in zip(found[1 + n :], rows, self.made, strict=False):
            value = t.reshape(value, (self.steps.count, *made.shape))
            value = converted(t, value, DType.BOOL) if made.dtype is DType.BOOL else value
            range = range_of(row) if made.dtype in INTEGERS else None
            stacked.append(t.seen(value, made._replace(shape=value.shape), range))
        return (*last, *stacked)

    def _seen(self, held: Value, like: Value) -> Value:
        """What the scan carries, of which no more is known than its type."""
        return self.t.seen(held, like.type, range_of_type(like.dtype) if like.dtype in INTEGERS else None)

    def _condition(self, carried: Sequence[Value]) -> Graph:
        inputs, operators = [Value(v.type) for v in carried], list[Operator]()
        count = self.count if self.count.constant else inputs[len(self.carried) + len(self.xs)]
        count.range = self.count.range
        with self.t.inside(operators):
            go = self.t.greater(count, _counter(inputs[0], self.steps.most))
        return Graph(inputs, [go], operators, f"{self.steps.name}_condition")

    def _body(self) -> tuple[Graph, list[Value]]:
        """One step, and the rows that it makes."""
        t, n, nodes = self.t, len(self.start), self.steps.nodes
        carried, taken = ([Value(v.type) for v in values] for values in (self.carried, self.taken))
        operators: list[Operator] = []
        with t.inside(operators):
            step = _counter(carried[0], self.steps.most - 1)
            index = t.reshape(step, (1, 1))
            state = [self._seen(v, like) for v, like in zip(carried[1:], self.start, strict=False)]
            slices = [self._slice(x, rows, index) for x, rows in zip(self.xs, taken, strict=False)]
            inner = self.outer.enter(nodes, lambda node: self._operand(node, [*state, *slices]))
            lower_calls(inner, nodes, self.steps.name)
            made = [real(t, value_in(inner, v, "a step returns")) for v in results_of(nodes)]
            after = [t.add(step, 1), *map(t.held, made[:n])]
            after += [self._put(rows, index, row) for rows, row in zip(carried[1 + n :], made[n:], strict=True)]
            for size in sorted(untold([*carried, *taken, *self.passed.values()], sizes_of(operators))):
                self.passed[size] = Value(self._passing(size).type)
            inputs = [*carried, *taken, *self.passed.values()]
            outputs = inner.kept_apart([(nodes[-1], v) for v in (*after, *inputs[len(carried) :])], inputs)
        return Graph(inputs, outputs, operators, self.steps.name), made[n:]

    def _operand(self, node: Node, given: Sequence[Value]) -> Value | int:
        k = self.steps.position[node]
        if k < len(given):
            return given[k]
        value = self.given(k - len(given))
        if not isinstance(value, Value):
            return value
        value = real(self.t, value)
        if value.constant is not None:
            return own(value)
        arrives = self.passed.setdefault(k - len(given), Value(self.t.held(value).type))
        return self.t.seen(arrives, value.type, value.range)

    def _passing(self, key: Key) -> Value:
        """What the loop is given to pass."""
        value = self.given(key)
        assert isinstance(value, Value)
        return self.t.held(real(self.t, value))

    def _slice(self, x: Value, rows: Value, index: Value) -> Value:
        """rows [1,N,C], index [1,1] -> a row of x [N,*S], [*S]"""
        row = self.t.reshape(self.t.gather(rows, index), x.shape[1:])
        row = converted(self.t, row, DType.BOOL) if x.dtype is DType.BOOL else row
        return self.t.seen(row, x.type._replace(shape=row.shape), range_of(x) if x.dtype in INTEGERS else None)

    def _put(self, rows: Value, index: Value, row: Value) -> Value:
        """rows [1,N,C], index [1,1], row [*S] -> [1,N,C] with the row at that place"""
        row = converted(self.t, row, movable(self.t, row.dtype))
        return self.t.scatter(rows, index, self.t.reshape(self.t.held(row), (1, 1, rows.shape[2])))


def _counter(value: Value, most: int) -> Value:
    """The number of a step, which is ``most`` at most."""
    value.range = 0, most
    return value
