"""What crosses into branches and loops, and out of them, in one quantization, so that
integers cross.

Each body is calibrated alone. Two branches would return a value in two quantizations,
and a loop would go on in another one than it began with; a graph of integers has no
value that is the one or the other.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

from .unscaled import bodies

_hops = torch.ops.higher_order
_QUANTIZE = "quantized_decomposed.quantize_per_tensor.default"
_DEQUANTIZE = "quantized_decomposed.dequantize_per_tensor.default"


class Steps(NamedTuple):
    """The arguments of a quantize and its dequantize."""

    scale: float
    zero_point: int
    low: int
    high: int
    dtype: torch.dtype

    def union(self, other: Steps) -> Steps | None:
        """Steps that reach as far as both; None for other integers."""
        if self[2:] != other[2:]:
            return None
        if self.zero_point == other.zero_point == 0:  # symmetric ones stay so
            return max(self, other)
        first = min(s.real(self.low) for s in (self, other))
        last = max(s.real(self.high) for s in (self, other))
        scale = (last - first) / (self.high - self.low)
        return self._replace(scale=scale, zero_point=self.low - round(first / scale))

    def real(self, integer: int) -> float:
        return (integer - self.zero_point) * self.scale


def agree(module: GraphModule) -> None:
    """Give the operands and results of branches and loops one quantization each, where
    all their sides are quantized.

    What a body quantizes of an operand in floats, is quantized before the call.
    """
    # what a branch returns of a branch in it has its steps before the outer one is
    # asked
    for part in reversed(bodies(module)):
        for target in (_hops.cond, _hops.while_loop, _hops.scan):
            for call in part.graph.find_nodes(op="call_function", target=target):
                _agree_on(part, call)
                _leave(part, call)
        part.recompile()


def _agree_on(outer: GraphModule, call: Node) -> None:
    inner, operands, carried = _parts(outer, call)
    for k, operand in enumerate(operands):
        seen = [
            steps for body in inner for steps in _taken_with(_placeholders(body)[k])
        ]
        if not isinstance(operand, Node) or operand.op == "get_attr" or not seen:
            continue
        if call.target is _hops.while_loop and k < carried:
            after = _results(inner[1])[k]
            known = [*seen, _known(after, inner[1], operands)]
            if after is not _placeholders(inner[1])[k]:
                _join(
                    [(outer, call, operand), (inner[1], _output(inner[1]), after)],
                    known,
                )
        elif not _is_dequantized(operand) and _is_float(operand):
            # an input of the program has one quantization
            outside = [*_taken_with(operand)][:1]
            if (steps := _all(outside or seen)) is not None:
                _cross(outer, call, operand, steps)
    if call.target is _hops.cond:
        operands = _parts(outer, call)[1]  # as they are now
        for results in zip(*map(_results, inner), strict=True):
            known = [
                _known(v, body, operands)
                for body, v in zip(inner, results, strict=True)
            ]
            _join(
                [
                    (body, _output(body), v)
                    for body, v in zip(inner, results, strict=True)
                ],
                known,
            )


def _known(value: Any, body: GraphModule, operands: Sequence[Any]) -> Steps | None:
    """The steps of what a body returns, which may be what it is given; None if that is
    computed in floats.
    """
    if isinstance(value, Node) and value.op == "placeholder":
        value = operands[_placeholders(body).index(value)]
    return _steps_of(value) if _is_dequantized(value) else None


def _leave(outer: GraphModule, call: Node) -> None:
    """Quantize what a call returns in steps, and dequantize it behind the call: these
    integers leave a graph.
    """
    inner, operands, carried = _parts(outer, call)
    for taken in [user for user in call.users if user.target is operator.getitem]:
        k: Any = taken.args[1]
        sides = [
            _results(body)[k]
            for body in (inner[1:] if call.target is _hops.while_loop else inner)
        ]
        if call.target is _hops.while_loop and k < carried:
            sides.append(operands[k])
        if (
            not all(map(_is_dequantized, sides))
            or len({_steps_of(v) for v in sides}) > 1
        ):
            continue
        for user in list(taken.users):
            if str(user.target) != _QUANTIZE:
                _cross(outer, user, taken, _steps_of(sides[0]))


def _parts(
    outer: GraphModule, call: Node
) -> tuple[list[GraphModule], Sequence[Any], int]:
    """The bodies of a call, the operands that they get, and how many of these a loop
    carries.
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
    return (
        [outer.get_submodule(str(owner.target)) for owner in owners],  # type: ignore[misc]
        operands,
        carried,
    )


def _join(
    sides: Sequence[tuple[GraphModule, Node, Any]], known: Sequence[Steps | None]
) -> None:
    """Let a value cross with steps as wide as all ``known`` on all sides: (graph, who
    takes it, the value).
    """
    steps = _all(known)
    if steps is not None and all(
        isinstance(v, Node) and _is_float(v) for _, _, v in sides
    ):
        for graph, taker, value in sides:
            _cross(graph, taker, value, steps)


def _cross(graph: GraphModule, taker: Node, value: Node, steps: Steps) -> None:
    """Let ``taker`` have ``value`` with these steps: they become its own if nothing
    else uses it.
    """
    if _is_dequantized(value):
        if _steps_of(value) == steps:
            return
        integers: Any = value.args[0]
        alone = [*value.users] == [taker] and [*integers.users] == [value]
        if (
            alone
            and integers.op == "call_function"
            and str(integers.target) == _QUANTIZE
        ):
            integers.args = (integers.args[0], *steps)
            value.args = (integers, *steps)
            return
    quantized = torch.ops.quantized_decomposed
    with graph.graph.inserting_before(taker):
        integers = graph.graph.call_function(
            quantized.quantize_per_tensor.default, (value, *steps)
        )
        crossing = graph.graph.call_function(
            quantized.dequantize_per_tensor.default, (integers, *steps)
        )
    for new in (integers, crossing):
        new.meta = {
            key: v
            for key, v in value.meta.items()
            if key in ("nn_module_stack", "stack_trace", "val")
        }
    taker.replace_input_with(value, crossing)


def _all(known: Sequence[Steps | None]) -> Steps | None:
    """The union of all; None if one is not known, or counts in other integers."""
    found: Steps | None = known[0]
    for steps in known[1:]:
        found = None if found is None or steps is None else found.union(steps)
    return found


def _taken_with(value: Node) -> Iterator[Steps]:
    """The steps with which a body quantizes what it is given."""
    for user in value.users:
        if str(user.target) == _QUANTIZE:
            yield Steps(*user.args[1:6])  # type: ignore[arg-type]


def _steps_of(value: Node) -> Steps:
    return Steps(*value.args[1:6])  # type: ignore[arg-type]


def _is_dequantized(value: Any) -> bool:
    return isinstance(value, Node) and str(value.target) == _DEQUANTIZE


def _is_float(value: Node) -> bool:
    val = value.meta.get("val")
    return _is_dequantized(value) or (
        isinstance(val, torch.Tensor) and val.dtype is torch.float32
    )


def _placeholders(body: GraphModule) -> list[Node]:
    return list(body.graph.find_nodes(op="placeholder"))


def _output(body: GraphModule) -> Node:
    return body.graph.output_node()


def _results(body: GraphModule) -> Sequence[Any]:
    returned: Any = _output(body).args[0]
    return returned if isinstance(returned, (tuple, list)) else (returned,)
