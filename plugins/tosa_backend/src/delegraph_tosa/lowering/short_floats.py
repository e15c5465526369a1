"""fp16 and bf16: torch computes an operator in fp32 and rounds its result once, and so does what is made of it here.

A rule that makes one TOSA operator rounds once anyway. A rule that makes several, such as tanh-gelu, would round after
each of them, and lose half of the eight bits that bf16 has. So it is applied to operands cast to fp32, and its result
is cast back. Products (matrices, convolutions) stay as they are: they accumulate in fp32, and their weights are not to
be stored twice as wide.
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
"""Operators that round more than once within themselves on short floats."""
_EXACT = frozenset(
    {
        *(tosa.RESHAPE, tosa.TRANSPOSE, tosa.SLICE, tosa.TILE, tosa.PAD, tosa.CONCAT, tosa.REVERSE, tosa.IDENTITY),
        *(tosa.GATHER, tosa.SCATTER, tosa.SELECT, tosa.CLAMP, tosa.MAXIMUM, tosa.MINIMUM, tosa.ABS, tosa.NEGATE),
        *(tosa.CEIL, tosa.FLOOR, tosa.REDUCE_MAX, tosa.REDUCE_MIN, tosa.MAX_POOL2D),
    }
)
"""Operators that never round: they move or choose elements, or their results are whole numbers."""


def apply_rounding_once(t: Tosa, function: Callable[..., Any], arguments: list[Any], val: Any) -> Any:
    """Call the rule ``function`` such that short floats are rounded only once.

    ``val`` is what torch recorded as the call's result: a fake tensor, or several.
    """
    if not _any_short(arguments):
        return function(t, *arguments)
    # try it on short floats first, and look at the operators that it made
    start, t.rounded_number = len(t.operators), False
    try:
        result = function(t, *arguments)
    # the target may lack an operator on short floats only; the first reason is the better one
    except Unsupported as refusal:
        del t.operators[start:]
        try:
            return _applied_in_fp32(t, function, arguments, val)
        except Unsupported:
            raise refusal from None
    if _rounds_once(t.operators[start:], t.rounded_number):
        return result
    del t.operators[start:]
    return _applied_in_fp32(t, function, arguments, val)


def _any_short(arguments: Iterable[Any]) -> bool:
    """Whether one of the arguments, or of a list among them, is a value of short floats."""
    for argument in arguments:
        if isinstance(argument, Value):
            if argument.type.dtype in SHORT_FLOATS:
                return True
        elif isinstance(argument, (list, tuple)) and _any_short(argument):
            return True
    return False


def _rounds_once(operators: list[Operator], rounded_number: bool) -> bool:
    """Whether operators round a result once at most, counting ``rounded_number``: a constant that had to be rounded."""
    # what makes no short floats, such as an index, rounds none
    kinds = [type(op) for op in operators if any(v.dtype in SHORT_FLOATS for v in op.outputs)]
    if not _PRODUCTS.isdisjoint(map(type, operators)):
        return True
    rounding = [kind for kind in kinds if kind not in _EXACT]
    return len(rounding) + rounded_number <= 1 and _ACCUMULATING.isdisjoint(kinds) if rounding else True


def _applied_in_fp32(t: Tosa, function: Callable[..., Any], arguments: list[Any], val: Any) -> Any:
    """The rule on operands cast to fp32, its results cast back to the types in ``val``."""
    result = function(t, *(_cast_to_fp32(t, argument) for argument in arguments))
    if isinstance(result, tuple):
        return tuple([v and _cast_back(t, v, fake) for v, fake in zip(result, val, strict=True)])
    return _cast_back(t, result, val)


def _cast_to_fp32(t: Tosa, argument: Any) -> Any:
    """An argument of a rule, with short floats in it as fp32."""
    if isinstance(argument, Value):
        return t.cast(argument, DType.FP32) if argument.dtype in SHORT_FLOATS else argument
    return [_cast_to_fp32(t, part) for part in argument] if isinstance(argument, (list, tuple)) else argument


def _cast_back(t: Tosa, value: Value, fake: torch.Tensor) -> Value:
    """A result in the short type that torch recorded in ``fake``; any other result as it is."""
    wanted = DTYPES[fake.dtype]
    return t.cast(value, wanted) if wanted in SHORT_FLOATS and value.dtype is DType.FP32 else value
