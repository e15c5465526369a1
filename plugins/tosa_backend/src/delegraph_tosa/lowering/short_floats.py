"""fp16 and bf16 ("short floats"): rounds each result once, as torch does.

torch computes an operator in fp32. A rule that makes one TOSA operator rounds once. A
rule that makes several operators, such as tanh-gelu, would round after each of them and
lose half of the eight bits of bf16. So this rule is applied to operands cast to fp32,
and its result is cast back. Products (matrices, convolutions) stay in short floats:
they accumulate in fp32, and casts would double the size of their weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from delegraph.errors import Unsupported

from ..ir import operators as tosa
from ..ir.graph import Operator, Value
from ..ir.types import FLOAT8, SHORT_FLOATS, DType
from .arguments import has_dtype, map_values
from .builder import Tosa
from .float8 import apply_to_float8, rounded
from .torch_values.tensor_types import DTYPES

_PRODUCTS = frozenset(
    {
        tosa.MATMUL,
        tosa.CONV2D,
        tosa.CONV3D,
        tosa.DEPTHWISE_CONV2D,
        tosa.TRANSPOSE_CONV2D,
    }
)
_ACCUMULATING = frozenset({tosa.REDUCE_SUM, tosa.REDUCE_PRODUCT, tosa.RESIZE})
"""Operators that round intermediate results to short floats."""
_EXACT = frozenset(
    {
        tosa.ABS,
        tosa.CEIL,
        tosa.CLAMP,
        tosa.CONCAT,
        tosa.FLOOR,
        tosa.GATHER,
        tosa.IDENTITY,
        tosa.MAXIMUM,
        tosa.MAX_POOL2D,
        tosa.MINIMUM,
        tosa.NEGATE,
        tosa.PAD,
        tosa.REDUCE_MAX,
        tosa.REDUCE_MIN,
        tosa.RESHAPE,
        tosa.REVERSE,
        tosa.SCATTER,
        tosa.SELECT,
        tosa.SLICE,
        tosa.TILE,
        tosa.TRANSPOSE,
    }
)
"""Operators that never round: they move or select elements, or return whole numbers."""


def apply_rounding_once(
    t: Tosa, function: Callable[..., Any], arguments: list[Any], val: Any
) -> Any:
    """Apply the rule ``function`` so that short floats are rounded only once.

    ``val`` is the result that torch recorded: a fake tensor, or several. Raises
    Unsupported if the target takes the rule's operators neither on short floats nor on
    fp32.
    """
    if has_dtype(FLOAT8, arguments):
        return apply_to_float8(
            t, function, arguments, lambda result: _as_recorded(t, result, val)
        )
    if not has_dtype(SHORT_FLOATS, arguments):
        return function(t, *arguments)
    # run the rule on short floats first, and count the roundings of the operators that
    # it emits
    start = len(t.operators)
    t.rounded_number = False
    try:
        result = function(t, *arguments)
    # the target may lack an operator on short floats only; if it lacks both, the first
    # reason names the user's type
    except Unsupported as refusal:
        del t.operators[start:]
        try:
            return _applied_in_fp32(t, function, arguments, val)
        except Unsupported:
            raise refusal from None
    if _can_stay_short(t.operators[start:], t.rounded_number):
        return result
    del t.operators[start:]
    return _applied_in_fp32(t, function, arguments, val)


def _can_stay_short(operators: list[Operator], rounded_number: bool) -> bool:
    """Return whether ``operators`` may run in short floats.

    They round at most once, or have a matrix product or convolution.
    ``rounded_number`` is whether a constant was rounded to short floats, which counts
    as one rounding.
    """
    roundings = 0
    accumulates = False
    for operator in operators:
        kind = type(operator)
        if kind in _PRODUCTS:
            return True
        # only operators with results of short floats round
        if kind not in _EXACT and has_dtype(SHORT_FLOATS, operator.outputs):
            roundings += 1
            accumulates |= kind in _ACCUMULATING
    if roundings == 0:
        return True
    return roundings + rounded_number <= 1 and not accumulates


def _applied_in_fp32(
    t: Tosa, function: Callable[..., Any], arguments: list[Any], val: Any
) -> Any:
    """Apply the rule to operands in fp32, and cast its result back."""
    wide = [_cast_to_fp32(t, argument) for argument in arguments]
    return _as_recorded(t, function(t, *wide), val)


def _as_recorded(t: Tosa, result: Any, val: Any) -> Any:
    """Cast the fp32 results of a rule back to the types of ``val``."""
    if not isinstance(result, tuple):
        return _cast_back(t, result, val)
    pairs = zip(result, val, strict=True)
    return tuple([_cast_back(t, value, fake) for value, fake in pairs])


def _cast_to_fp32(t: Tosa, argument: Any) -> Any:
    """Cast values of short floats in an argument to fp32, also in lists."""
    return map_values(argument, lambda x: _short_as_fp32(t, x))


def _short_as_fp32(t: Tosa, x: Value) -> Value:
    """Return short floats as fp32; any other value as it is."""
    return t.cast(x, DType.FP32) if x.dtype in SHORT_FLOATS else x


def _cast_back(t: Tosa, value: Value | None, fake: torch.Tensor) -> Value | None:
    """Cast an fp32 result to the type of ``fake`` if that is a short float or fp8.

    Returns any other result as it is, also None: a result that is not lowered.
    """
    if value is None or value.dtype is not DType.FP32:
        return value
    dtype = DTYPES[fake.dtype]
    if dtype in FLOAT8:
        return rounded(t, value, dtype)
    return t.cast(value, dtype) if dtype in SHORT_FLOATS else value
