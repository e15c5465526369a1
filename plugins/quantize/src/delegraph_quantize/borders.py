"""Gives each value that enters or leaves a branch or loop a single quantization.

Integers can then be passed in and out. Each body, the graph of a branch or of a loop,
is calibrated alone. So two branches would return a value in two quantizations, and an
iteration of a loop would end with another one than it began with. A graph of integers
needs one.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

from .unscaled import bodies

_hops = torch.ops.higher_order
_QUANTIZE = "quantized_decomposed.quantize_per_tensor.default"
_DEQUANTIZE = "quantized_decomposed.dequantize_per_tensor.default"


class Steps(NamedTuple):
    """The arguments of a quantize operator and its dequantize operator.

    An integer q from ``low`` to ``high`` represents (q - zero_point) * scale.
    """

    scale: float
    zero_point: int
    low: int
    high: int
    dtype: torch.dtype

    def union(self, other: Steps) -> Steps | None:
        """Return steps that cover the ranges of both; None for other integer types."""
        if (self.low, self.high, self.dtype) != (other.low, other.high, other.dtype):
            return None
        if self.zero_point == other.zero_point == 0:  # symmetric ones stay so
            return max(self, other, key=lambda steps: steps.scale)
        first = min(s.real(self.low) for s in (self, other))
        last = max(s.real(self.high) for s in (self, other))
        scale = (last - first) / (self.high - self.low)
        return self._replace(scale=scale, zero_point=self.low - round(first / scale))

    def real(self, integer: int) -> float:
        """Return the number that an integer represents."""
        return (integer - self.zero_point) * self.scale


def unify_quantization(module: GraphModule) -> None:
    """Give the operands and results of branches and loops one quantization each.

    A value that is in floats on one side of the border stays as it is. Exception: a
    float operand that a body quantizes is also quantized before the call.
    """
    # inner branches first: their results need steps before the outer branch uses them
    for part in reversed(bodies(module)):
        for target in (_hops.cond, _hops.while_loop, _hops.scan):
            for call in part.graph.find_nodes(op="call_function", target=target):
                _unify_operands(part, call)
                _quantize_results(part, call)
        part.recompile()


def _unify_operands(outer: GraphModule, call: Node) -> None:
    """Quantize the operands of a call in ``outer`` as its bodies do.

    A value that a loop carries gets the same steps before the loop and at the end of
    each iteration. The results of the branches of a ``cond`` get the same steps.
    """
    inner, operands, carried = _parts(outer, call)
    for k, operand in enumerate(operands):
        # each body has one placeholder for each operand
        inputs = [_placeholders(body)[k] for body in inner]
        in_bodies = list(chain.from_iterable(map(_steps_of_users, inputs)))
        if not isinstance(operand, Node) or operand.op == "get_attr" or not in_bodies:
            continue
        if call.target is _hops.while_loop and k < carried:
            # inner[0] is the condition of the loop, and inner[1] its body
            next_value = _results(inner[1])[k]
            known = [*in_bodies, _steps_of_result(next_value, inner[1], operands)]
            if next_value is not _placeholders(inner[1])[k]:
                before = _Side(outer, call, operand)
                at_end = _Side(inner[1], _output(inner[1]), next_value)
                _unify_sides([before, at_end], known)
        elif not _is_dequantized(operand) and _is_float(operand):
            # an input of the program has one quantization
            outside = [*_steps_of_users(operand)][:1]
            steps = _union(outside or in_bodies)
            if steps is not None:
                _pass_quantized(outer, call, operand, steps)
    if call.target is _hops.cond:
        # the loop above may have replaced operands of the call
        operands = _parts(outer, call).operands
        for k in range(len(_results(inner[0]))):
            sides = [_Side(body, _output(body), _results(body)[k]) for body in inner]
            known = [
                _steps_of_result(side.value, side.graph, operands) for side in sides
            ]
            _unify_sides(sides, known)


def _steps_of_result(
    value: Any, body: GraphModule, operands: Sequence[Any]
) -> Steps | None:
    """Return the steps of a result of a body; None if it is computed in floats.

    A body may return one of its inputs. Then the steps are those of the operand.
    """
    if isinstance(value, Node) and value.op == "placeholder":
        value = operands[_placeholders(body).index(value)]
    return _steps_of(value) if _is_dequantized(value) else None


def _quantize_results(outer: GraphModule, call: Node) -> None:
    """Quantize and dequantize the results of a call after it, as its bodies do.

    A backend can then let the bodies return integers. Nothing changes for results that
    the bodies compute in floats, or with different steps.
    """
    inner, operands, carried = _parts(outer, call)
    is_loop = call.target is _hops.while_loop
    if is_loop:
        # the first body is the condition, which returns no value of the loop
        inner = inner[1:]
    for result in [user for user in call.users if user.target is operator.getitem]:
        k: Any = result.args[1]
        sides = [_results(body)[k] for body in inner]
        # without an iteration, a loop returns the operand
        if is_loop and k < carried:
            sides.append(operands[k])
        if not all(map(_is_dequantized, sides)):
            continue
        if len(set(map(_steps_of, sides))) > 1:
            continue
        for user in list(result.users):
            if str(user.target) != _QUANTIZE:
                _pass_quantized(outer, user, result, _steps_of(sides[0]))


class _Parts(NamedTuple):
    """The bodies of a call, their operands, and how many operands a loop carries.

    The carried operands come first.
    """

    bodies: list[GraphModule]
    operands: Sequence[Any]
    carried: int


def _parts(outer: GraphModule, call: Node) -> _Parts:
    """Return the bodies and operands of a call.

    The arguments are:

    - cond: condition, two branches, operands;
    - while_loop: condition, body, carried values, constants;
    - scan: body, carried values, slices, constants.
    """
    args: Any = call.args
    if call.target is _hops.cond:
        owners = args[1:3]
        operands = args[3]
        carried = 0
    elif call.target is _hops.while_loop:
        owners = args[:2]
        operands = [*args[2], *args[3]]
        carried = len(args[2])
    else:
        owners = args[:1]
        operands = [*args[1], *args[2], *args[3]]
        carried = len(args[1])
    inner: Any = [outer.get_submodule(str(owner.target)) for owner in owners]
    return _Parts(inner, operands, carried)


class _Side(NamedTuple):
    """A place where a value crosses the border of a body.

    ``taker``: the node of ``graph`` that reads ``value``: the call, or a body's output.
    """

    graph: GraphModule
    taker: Node
    value: Any


def _unify_sides(sides: Sequence[_Side], known: Sequence[Steps | None]) -> None:
    """Give a value the same steps on all sides, which cover all of ``known``.

    Nothing changes if one of ``known`` is None, or if a value is no float.
    """
    steps = _union(known)
    values = [side.value for side in sides]
    if steps is not None and all(isinstance(v, Node) and _is_float(v) for v in values):
        for side in sides:
            _pass_quantized(side.graph, side.taker, side.value, steps)


def _pass_quantized(graph: GraphModule, taker: Node, value: Node, steps: Steps) -> None:
    """Let ``taker`` take ``value`` quantized and dequantized with these steps.

    A pair of these operators is inserted before ``taker``. If ``value`` comes from such
    a pair that nothing else uses, that pair gets these steps instead.
    """
    if _is_dequantized(value):
        if _steps_of(value) == steps:
            return
        integers: Any = value.args[0]
        is_only_user = [*value.users] == [taker] and [*integers.users] == [value]
        if is_only_user and str(integers.target) == _QUANTIZE:
            integers.args = (integers.args[0], *steps)
            value.args = (integers, *steps)
            return
    quantized = torch.ops.quantized_decomposed
    with graph.graph.inserting_before(taker):
        integers = graph.graph.call_function(
            quantized.quantize_per_tensor.default, (value, *steps)
        )
        dequantized = graph.graph.call_function(
            quantized.dequantize_per_tensor.default, (integers, *steps)
        )
    for new in (integers, dequantized):
        new.meta = {
            key: v
            for key, v in value.meta.items()
            if key in ("nn_module_stack", "stack_trace", "val")
        }
    taker.replace_input_with(value, dequantized)


def _union(known: Sequence[Steps | None]) -> Steps | None:
    """Return the union of all; None if one is unknown, or has another integer type."""
    found: Steps | None = known[0]
    for steps in known[1:]:
        found = None if found is None or steps is None else found.union(steps)
    return found


def _steps_of_users(value: Node) -> Iterator[Steps]:
    """Yield the steps with which users of a value quantize it."""
    for user in value.users:
        if str(user.target) == _QUANTIZE:
            yield Steps(*user.args[1:6])  # type: ignore[arg-type]


def _steps_of(value: Node) -> Steps:
    """Return the steps of a quantize or dequantize operator."""
    return Steps(*value.args[1:6])  # type: ignore[arg-type]


def _is_dequantized(value: Any) -> bool:
    return isinstance(value, Node) and str(value.target) == _DEQUANTIZE


def _is_float(value: Node) -> bool:
    """Return whether a value is a float32 tensor, dequantized or not."""
    val = value.meta.get("val")
    return _is_dequantized(value) or (
        isinstance(val, torch.Tensor) and val.dtype is torch.float32
    )


def _placeholders(body: GraphModule) -> list[Node]:
    return list(body.graph.find_nodes(op="placeholder"))


def _output(body: GraphModule) -> Node:
    """Return the node that returns the results of a body."""
    return body.graph.output_node()


def _results(body: GraphModule) -> Sequence[Any]:
    """Return the results of a body; one that returns a bare value has a single one."""
    returned: Any = _output(body).args[0]
    return returned if isinstance(returned, (tuple, list)) else (returned,)
