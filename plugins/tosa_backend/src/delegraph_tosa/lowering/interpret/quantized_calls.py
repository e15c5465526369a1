"""Calls on quantized values: by an integer rule if there is one, and in floats otherwise."""

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
"""Families of such operators."""


def apply_quantized(t: Tosa, rule: Rule, node: Node, arguments: list[Any]) -> Result:
    """The result of a call of which some operands are lazy.

    Unsupported if neither an integer rule takes it nor the target has floats, with both reasons.
    """
    made = len(t.operators)
    try:
        return checked(rule, node, lambda: _in_integers(t, rule, node, arguments))
    except Unsupported as refusal:
        del t.operators[made:]
        try:
            return apply(t, rule, node, _computed(t, arguments))
        except Unsupported as in_floats:
            raise refused(neither(refusal.message, in_floats.message)) from in_floats


def _in_integers(t: Tosa, rule: Rule, node: Node, arguments: list[Any]) -> Any:
    own = RULES.get((node.target, Lazy))  # type: ignore[arg-type]
    found = NotImplemented if own is None else own.function(t, *arguments)
    if found is not NotImplemented:
        return found
    t.require(is_pointwise(node.target, rule), "no integer rule")
    return tabulated(t, rule, arguments)


def computes_in_integers(target: Any) -> bool:
    """Whether an operator has an integer rule or becomes a table: what a quantizer may put between quantized values."""
    return has_rule(target, Lazy) or (has_rule(target) and is_pointwise(target, RULES[target, Value]))


def is_pointwise(target: Any, rule: Rule) -> bool:
    """Whether a result's element depends on the operands' elements at the same place only; torch tags most of them."""
    return torch.Tag.pointwise in target.tags or rule.function.__module__.rpartition(".")[2] in POINTWISE


def tabulated(t: Tosa, rule: Rule, arguments: list[Any]) -> Value:
    """A function of each element alone, whose only run-time operand is quantized, as one TABLE; of a sum, as a curve.

    What it computes the rule for floats says, which is applied to all integers there are. Truth values are a TABLE of
    0 and 1.
    """
    lazy = [a for a in arguments if isinstance(a, Lazy)]
    curves: dict[Lazy, Pointwise] = {one: curve_of(t, one) for one in lazy}
    first = curves[lazy[0]]
    same = all(curve.source.is_like(first.source) for curve in curves.values())
    t.require(same, "it has several quantized operands, and no integer rule for them")
    plan = [curves[a].function if isinstance(a, Lazy) else _scalar(t, a) for a in arguments]

    def function(t: Tosa, x: Value) -> Value:
        result: Value = rule.function(t, *[a(t, x) if callable(a) else a for a in plan])
        return result

    return _of_truth(t, first.of(function))


def _scalar(t: Tosa, argument: Any) -> Any:
    """An operand that is the same for all elements."""
    if not isinstance(argument, Value):
        return argument
    t.require(
        argument.constant is not None and set(argument.shape) <= {1}, f"its operand {argument!r} is not quantized"
    )
    return t.reshape(argument, ())


def _of_truth(t: Tosa, found: Pointwise) -> Value:
    """Itself, or what it computes if that is truth values."""
    dtype = found.entries(t, BYTES).dtype
    t.require(dtype in (DType.FP32, DType.BOOL), f"its result is {dtype}")
    return found if dtype is DType.FP32 else found.truth(t)


def _computed(t: Tosa, arguments: list[Any]) -> list[Any]:
    return [_computed(t, a) if isinstance(a, list) else real(t, a) if isinstance(a, Value) else a for a in arguments]
