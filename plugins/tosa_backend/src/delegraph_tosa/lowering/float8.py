"""fp8: elements are moved as they are.

Everything else is computed in fp32 and rounded once, as torch does on a host. TOSA
moves, gathers and casts fp8. Its products of fp8 add up in fp16, where torch's add up
in fp32: so only a product that may be less exact (``_scaled_mm`` with
``use_fast_accum``) is one of fp8 in the graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

from delegraph.errors import Unsupported

from ..ir import operators as tosa
from ..ir.graph import Operator, Value
from ..ir.types import FLOAT8, FLOATS, SHORT_FLOATS, DType, Type
from .builder import Tosa
from .torch_values.tensor_types import finfo

_MOVES = frozenset(
    {
        *(
            tosa.RESHAPE,
            tosa.TRANSPOSE,
            tosa.SLICE,
            tosa.TILE,
            tosa.PAD,
            tosa.CONCAT,
            tosa.REVERSE,
            tosa.IDENTITY,
        ),
        *(tosa.GATHER, tosa.SCATTER, tosa.CAST),
    }
)
LEAST_KEPT = 512
"""The fewest elements of an 8-bit constant that becomes floats at run time."""
F = TypeVar("F", bound=Callable[..., Any])
_TAKING: set[Callable[..., Any]] = set()


def takes_float8(rule: F) -> F:
    """Make ``rule`` one that gets operands of fp8 as they are."""
    _TAKING.add(rule)
    return rule


def any_of(dtypes: Collection[DType], arguments: Iterable[Any]) -> bool:
    """Return whether an argument, or an element of a list, has one of these types."""
    for argument in arguments:
        if isinstance(argument, Value):
            if argument.type.dtype in dtypes:
                return True
        elif isinstance(argument, (list, tuple)) and any_of(dtypes, argument):
            return True
    return False


def widened(t: Tosa, x: Value, dtype: DType = DType.FP32) -> Value:
    """fp8 x [*S] as wider floats, exactly. A weight stays one of 8 bits in the file."""
    fold = x.constant is None or math.prod(x.shape) < LEAST_KEPT
    return t.emit(tosa.CAST, (x,), fold=fold, dtype=dtype)


def rounded(t: Tosa, x: Value, dtype: DType) -> Value:
    """Floats [*S] as fp8 of the type ``dtype``, as torch rounds them.

    Numbers beyond the largest E4M3 become that, also infinities: the specification
    does not define CAST for them. E5M2 has infinities, which CAST and
    torch make of numbers beyond its largest.
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
    if function in _TAKING or _only_moves(t, function, arguments):
        return function(t, *arguments)
    return cast_back(
        function(
            t, *(_each(argument, lambda x: _in_fp32(t, x)) for argument in arguments)
        )
    )


def _only_moves(t: Tosa, function: Callable[..., Any], arguments: list[Any]) -> bool:
    """Return whether a rule does nothing with fp32 in place of fp8 but move it.

    Rules take fp8 for integers, so fp32 is used. A builder of its own, as for a
    template: values that another one remembers would not be in the graph.
    """
    trial = Tosa(t.spec)
    try:
        function(trial, *(_each(argument, _stand_in) for argument in arguments))
    except Unsupported:
        return False
    return all(map(_moves, trial.operators))


def _moves(operator: Operator) -> bool:
    """Return whether an operator only moves or casts floats, or has none.

    An operator that computes indices has none.
    """
    return type(operator) in _MOVES or not any(
        v.dtype in FLOATS for v in (*operator.inputs, *operator.outputs)
    )


def _stand_in(x: Value) -> Value:
    """Return an fp32 value for an fp8 value.

    It is no constant, so nothing is folded.
    """
    return Value(Type(x.shape, DType.FP32)) if x.dtype in FLOAT8 else x


def _in_fp32(t: Tosa, x: Value) -> Value:
    """fp8 and short floats as fp32; any other value as it is."""
    if x.dtype in FLOAT8:
        return widened(t, x)
    return t.cast(x, DType.FP32) if x.dtype in SHORT_FLOATS else x


def _each(argument: Any, function: Callable[[Value], Value]) -> Any:
    """Apply ``function`` to each value in an argument of a rule, also in lists."""
    if isinstance(argument, Value):
        return function(argument)
    return (
        [_each(part, function) for part in argument]
        if isinstance(argument, (list, tuple))
        else argument
    )
