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
from .builder import Tosa
from .float8 import any_of, apply_to_float8, rounded
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
        *(
            tosa.GATHER,
            tosa.SCATTER,
            tosa.SELECT,
            tosa.CLAMP,
            tosa.MAXIMUM,
            tosa.MINIMUM,
            tosa.ABS,
            tosa.NEGATE,
        ),
        *(tosa.CEIL, tosa.FLOOR, tosa.REDUCE_MAX, tosa.REDUCE_MIN, tosa.MAX_POOL2D),
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
    if any_of(FLOAT8, arguments):
        return apply_to_float8(
            t, function, arguments, lambda result: _as_recorded(t, result, val)
        )
    if not any_of(SHORT_FLOATS, arguments):
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
    if _rounds_once(t.operators[start:], t.rounded_number):
        return result
    del t.operators[start:]
    return _applied_in_fp32(t, function, arguments, val)


def _rounds_once(operators: list[Operator], rounded_number: bool) -> bool:
    """Return whether ``operators`` may run in short floats.

    They round at most once, or have a matrix product or convolution.
    ``rounded_number``, whether a constant was rounded to short floats, counts as one
    rounding.
    """
    if not _PRODUCTS.isdisjoint(map(type, operators)):
        return True
    # only operators with results of short floats round
    kinds = [
        type(op) for op in operators if any(v.dtype in SHORT_FLOATS for v in op.outputs)
    ]
    rounding = [kind for kind in kinds if kind not in _EXACT]
    if not rounding:
        return True
    return len(rounding) + rounded_number <= 1 and _ACCUMULATING.isdisjoint(kinds)


def _applied_in_fp32(
    t: Tosa, function: Callable[..., Any], arguments: list[Any], val: Any
) -> Any:
    """Apply the rule to operands in fp32, and cast its result back."""
    return _as_recorded(
        t, function(t, *(_cast_to_fp32(t, argument) for argument in arguments)), val
    )


def _as_recorded(t: Tosa, result: Any, val: Any) -> Any:
    """Cast the fp32 results of a rule back to the types of ``val``."""
    if isinstance(result, tuple):
        return tuple(
            [v and _cast_back(t, v, fake) for v, fake in zip(result, val, strict=True)]
        )
    return _cast_back(t, result, val)


def _cast_to_fp32(t: Tosa, argument: Any) -> Any:
    """Cast values of short floats in an argument to fp32, also in lists."""
    if isinstance(argument, Value):
        return (
            t.cast(argument, DType.FP32) if argument.dtype in SHORT_FLOATS else argument
        )
    return (
        [_cast_to_fp32(t, part) for part in argument]
        if isinstance(argument, (list, tuple))
        else argument
    )


def _cast_back(t: Tosa, value: Value, fake: torch.Tensor) -> Value:
    """Return an fp32 result cast to the short float type, or that of fp8, of ``fake``.

    Any other result as it is.
    """
    dtype = DTYPES[fake.dtype]
    if dtype in FLOAT8 and value.dtype is DType.FP32:
        return rounded(t, value, dtype)
    return (
        t.cast(value, dtype)
        if dtype in SHORT_FLOATS and value.dtype is DType.FP32
        else value
    )
