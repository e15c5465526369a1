"""Compute the kernels of ``executorch_prim`` on numbers as ExecuTorch does, with 64 bits.

The rules were found by calling ExecuTorch's runtime. ``floordiv.int`` and both ``mod``
round towards zero, as C does. ``floordiv.Scalar`` rounds down, as Python does. A float
divided by zero is infinite. ArithmeticError is raised if C does not define the result or
the runtime would crash: for integers divided by zero, and floats beyond 64-bit integers.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

from ..program.pte_tables import Bool, Double, Int

Number = int | float
NUMBER = (Int, Double)
INTEGER = (Int,)
FLOAT = (Double,)
TRUTH = (Bool,)
ANY = (Int, Double, Bool)
# The five tuples are kinds of values that an operand may have.


def _wrap(value: Number) -> Number:
    """Return an integer's lower 64 bits, as a signed number."""
    if not isinstance(value, int):
        return value
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _wrapping(function: Callable[..., Number]) -> Callable[..., Number]:
    """Return ``function``, but with integer results that wrap around at 64 bits."""
    return lambda *operands: _wrap(function(*operands))


def _rounding(function: Callable[[Number], int]) -> Callable[[Number], int]:
    """Return ``function``, but with OverflowError for results beyond 64 bits."""

    def compute(value: Number) -> int:
        integer = function(value)
        if not -(1 << 63) <= integer < 1 << 63:
            raise OverflowError(f"{value} does not fit into an integer of 64 bits")
        return integer

    return compute


def _comparing(
    function: Callable[[Number, Number], bool],
) -> Callable[[Number, Number], bool]:
    """Return a comparison as in C: an integer and a float are compared as floats.

    Python would compare the exact numbers. A bool can be compared with a bool only.
    """

    def compute(a: Number, b: Number) -> bool:
        if isinstance(a, bool) is not isinstance(b, bool):
            raise TypeError(f"cannot compare {a} with {b}")
        if type(a) is type(b):
            return function(a, b)
        return function(float(a), float(b))

    return compute


def _true_divide(a: Number, b: Number) -> float:
    """Return the quotient as a float; dividing by zero gives infinity or NaN."""
    if b:
        return float(a) / float(b)
    if not a or math.isnan(a):
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def _floor_divide(a: Number, b: Number) -> Number:
    """Return the quotient rounded down; floats divided by zero give infinity."""
    if isinstance(a, int) and isinstance(b, int):
        quotient = a // b if b else 0
        return _checked_quotient(a, b, quotient)
    if not b:
        return math.copysign(math.inf, a)
    return float(a) // float(b)


def _divide_toward_zero(a: int, b: int) -> int:
    """Return the quotient of integers rounded toward zero."""
    quotient = abs(a) // abs(b) if b else 0
    if (a < 0) != (b < 0):
        quotient = -quotient
    return _checked_quotient(a, b, quotient)


def _remainder(a: int, b: int) -> int:
    """Return the remainder with the sign of the dividend."""
    return a - b * _divide_toward_zero(a, b)


def _checked_quotient(a: int, b: int, quotient: int) -> int:
    """Return ``quotient``, the result of ``a`` divided by ``b``.

    Raises ArithmeticError if ``b`` is 0, or if the quotient does not fit into 64 bits.
    """
    if not b:
        raise ZeroDivisionError(f"cannot divide the integer {a} by zero")
    # only -(1 << 63) divided by -1 is too large
    if quotient == 1 << 63:
        raise OverflowError(f"{a} divided by {b} has more than 64 bits")
    return quotient


class ScalarKernel(NamedTuple):
    """A kernel of numbers, with the kinds of its operands."""

    operands: tuple[tuple[type, ...], ...]
    compute: Callable[..., Any]


_KERNELS: dict[str, tuple[tuple[tuple[type, ...], ...], Callable[..., Any]]] = {
    "add.Scalar": ((NUMBER, NUMBER), _wrapping(operator.add)),
    "sub.Scalar": ((NUMBER, NUMBER), _wrapping(operator.sub)),
    "mul.Scalar": ((NUMBER, NUMBER), _wrapping(operator.mul)),
    "floordiv.Scalar": ((NUMBER, NUMBER), _floor_divide),
    "floordiv.int": ((INTEGER, INTEGER), _divide_toward_zero),
    "truediv.Scalar": ((NUMBER, NUMBER), _true_divide),
    "mod.Scalar": ((INTEGER, INTEGER), _remainder),
    "mod.int": ((INTEGER, INTEGER), _remainder),
    "neg.Scalar": ((NUMBER,), _wrapping(operator.neg)),
    "eq.Scalar": ((ANY, ANY), _comparing(operator.eq)),
    "lt.Scalar": ((ANY, ANY), _comparing(operator.lt)),
    "le.Scalar": ((ANY, ANY), _comparing(operator.le)),
    "gt.Scalar": ((ANY, ANY), _comparing(operator.gt)),
    "ge.Scalar": ((ANY, ANY), _comparing(operator.ge)),
    "ceil.Scalar": ((FLOAT,), _rounding(math.ceil)),
    "round.Scalar": ((FLOAT,), _rounding(round)),
    "trunc.Scalar": ((FLOAT,), _rounding(math.trunc)),
    "sym_float.Scalar": ((ANY,), float),
    "sym_int.Scalar": ((ANY,), _rounding(int)),
    "sym_max.Scalar": ((INTEGER, INTEGER), max),
    "sym_min.Scalar": ((INTEGER, INTEGER), min),
    "sym_not.Scalar": ((TRUTH,), operator.not_),
    "sym_ite.Scalar": (
        (TRUTH, ANY, ANY),
        lambda condition, then, otherwise: then if condition else otherwise,
    ),
}


SCALAR_KERNELS = {name: ScalarKernel(*parts) for name, parts in _KERNELS.items()}
"""Kernel by name, without ``executorch_prim::``."""
