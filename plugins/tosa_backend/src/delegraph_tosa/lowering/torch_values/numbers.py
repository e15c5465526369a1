"""What torch computes of symbolic sizes and is no size: floats, and truth values."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import torch

from ...ir.formulas import Relation, formula
from ...ir.sizes import waits
from .sizes import size_of_expression

UNKNOWN = math.nan
"""Stands for a number that TOSA cannot compute of sizes, such as a logarithm on the way from one to another."""
_RELATIONS: dict[str, tuple[str, bool, bool]] = {
    "StrictGreaterThan": (">", False, False),
    "GreaterThan": (">=", False, False),
    "StrictLessThan": (">", True, False),
    "LessThan": (">=", True, False),
    "Equality": ("==", False, False),
    "Unequality": ("==", False, True),
}
"""Classes of sympy -> function of ``Relation``, whether the sides change places, and whether it is not so."""


def number_of(val: torch.SymFloat | torch.SymBool) -> Any:
    """A formula or a relation; ``UNKNOWN`` for what is neither."""
    expression, ranges = val.node.expr, val.node.shape_env.var_to_range
    if isinstance(val, torch.SymFloat):
        found = _float(expression, ranges)
        return found if waits(found) else UNKNOWN
    function, swapped, not_ = _RELATIONS.get(type(expression).__name__, ("", False, False))
    if not function:
        return UNKNOWN
    left, right = (size_of_expression(side, ranges) for side in expression.args)
    return Relation(function, right, left, not_) if swapped else Relation(function, left, right, not_)


def _float(expression: Any, ranges: Any) -> Any:
    """A number, a size or a formula; ``UNKNOWN`` if a part is."""
    name = type(expression).__name__
    if expression.is_Symbol or expression.is_integer:
        return size_of_expression(expression, ranges)
    if expression.is_number:
        return float(expression)
    parts = [_float(part, ranges) for part in expression.args]
    if any(part is UNKNOWN for part in parts):
        return UNKNOWN
    if name == "ToFloat":
        return parts[0]
    if name in ("Mul", "Add"):
        return reduce(lambda x, y: x * y if name == "Mul" else x + y, parts)
    if name in ("IntTrueDiv", "FloatTrueDiv"):
        return parts[0] / parts[1]
    if name in ("FloatPow", "Pow"):
        return formula("**", *parts)
    return formula("**", parts[0], 0.5) if name == "OpaqueUnaryFn_sqrt" else UNKNOWN
