"""Lowers operators on fp8: moves elements as they are, computes the rest in fp32.

A result computed in fp32 is rounded once, as torch does on a host. TOSA sums products
of fp8 in fp16, but torch sums them in fp32. So the graph multiplies fp8 only if the
call permits less exact sums (``_scaled_mm`` with ``use_fast_accum``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

from delegraph.errors import Unsupported

from ..ir import operators as tosa
from ..ir.graph import Operator, Value
from ..ir.types import FLOAT8, FLOATS, SHORT_FLOATS, DType, Type
from .arguments import has_dtype, map_values
from .builder import Tosa
from .torch_values.tensor_types import finfo

_MOVES = frozenset(
    {
        tosa.CAST,
        tosa.CONCAT,
        tosa.GATHER,
        tosa.IDENTITY,
        tosa.PAD,
        tosa.RESHAPE,
        tosa.REVERSE,
        tosa.SCATTER,
        tosa.SLICE,
        tosa.TILE,
        tosa.TRANSPOSE,
    }
)
"""Operators that TOSA has on fp8, and that compute no new numbers."""
LEAST_KEPT = 512
"""The fewest elements of an 8-bit constant that becomes floats at run time.

Smaller constants become floats when the file is written.
"""
F = TypeVar("F", bound=Callable[..., Any])
_TAKING_FLOAT8: set[Callable[..., Any]] = set()


def takes_float8(rule: F) -> F:
    """Make ``rule`` one that gets operands of fp8 as they are."""
    _TAKING_FLOAT8.add(rule)
    return rule


def widened(t: Tosa, x: Value, dtype: DType = DType.FP32) -> Value:
    """Return fp8 x [*S] as wider floats, exactly.

    The file stores a large constant in 8 bits: its CAST is not folded.
    """
    fold = x.constant is None or math.prod(x.shape) < LEAST_KEPT
    return t.emit(tosa.CAST, (x,), fold=fold, dtype=dtype)


def rounded(t: Tosa, x: Value, dtype: DType) -> Value:
    """Return floats [*S] as fp8 of the type ``dtype``, rounded as in torch.

    Numbers and infinities beyond the largest E4M3 are clamped to it: the specification
    does not define their CAST. E5M2 needs no clamp: CAST and torch make numbers beyond
    its largest infinite.
    """
    if dtype is DType.FP8E4M3:
        largest = finfo(dtype).max
        x = t.clamp(x, -largest, largest)
    return t.cast(x, dtype)


def apply_to_float8(
    t: Tosa,
    function: Callable[..., Any],
    arguments: list[Any],
    cast_back: Callable[..., Any],
) -> Any:
    """Return the result of the rule ``function`` for arguments with fp8 values.

    A rule that only moves elements gets them as they are. Others get fp32, and
    ``cast_back`` casts their results to the types that torch recorded.
    """
    if function in _TAKING_FLOAT8 or _only_moves(t, function, arguments):
        return function(t, *arguments)
    wide = [map_values(argument, lambda x: _in_fp32(t, x)) for argument in arguments]
    return cast_back(function(t, *wide))


def _only_moves(t: Tosa, function: Callable[..., Any], arguments: list[Any]) -> bool:
    """Return whether the rule ``function`` only moves its fp8 operands.

    A trial run with fp32 in place of fp8 shows its operators: rules take fp8 for
    integers. The trial has a builder of its own, because a builder would reuse the
    constants of the trial in the graph.
    """
    trial = Tosa(t.spec)
    stand_ins = [map_values(argument, _stand_in) for argument in arguments]
    try:
        function(trial, *stand_ins)
    except Unsupported:
        return False
    return all(map(_moves, trial.operators))


def _moves(operator: Operator) -> bool:
    """Return whether an operator only moves or casts floats.

    True also for an operator without floats, which computes indices.
    """
    if type(operator) in _MOVES:
        return True
    return not has_dtype(FLOATS, (*operator.inputs, *operator.outputs))


def _stand_in(x: Value) -> Value:
    """Return an fp32 value in place of fp8; any other value as it is.

    The fp32 value is no constant, so nothing is folded.
    """
    return Value(Type(x.shape, DType.FP32)) if x.dtype in FLOAT8 else x


def _in_fp32(t: Tosa, x: Value) -> Value:
    """Return fp8 and short floats as fp32; any other value as it is."""
    if x.dtype in FLOAT8:
        return widened(t, x)
    return t.cast(x, DType.FP32) if x.dtype in SHORT_FLOATS else x
