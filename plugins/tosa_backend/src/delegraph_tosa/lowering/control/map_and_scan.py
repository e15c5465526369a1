"""Lowers ``map`` and ``scan``: unrolls few steps, and makes a loop of many.

TOSA has neither operator. Up to ``MOST_STEPS`` steps are written out, which needs no
extension. More steps, or a number that is known at run time only, become a WHILE_LOOP
that counts them: in each step GATHER reads a row of each tensor that is mapped over,
and SCATTER writes the rows that the step computes into the results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from ...ir import operators as tosa
from ...ir.dynamic_sizes import is_dynamic
from ...ir.dynamic_sizes import range_of as size_range
from ...ir.graph import Graph, Operator, Value
from ...ir.size_sources import sizes_of, unknown_symbols
from ...ir.types import INTEGERS, DType, Type
from ..aten.index import movable_type
from ..aten.shape import slice_axis
from ..lazy.lazy_values import real
from ..promotion import converted
from ..ranges.value_ranges import range_of, range_of_type
from ..registry import lowers_control
from ..torch_values.hints import int64_carried, other_target
from ..torch_values.tensor_types import refused, type_of
from .subgraphs import (
    Key,
    copy_of_integers,
    have_one_quantization,
    held,
    is_quantized,
    lower_calls,
    module_of,
    operands_of,
    placeholder_positions,
    require_control_flow,
    results_of,
    value_in,
)

if TYPE_CHECKING:
    from ..interpret.interpreter import Interpreter

MOST_STEPS = 1024
"""The most steps that are written out."""


@lowers_control(torch.ops.higher_order.map_impl)
def map_impl(outer: Interpreter, call: Node) -> tuple[Value, ...]:
    """`map`: unrolled up to 1024 steps, else a WHILE_LOOP (extension `controlflow`).

    A number of steps that is known only at run time needs the loop, too.
    """
    body, xs, additional = call.args
    steps = _Steps(outer, body, xs)
    if steps.are_too_many:
        return _Loop(steps, (), additional).results()
    rows = [steps.run(k, (), additional) for k in range(steps.count)]
    return steps.stacked(rows)


@lowers_control(torch.ops.higher_order.scan)
def scan(outer: Interpreter, call: Node) -> tuple[Value, ...]:
    """As `map`, but each step also gets values that the step before it returns.

    In a loop, these cannot be int64 on a target without int64: they would have to fit
    into int32 after any number of steps, and no condition bounds them as in
    `while_loop`. In unrolled steps, ranges are proven one after the other.
    """
    body: Any
    start: Any
    body, start, xs, additional = call.args
    steps = _Steps(outer, body, xs)
    carried = [value_in(outer, v, "the scan carries") for v in start]
    if steps.are_too_many:
        return _Loop(steps, carried, additional).results()
    rows = []
    for k in range(steps.count):
        results = steps.run(k, carried, additional)
        rows.append(results[len(carried) :])
        carried = results[: len(carried)]
    return (*carried, *steps.stacked(rows))


class _Steps:
    """The steps of ``map`` and ``scan``, one for each index of the first axis."""

    def __init__(self, outer: Interpreter, body: Any, xs: Any) -> None:
        """Prepare the steps. ``outer`` interprets the program around the call.

        ``body`` is the get_attr node of the subgraph of one step. ``xs`` are the nodes
        of the tensors of which each step takes a slice.
        """
        self.outer = outer
        self.name = str(body.target)
        self.nodes = list(module_of(body).graph.nodes)
        """The nodes of the subgraph."""
        self.position = placeholder_positions(self.nodes)
        self.xs = [value_in(outer, x, "a step takes a slice of") for x in xs]
        self.count = self.xs[0].shape[0]
        """The number of steps; ``most`` is the largest that it can be."""
        _, self.most = size_range(self.count)
        self.are_too_many = is_dynamic(self.count) or self.count > MOST_STEPS

    def run(self, step: int, carried: Sequence[Value], additional: Any) -> list[Value]:
        """Emit the operators of step number ``step`` and return its results.

        ``carried`` are the carried values after the step before; ``additional`` are
        operands that are the same for all steps.
        """
        t = self.outer.t
        source = t.source
        rows = [slice_axis(t, held(x), 0, step, 1) for x in self.xs]
        # a row of a quantized tensor has the tensor's quantization
        slices = [
            _in_steps_of(x, t.reshape(row, row.shape[1:]))
            for x, row in zip(self.xs, rows, strict=True)
        ]
        # the body's placeholders are the carried values, the slices for this step, then
        # the additional operands
        of_this_step = [*carried, *slices]
        of_all_steps = operands_of(self.outer, additional)

        def operand(node: Node) -> Value | int:
            """Return the value or size of the placeholder ``node`` of the body."""
            k = self.position[node]
            if k < len(of_this_step):
                return of_this_step[k]
            return of_all_steps(k - len(of_this_step))

        inner = self.outer.enter(self.nodes, operand)
        lower_calls(inner, self.nodes, self.name)
        t.source = source
        return [value_in(inner, v, "a step returns") for v in results_of(self.nodes)]

    def stacked(self, rows: Sequence[Sequence[Value]]) -> tuple[Value, ...]:
        """Join each result of the body over all steps, along a new first axis.

        ``rows[k]`` are the results of step k.
        """
        t = self.outer.t
        stacks = []
        # ``values`` are one result of the body, for each step in order
        for values in zip(*rows, strict=True):
            if not all(have_one_quantization(v, values[0]) for v in values):
                values = tuple([real(t, v) for v in values])
            parts = [t.reshape(held(v), (1, *v.shape)) for v in values]
            stacks.append(_in_steps_of(values[0], t.concat(parts, 0)))
        return tuple(stacks)


def _in_steps_of(like: Value, held: Value) -> Value:
    """Return the tensor ``held`` as rules see it, with the quantization of ``like``.

    If ``like`` is not quantized, returns ``held``.
    """
    if not is_quantized(like):
        return held
    return like.with_integers(held)


class _Loop:
    """The steps as a WHILE_LOOP.

    The loop has these inputs and outputs, tensors of the graph (int32 for int64):

    - ``carried``, changed by each step: the number of the step, the carried values of
      the scan, and the rows that the steps have computed so far
    - ``taken``, unchanged: the tensors of which each step reads a row, and the count of
      steps if it is known at run time only
    - ``passed``, unchanged: additional operands and sizes that the body uses
    """

    def __init__(self, steps: _Steps, start: Sequence[Value], additional: Any) -> None:
        """Prepare the values that the loop carries.

        ``start`` are the values that the scan carries before the first step (none for
        ``map``), ``additional`` the operands that are the same for all steps;
        ``operand_of`` returns these by position. ``_body`` fills ``passed``.
        """
        self.steps = steps
        self.outer = steps.outer
        self.t = steps.outer.t
        self._expect_loops()
        self.start = [real(self.t, v) for v in start]
        if not self.t.has_int64 and any(v.dtype is DType.INT64 for v in self.start):
            why = (
                "a scan of more steps than are written out carries an int64, which"
                " nothing bounds"
            )
            raise refused(int64_carried(why))
        self.operand_of = operands_of(self.outer, additional)
        # the body returns the carried values first, and then its rows
        rows: list[Any] = list(results_of(steps.nodes)[len(start) :])
        self.row_types = [
            type_of(node.meta["val"], "the result of a step") for node in rows
        ]
        self.xs = [real(self.t, x) for x in steps.xs]
        self.taken = [self._as_rows(x) for x in self.xs]
        first = self.t.constant(0, DType.INT32, ())
        self.count = self.t.constant(steps.count, DType.INT32, ())
        if self.count.constant is None:
            self.taken.append(self.count)
        held_start = [self.t.held(v) for v in self.start]
        zero_rows = [self._zero_rows(row_type) for row_type in self.row_types]
        self.carried = [first, *held_start, *zero_rows]
        self.passed: dict[Key, Value] = {}

    def _expect_loops(self) -> None:
        """Raise Unsupported if the target has no loops.

        The reason states why the steps need one.
        """
        count = self.steps.count
        why = (
            f"its {count} steps are more than the {MOST_STEPS} that are written out"
            " without a loop"
        )
        if is_dynamic(count):
            why = f"it has {count} steps, which are not written out without a loop"
        if "EXT-CONTROLFLOW" not in self.t.spec.names:
            ways = [frozenset({"EXT-CONTROLFLOW"})]
            raise refused(other_target(self.t.spec, why, ways))
        require_control_flow(self.t, tosa.WHILE_LOOP)

    def _as_rows(self, x: Value) -> Value:
        """x [N,*S] -> [1,N,C], from which GATHER takes rows.

        C is the product of S. A bool becomes a number.
        """
        rows = self.t.reshape(x, (1, x.shape[0], math.prod(x.shape[1:])))
        return self.t.held(converted(self.t, rows, movable_type(self.t, x.dtype)))

    def _zero_rows(self, row: Any) -> Value:
        """Return zeros [1,N,C], into which SCATTER writes N rows of the type ``row``.

        C is the number of elements of a row.
        """
        dtype = movable_type(self.t, self.t.held_type(row).dtype)
        shape = (1, self.steps.count, math.prod(row.shape))
        if any(is_dynamic(size) for size in shape):
            return self.t.tile(self.t.constant(0, dtype, (1, 1, 1)), shape)
        return self.t.constant(0, dtype, shape)

    def results(self) -> tuple[Value, ...]:
        """Return the carried values after the last step, and the rows of all steps."""
        body, rows = self._body()
        passed = [self._passed_value(key) for key in self.passed]
        inputs = [*self.carried, *self.taken, *passed]
        outputs = self.t.control(
            tosa.WHILE_LOOP, inputs, cond_graph=self._condition(inputs), body_graph=body
        )
        # the number of steps done is no result, nor are inputs that no step changes
        last_carried = self._carried_as_rules_see(outputs)
        first_row = 1 + len(self.start)
        stacked = [
            self._stacked_as_rules_see(outputs[first_row + k], row, self.row_types[k])
            for k, row in enumerate(rows)
        ]
        return (*last_carried, *stacked)

    def _stacked_as_rules_see(self, rows: Value, row: Value, row_type: Type) -> Value:
        """Return the value [N,*S] that rules see for ``rows`` [1,N,C], a loop's result.

        ``row`` is a row of a step, which has the range of all rows.
        """
        value = self.t.reshape(rows, (self.steps.count, *row_type.shape))
        if row_type.dtype is DType.BOOL:
            value = converted(self.t, value, DType.BOOL)
        range = range_of(row) if row_type.dtype in INTEGERS else None
        return self.t.seen(value, row_type._replace(shape=value.shape), range)

    def _carried_as_rules_see(self, tensors: Sequence[Value]) -> list[Value]:
        """Return the values that rules see for the carried values of a step.

        They follow the number of the step in ``tensors``, the loop's inputs or outputs.
        Each has the type of the value before the first step, and the range of this
        type: nothing is known of the integers after several steps.
        """
        values = []
        for position, start in enumerate(self.start, start=1):
            is_integer = start.dtype in INTEGERS
            range = range_of_type(start.dtype) if is_integer else None
            values.append(self.t.seen(tensors[position], start.type, range))
        return values

    def _condition(self, carried: Sequence[Value]) -> Graph:
        """Return the graph of the loop's condition: the step's number < count of steps.

        It has an input for each of ``carried``, here all inputs of the loop.
        """
        inputs = [Value(v.type) for v in carried]
        operators = list[Operator]()
        count = self.count
        if count.constant is None:
            # the last of ``taken``, after the tensors
            count = inputs[len(self.carried) + len(self.xs)]
            count.range = self.count.range
        with self.t.inside(operators):
            goes_on = self.t.greater(count, _counter(inputs[0], self.steps.most))
        return Graph(inputs, [goes_on], operators, f"{self.steps.name}_condition")

    def _body(self) -> tuple[Graph, list[Value]]:
        """Return the graph of one step, and the rows that it computes.

        While the step is lowered, ``_operand`` adds additional operands to ``passed``;
        afterwards this method adds sizes.
        """
        t = self.t
        n = len(self.start)
        nodes = self.steps.nodes
        carried = [Value(v.type) for v in self.carried]
        taken = [Value(v.type) for v in self.taken]
        operators: list[Operator] = []
        with t.inside(operators):
            step = _counter(carried[0], self.steps.most - 1)
            index = t.reshape(step, (1, 1))
            of_this_step = self._carried_as_rules_see(carried)
            for x, rows in zip(self.xs, taken, strict=False):  # the count comes last
                of_this_step.append(self._row_of(x, rows, index))
            inner = self.outer.enter(
                nodes, lambda node: self._operand(node, of_this_step)
            )
            lower_calls(inner, nodes, self.steps.name)
            returned = [
                real(t, value_in(inner, v, "a step returns")) for v in results_of(nodes)
            ]
            # the carried values after this step, in the order of ``carried``
            after = [t.add(step, 1)]
            after += [t.held(value) for value in returned[:n]]
            for rows, row in zip(carried[1 + n :], returned[n:], strict=True):
                after.append(self._with_row(rows, index, row))
            # the graph reads a size off the shape of an input: a size that no input has
            # gets an input of its own
            inputs = [*carried, *taken, *self.passed.values()]
            for size in sorted(unknown_symbols(inputs, sizes_of(operators))):
                self.passed[size] = Value(self._passed_value(size).type)
            unchanged = [*taken, *self.passed.values()]
            inputs = [*carried, *unchanged]
            results = [(nodes[-1], value) for value in (*after, *unchanged)]
            outputs = inner.kept_apart(results, inputs)
        return Graph(inputs, outputs, operators, self.steps.name), returned[n:]

    def _operand(self, node: Node, of_this_step: Sequence[Value]) -> Value | int:
        """Return the value of the body's placeholder ``node``.

        The first placeholders are ``of_this_step``: the carried values, and the
        slices for this step. The others are additional operands, the same for all
        steps. One that is neither size nor constant becomes an input of the loop
        (``passed``), and the result is the value that rules see for this input.
        """
        k = self.steps.position[node]
        if k < len(of_this_step):
            return of_this_step[k]
        key = k - len(of_this_step)
        value = self.operand_of(key)
        if not isinstance(value, Value):  # a size
            return value
        value = real(self.t, value)
        if value.constant is not None:
            return copy_of_integers(value)
        input = self.passed.setdefault(key, Value(self.t.held(value).type))
        return self.t.seen(input, value.type, value.range)

    def _passed_value(self, key: Key) -> Value:
        """Return the tensor that the outer program passes: an operand, or a size."""
        value = self.operand_of(key)
        assert isinstance(value, Value)
        return self.t.held(real(self.t, value))

    def _row_of(self, x: Value, rows: Value, index: Value) -> Value:
        """x[index] [*S], as rules see it.

        ``rows`` [1,N,C] is x [N,*S] as ``_as_rows`` made it, ``index`` is [1,1].
        """
        row = self.t.reshape(self.t.gather(rows, index), x.shape[1:])
        if x.dtype is DType.BOOL:
            row = converted(self.t, row, DType.BOOL)
        range = range_of(x) if x.dtype in INTEGERS else None
        return self.t.seen(row, x.type._replace(shape=row.shape), range)

    def _with_row(self, rows: Value, index: Value, row: Value) -> Value:
        """Write ``row`` [*S] of C elements into ``rows`` [1,N,C] at ``index`` [1,1]."""
        row = self.t.held(converted(self.t, row, movable_type(self.t, row.dtype)))
        source = self.t.reshape(row, (1, 1, rows.shape[2]))
        return self.t.scatter(rows, index, source)


def _counter(value: Value, most: int) -> Value:
    """Return ``value``, the number of a step; sets its range to 0 .. ``most``."""
    value.range = (0, most)
    return value
