"""Calls on quantized values: computed by an integer rule or a lookup table where possible, and in floats otherwise."""

from __future__ import annotations

from typing import Any

import torch
from delegraph.errors import Unsupported
from torch.fx import Node

from ...ir.graph import Value
from ...ir.types import DType
from ..builder import Tosa
from ..integer.curves import curve_of
from ..lazy.values import BYTES, Lazy, Pointwise, real
from ..registry import RULES, Result, Rule, apply, checked, has_rule
from ..torch_values.hints import neither
from ..torch_values.types import refused

POINTWISE = frozenset({"elementwise", "exponential", "activation", "power", "special_values", "trigonometry"})
"""Families of rules that compute each element of the result from the operands' elements at its place."""


def apply_quantized(t: Tosa, rule: Rule, node: Node, arguments: list[Any]) -> Result:
    """The result of a call with lazy operands; ``rule`` is the operator's rule on ``Value``.

    Unsupported, with both reasons, if no integer rule takes the call and the target has no floats.
    """
    made = len(t.operators)
    try:
        return checked(rule, node, lambda: _in_integers(t, rule, node, arguments))
    except Unsupported as refusal:
        # what the refused rule has emitted before it was refused
        del t.operators[made:]
        try:
            return apply(t, rule, node, _computed(t, arguments))
        except Unsupported as in_floats:
            raise refused(neither(refusal.message, in_floats.message)) from in_floats


def _in_integers(t: Tosa, rule: Rule, node: Node, arguments: list[Any]) -> Any:
    """The result by the operator's integer rule, or as a lookup table if it is a function of one quantized value."""
    own = RULES.get((node.target, Lazy))  # type: ignore[arg-type]
    found = NotImplemented if own is None else own.function(t, *arguments)
    if found is not NotImplemented:
        return found
    t.require(is_pointwise(node.target, rule), "no integer rule")
    return tabulated(t, rule, arguments)


def computes_in_integers(target: Any) -> bool:
    """Whether an operator has an integer rule or becomes a table: a quantizer may then quantize around it."""
    return has_rule(target, Lazy) or (has_rule(target) and is_pointwise(target, RULES[target, Value]))


def is_pointwise(target: Any, rule: Rule) -> bool:
    """Whether each element of the result depends only on the operands' elements at its place.

    Torch tags most such operators.
    """
    return torch.Tag.pointwise in target.tags or rule.function.__module__.rpartition(".")[2] in POINTWISE


def tabulated(t: Tosa, rule: Rule, arguments: list[Any]) -> Value:
    """A call on one quantized operand as a lookup table; the other operands are scalars.

    The entries are what ``rule``, the rule for floats, computes for all integers. If several operands are functions of
    the same quantized value (``x * sigmoid(x)``), the call is one function of it. Truth values are looked up as 0 and
    1.
    """
    lazy = [a for a in arguments if isinstance(a, Lazy)]
    curves: dict[Lazy, Pointwise] = {one: curve_of(t, one) for one in lazy}
    first = curves[lazy[0]]
    same = all(curve.source.is_like(first.source) for curve in curves.values())
    t.require(same, "it has several quantized operands, and no integer rule for them")
    plan = [curves[a].function if isinstance(a, Lazy) else _as_scalar(t, a) for a in arguments]

    def function(t: Tosa, x: Value) -> Value:
        result: Value = rule.function(t, *[a(t, x) if callable(a) else a for a in plan])
        return result

    return _computed_if_truth(t, first.of(function))


def _as_scalar(t: Tosa, argument: Any) -> Any:
    """An operand that is the same number for all elements; Unsupported if it is a tensor of several."""
    if not isinstance(argument, Value):
        return argument
    t.require(
        argument.constant is not None and set(argument.shape) <= {1}, f"its operand {argument!r} is not quantized"
    )
    return t.reshape(argument, ())


def _computed_if_truth(t: Tosa, found: Pointwise) -> Value:
    """``found`` itself, or, if its results are truth values, those looked up: they cannot be quantized later."""
    dtype = found.entries(t, BYTES).dtype
    t.require(dtype in (DType.FP32, DType.BOOL), f"its result is {dtype}")
    return found if dtype is DType.FP32 else found.truth(t)


def _computed(t: Tosa, arguments: list[Any]) -> list[Any]:
    """The arguments with each lazy value computed in floats."""
    return [_computed(t, a) if isinstance(a, list) else real(t, a) if isinstance(a, Value) else a for a in arguments]
