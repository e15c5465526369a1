"""Floats and bools that torch computes from symbolic sizes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch

from ...ir.dynamic_sizes import waits
from ...ir.formulas import Relation, formula
from .symbolic_sizes import size_of_expression

UNKNOWN = math.nan
"""A number that TOSA cannot compute from sizes, such as a logarithm.

It is refused only as an operand of a call on tensors.
"""
_RELATIONS: dict[str, Callable[[int, int], Relation]] = {
    "StrictGreaterThan": lambda left, right: Relation(">", left, right),
    "GreaterThan": lambda left, right: Relation(">=", left, right),
    "StrictLessThan": lambda left, right: Relation(">", right, left),
    "LessThan": lambda left, right: Relation(">=", right, left),
    "Equality": lambda left, right: Relation("==", left, right),
    "Unequality": lambda left, right: Relation("==", left, right, not_=True),
}
"""Name of a sympy class -> the ``Relation`` of its left and right side."""


def number_of(val: torch.SymFloat | torch.SymBool) -> Any:
    """Return a symbolic float as a ``Formula``, a symbolic bool as a ``Relation``.

    Returns ``UNKNOWN`` if TOSA cannot compute it.
    """
    expression = val.node.expr
    ranges = val.node.shape_env.var_to_range
    if isinstance(val, torch.SymFloat):
        number = _float_of(expression, ranges)
        # ``waits`` is false for UNKNOWN, and for a float without any size in it
        return number if waits(number) else UNKNOWN
    relation = _RELATIONS.get(type(expression).__name__)
    if relation is None:
        return UNKNOWN
    left, right = [size_of_expression(side, ranges) for side in expression.args]
    return relation(left, right)


def _float_of(expression: Any, ranges: Any) -> Any:
    """Return a sympy expression as a number, a size or a ``Formula``.

    ``UNKNOWN`` if TOSA cannot compute a part of it. ``ranges`` has the range of each
    symbol. Classes of sympy are recognized by name, because importing sympy is slow.
    """
    name = type(expression).__name__
    if expression.is_Symbol or expression.is_integer:
        return size_of_expression(expression, ranges)
    if expression.is_number:
        return float(expression)
    parts = [_float_of(part, ranges) for part in expression.args]
    if any(part is UNKNOWN for part in parts):
        return UNKNOWN
    if name == "ToFloat":
        return parts[0]
    if name == "Mul":
        return reduce(operator.mul, parts)
    if name == "Add":
        return reduce(operator.add, parts)
    if name in ("IntTrueDiv", "FloatTrueDiv"):
        return parts[0] / parts[1]
    if name in ("FloatPow", "Pow"):
        return formula("**", *parts)
    if name == "OpaqueUnaryFn_sqrt":
        return formula("**", parts[0], 0.5)
    return UNKNOWN
