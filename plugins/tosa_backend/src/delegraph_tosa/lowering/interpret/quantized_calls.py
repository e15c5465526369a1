"""Lowers quantized calls by an integer rule, a lookup table, or in floats."""

from __future__ import annotations

from typing import Any

import torch
from delegraph.errors import Unsupported
from torch.fx import Node

from ...ir.graph import Value
from ...ir.types import DType
from ..arguments import map_values
from ..builder import Tosa
from ..integer.parabolas import curve_of
from ..lazy.lazy_values import BYTES, Lazy, Pointwise, real
from ..registry import RULES, Result, Rule, apply, checked, has_rule
from ..torch_values.hints import neither
from ..torch_values.tensor_types import refused

POINTWISE = frozenset(
    {
        "elementwise",
        "exponential",
        "activation",
        "power",
        "rounding",
        "special_values",
        "trigonometry",
    }
)
"""Families of rules that compute each element from operands at the same position."""


def apply_quantized(t: Tosa, rule: Rule, node: Node, arguments: list[Any]) -> Result:
    """Return the result of a call with quantized operands.

    ``rule`` is the operator's rule on ``Value``. If the call cannot be computed in
    integers, it is computed in floats. If that is refused too, raises Unsupported with
    both reasons.
    """
    start = len(t.operators)
    try:
        return checked(rule, node, lambda: _in_integers(t, rule, node, arguments))
    except Unsupported as refusal:
        # discard operators that the rule emitted before it refused the call
        del t.operators[start:]
        try:
            return apply(t, rule, node, _computed(t, arguments))
        except Unsupported as in_floats:
            raise refused(neither(refusal.message, in_floats.message)) from in_floats


def _in_integers(t: Tosa, rule: Rule, node: Node, arguments: list[Any]) -> Any:
    """Lower a call by its integer rule, or as a table of one quantized value.

    Raises Unsupported if it is neither.
    """
    integer_rule = RULES.get((node.target, Lazy))  # type: ignore[arg-type]
    if integer_rule is not None:
        result = integer_rule.function(t, *arguments)
        if result is not NotImplemented:
            return result
    t.refuse_unless(is_pointwise(node.target, rule), "no integer rule")
    return tabulated(t, rule, arguments)


def computes_in_integers(target: Any) -> bool:
    """Return whether an operator has an integer rule or can be a table.

    If so, a quantizer may quantize its operands.
    """
    if has_rule(target, Lazy):
        return True
    return has_rule(target) and is_pointwise(target, RULES[target, Value])


def is_pointwise(target: Any, rule: Rule) -> bool:
    """Return whether the operator computes each element from the same position.

    torch tags most operators of this kind. The others are in the families POINTWISE.
    """
    family = rule.function.__module__.rpartition(".")[2]
    return torch.Tag.pointwise in target.tags or family in POINTWISE


def tabulated(t: Tosa, rule: Rule, arguments: list[Any]) -> Value:
    """Return a call on one quantized operand as a lookup table.

    All other operands are single numbers. The entries are the results of ``rule``, the
    rule for floats, for all integers. Several operands may be functions of the same
    quantized value, as in ``x * sigmoid(x)``. Raises Unsupported for other operands.
    """
    # each lazy operand as a function of one quantized value, its source
    curves: dict[Lazy, Pointwise] = {}
    for argument in arguments:
        if isinstance(argument, Lazy):
            curves[argument] = curve_of(t, argument)
    first, *others = curves.values()
    have_one_source = all(curve.source.is_like(first.source) for curve in others)
    t.refuse_unless(
        have_one_source,
        "it has several quantized operands, and no integer rule for them",
    )
    # the rule's arguments: functions of the source, and numbers
    functions_and_numbers: list[Any] = []
    for argument in arguments:
        if isinstance(argument, Lazy):
            functions_and_numbers.append(curves[argument].function)
        else:
            functions_and_numbers.append(_as_scalar(t, argument))

    def function(t: Tosa, x: Value) -> Value:
        """Return the whole call as a function of x, the real numbers of the source."""
        of_x = [a(t, x) if callable(a) else a for a in functions_and_numbers]
        result: Value = rule.function(t, *of_x)
        return result

    return _computed_if_truth(t, first.of(function))


def _as_scalar(t: Tosa, argument: Any) -> Any:
    """Return a Python argument as it is, or a constant of one element as [].

    Raises Unsupported for other tensors.
    """
    if not isinstance(argument, Value):
        return argument
    t.refuse_unless(
        argument.constant is not None and set(argument.shape) <= {1},
        f"its operand {argument!r} is not quantized",
    )
    return t.reshape(argument, ())


def _computed_if_truth(t: Tosa, curve: Pointwise) -> Value:
    """Return ``curve`` if its results are floats, and look up results that are bools.

    The next quantize operator looks up floats. No quantize follows bools. Raises
    Unsupported for other results.
    """
    # the type of the results is the same for all integers: try those of 8 bits
    dtype = curve.entries(t, BYTES).dtype
    t.refuse_unless(dtype in (DType.FP32, DType.BOOL), f"its result is {dtype}")
    if dtype is DType.BOOL:
        return curve.truth(t)
    return curve


def _computed(t: Tosa, arguments: list[Any]) -> list[Any]:
    """Return the arguments of a rule with each lazy value computed in floats."""
    return [map_values(argument, lambda v: real(t, v)) for argument in arguments]
