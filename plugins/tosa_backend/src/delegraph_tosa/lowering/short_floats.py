"""fp16 and bf16: torch computes an operator in fp32 and rounds its result once, and so does what is made of it here.

A rule of one TOSA operator is that already. One of several, such as tanh-gelu, would round after each of them, and lose
half of the eight bits that bf16 has: it is applied to fp32 operands, and its result is cast. Products stay as they are,
because they accumulate in fp32 and their weights are not to be stored twice as wide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from delegraph.errors import Unsupported

from ..ir import operators as tosa
from ..ir.graph import Operator, Value
from ..ir.types import SHORT_FLOATS, DType
from .builder import Tosa
from .torch_values.types import DTYPES

_PRODUCTS = frozenset({tosa.MATMUL, tosa.CONV2D, tosa.CONV3D, tosa.DEPTHWISE_CONV2D, tosa.TRANSPOSE_CONV2D})
_ACCUMULATING = frozenset({tosa.REDUCE_SUM, tosa.REDUCE_PRODUCT, tosa.RESIZE})
"""Operators that round more than once on short floats."""
_EXACT = frozenset(
    {
        *(tosa.RESHAPE, tosa.TRANSPOSE, tosa.SLICE, tosa.TILE, tosa.PAD, tosa.CONCAT, tosa.REVERSE, tosa.IDENTITY),
        *(tosa.GATHER, tosa.SCATTER, tosa.SELECT, tosa.CLAMP, tosa.MAXIMUM, tosa.MINIMUM, tosa.ABS, tosa.NEGATE),
        *(tosa.CEIL, tosa.FLOOR, tosa.REDUCE_MAX, tosa.REDUCE_MIN, tosa.MAX_POOL2D),
    }
)
"""Operators that round nothing: their results are operands, or whole."""


def apply_rounding_once(t: Tosa, function: Callable[..., Any], arguments: list[Any], val: Any) -> Any:
    """What the rule ``function`` makes of ``arguments``; ``val`` is the fake result of the call, or several."""
    if not _any_short(arguments):
        return function(t, *arguments)
    start, t.rounded_number = len(t.operators), False
    try:
        result = function(t, *arguments)
    except Unsupported as refusal:
        del t.operators[start:]
        try:
            return _applied_widely(t, function, arguments, val)
        except Unsupported:
            raise refusal from None
    if _rounds_once(t.operators[start:], t.rounded_number):
        return result
    del t.operators[start:]
    return _applied_widely(t, function, arguments, val)


def _any_short(arguments: Iterable[Any]) -> bool:
    """Whether one of them, or of a list of them, is a value of short floats."""
    for argument in arguments:
        if isinstance(argument, Value):
            if argument.type.dtype in SHORT_FLOATS:
                return True
        elif isinstance(argument, (list, tuple)) and _any_short(argument):
            return True
    return False


def _rounds_once(operators: list[Operator], rounded_number: bool) -> bool:
    """``rounded_number``: whether one of their constants is a number that had to be rounded."""
    kinds = [type(op) for op in operators if any(v.dtype in SHORT_FLOATS for v in op.outputs)]
    if not _PRODUCTS.isdisjoint(map(type, operators)):
        return True
    rounding = [kind for kind in kinds if kind not in _EXACT]
    return len(rounding) + rounded_number <= 1 and _ACCUMULATING.isdisjoint(kinds) if rounding else True


def _applied_widely(t: Tosa, function: Callable[..., Any], arguments: list[Any], val: Any) -> Any:
    result = function(t, *(_wide(t, argument) for argument in arguments))
    if isinstance(result, tuple):
        return tuple([v and _short(t, v, fake) for v, fake in zip(result, val, strict=True)])
    return _short(t, result, val)


def _wide(t: Tosa, argument: Any) -> Any:
    if isinstance(argument, Value):
        return t.cast(argument, DType.FP32) if argument.dtype in SHORT_FLOATS else argument
    return [_wide(t, part) for part in argument] if isinstance(argument, (list, tuple)) else argument


def _short(t: Tosa, value: Value, fake: torch.Tensor) -> Value:
    wanted = DTYPES[fake.dtype]
    return t.cast(value, wanted) if wanted in SHORT_FLOATS and value.dtype is DType.FP32 else value
