"""What ``executorch_prim`` computes of numbers, as ExecuTorch does: 64 bits wide, for
the types that it takes.

Found by calling each in its runtime: ``floordiv.int`` and both ``mod`` round towards
zero as C does, ``floordiv.Scalar`` rounds down as Python does, division by zero is
infinite for floats. What is undefined in C, or ends the process there (integers divided
by zero, floats without an integer), raises ArithmeticError here.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from ..program.tables import Bool, Double, Int

Number = int | float
NUMBER = (Int, Double)
INTEGER = (Int,)
FLOAT = (Double,)
TRUTH = (Bool,)
ANY = (Int, Double, Bool)
"""Kinds of values that an operand may be."""


def _wrap(value: Number) -> Number:
    """An integer's lower 64 bits, with their sign."""
    return (
        (value + (1 << 63)) % (1 << 64) - (1 << 63) if isinstance(value, int) else value
    )


def _wrapping(function: Callable[..., Number]) -> Callable[..., Number]:
    return lambda *operands: _wrap(function(*operands))


def _whole(function: Callable[[Number], int]) -> Callable[[Number], int]:
    """A function from floats to integers, for floats that have one of 64 bits."""

    def compute(value: Number) -> int:
        whole = function(value)
        if not -(1 << 63) <= whole < 1 << 63:
            raise OverflowError(f"{value} has no integer of 64 bits")
        return whole

    return compute


def _comparing(
    function: Callable[[Number, Number], bool],
) -> Callable[[Number, Number], bool]:
    """C compares an integer and a float as floats, where Python is exact. A bool
    compares with a bool only.
    """

    def compute(a: Number, b: Number) -> bool:
        if isinstance(a, bool) is not isinstance(b, bool):
            raise TypeError(f"{a} is compared with {b}")
        return function(a, b) if type(a) is type(b) else function(float(a), float(b))

    return compute


def _true_divide(a: Number, b: Number) -> float:
    if b:
        return float(a) / float(b)
    return (
        math.nan
        if not a or math.isnan(a)
        else math.copysign(math.inf, a) * math.copysign(1.0, b)
    )


def _floor_divide(a: Number, b: Number) -> Number:
    if isinstance(a, int) and isinstance(b, int):
        return _bounded_quotient(a, b, a // b if b else 0)
    return float(a) // float(b) if b else math.copysign(math.inf, a)


def _divide_toward_zero(a: int, b: int) -> int:
    return _bounded_quotient(
        a, b, abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else 0
    )


def _remainder(a: int, b: int) -> int:
    """It has the sign of the dividend."""
    return a - b * _divide_toward_zero(a, b)


def _bounded_quotient(a: int, b: int, quotient: int) -> int:
    if not b:
        raise ZeroDivisionError("an integer is divided by zero")
    if quotient == 1 << 63:
        raise OverflowError(f"{a} divided by {b} has more than 64 bits")
    return quotient


SCALAR_KERNELS: dict[str, tuple[tuple[tuple[type, ...], ...], Callable[..., Any]]] = {
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
    "ceil.Scalar": ((FLOAT,), _whole(math.ceil)),
    "round.Scalar": ((FLOAT,), _whole(round)),
    "trunc.Scalar": ((FLOAT,), _whole(math.trunc)),
    "sym_float.Scalar": ((ANY,), float),
    "sym_int.Scalar": ((ANY,), _whole(int)),
    "sym_max.Scalar": ((INTEGER, INTEGER), max),
    "sym_min.Scalar": ((INTEGER, INTEGER), min),
    "sym_not.Scalar": ((TRUTH,), operator.not_),
    "sym_ite.Scalar": (
        (TRUTH, ANY, ANY),
        lambda condition, then, otherwise: then if condition else otherwise,
    ),
}
"""Name -> what its operands may be, and the function."""
