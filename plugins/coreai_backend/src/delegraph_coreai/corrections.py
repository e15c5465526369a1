"""Rules that take the place of coreai_torch's, and rules that it lacks.

The converter calls a rule with its values by node name, the call, and its location.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from coreai._compiler.dialects import coreai as op
from coreai_torch._aten_to_core import (
    replace_adaptive_avg_pool2d,
    replace_binary_ops,
)
from coreai_torch._utils import get_operand, get_output_element_type_from_node

Values = Mapping[str, Any]


def floor(values: Values, node: Any, loc: Any) -> Any:
    """x // 1, which is NaN for an infinity: that stays as it is."""
    x = get_operand(values, node, 0)
    return _unless_infinite(x, _floor(x))


def ceil(values: Values, node: Any, loc: Any) -> Any:
    """-floor(-x)."""
    x = get_operand(values, node, 0)
    return _unless_infinite(x, _negate(_floor(_negate(x))))


def trunc(values: Values, node: Any, loc: Any) -> Any:
    """The floor of |x|, with the sign of x."""
    x = get_operand(values, node, 0)
    size = _floor(op.abs_(x))
    is_negative = op.broadcasting_greater(_like(0, x), x)
    return _unless_infinite(x, op.broadcasting_where(is_negative, _negate(size), size))


def log1p(values: Values, node: Any, loc: Any) -> Any:
    """log(1 + x), exact where 1 + x has lost digits of x."""
    # Core AI simplifies (1 + x) - 1, so Kahan's formula does not help
    x = get_operand(values, node, 0)
    two = _like(2, x)
    ratio = op.broadcasting_divide(x, op.broadcasting_add(x, two))
    near = op.broadcasting_mul(op.atanh(ratio), two)
    far = op.log(op.broadcasting_add(x, _like(1, x)))
    is_small = op.broadcasting_greater(_like(0.5, x), op.abs_(x))
    return op.broadcasting_where(is_small, near, far)


def expm1(values: Values, node: Any, loc: Any) -> Any:
    """exp(x) - 1, exact where exp(x) has lost digits of x."""
    # tanh has all digits near 0: exp(x) - 1 = tanh(x / 2) * (exp(x) + 1)
    x = get_operand(values, node, 0)
    one = _like(1, x)
    raised = op.exp(x)
    half = op.tanh(op.broadcasting_mul(x, _like(0.5, x)))
    is_small = op.broadcasting_greater(one, op.abs_(x))
    near = op.broadcasting_mul(half, op.broadcasting_add(raised, one))
    return op.broadcasting_where(is_small, near, op.broadcasting_sub(raised, one))


def add(values: Values, node: Any, loc: Any) -> Any:
    """x + alpha * y."""
    x, y = _cast_operands(values, node)
    return op.broadcasting_add(x, _scaled(y, node))


def mul(values: Values, node: Any, loc: Any) -> Any:
    """x * y, which is "and" of truth values."""
    if getattr(node.meta["val"], "dtype", None) is not torch.bool:
        return replace_binary_ops(values, node, loc)
    x = get_operand(values, node, 0)
    return op.broadcasting_and(x, get_operand(values, node, 1))


def sub(values: Values, node: Any, loc: Any) -> Any:
    """x - alpha * y."""
    x, y = _cast_operands(values, node)
    return op.broadcasting_sub(x, _scaled(y, node))


def rsub(values: Values, node: Any, loc: Any) -> Any:
    """y - alpha * x."""
    x, y = _cast_operands(values, node)
    return op.broadcasting_sub(y, _scaled(x, node, place=2))


def unbind(values: Values, node: Any, loc: Any) -> Any:
    """One slice for each position along an axis of known size."""
    x = get_operand(values, node, 0)
    sizes = x.type.shape
    axis = node.args[1] if len(node.args) > 1 else 0
    axis %= len(sizes)
    if min(sizes) < 0:
        raise ValueError("the sizes of unbind vary")
    slices = []
    for position in range(sizes[axis]):
        first = [0] * len(sizes)
        first[axis] = position
        last = list(sizes)
        last[axis] = position + 1
        part = op.slice_(x, first, last, [1] * len(sizes))
        slices.append(op.shrink_dims(part, [axis]))
    return slices


def convert(values: Values, node: Any, loc: Any) -> Any:
    """The operand in the type of the result: there is one device."""
    return op.cast(
        get_operand(values, node, 0), get_output_element_type_from_node(node)
    )


def quantize(values: Values, node: Any, loc: Any) -> Any:
    """round(x / scale) + zero point, limited to its range."""
    x, scale, zero, low, high = node.args[:5]
    kind = get_output_element_type_from_node(node)
    x = values[x.name]
    zero = op.constant(zero, dtype=kind)
    result = op.quantize(x, _like(scale, x), zero, _like(0, x), _axis(0))
    # Core AI limits to the range of the type
    result = op.broadcasting_maximum(result, op.constant(low, dtype=kind))
    return op.broadcasting_minimum(result, op.constant(high, dtype=kind))


def dequantize(values: Values, node: Any, loc: Any) -> Any:
    """(x - zero point) * scale."""
    x, scale, zero = node.args[:3]
    x = values[x.name]
    kind = get_output_element_type_from_node(node)
    scale = op.constant(scale, dtype=kind)
    zeros = op.constant(0, dtype=kind)
    return op.dequantize(x, scale, _like(zero, x), zeros, _axis(0))


def dequantize_channels(values: Values, node: Any, loc: Any) -> Any:
    """The same with a scale and a zero point for each channel of an axis.

    Zero points other than 0 are refused before.
    """
    x, scales, _, axis = node.args[:4]
    x = values[x.name]
    kind = get_output_element_type_from_node(node)
    sizes = [1] * x.type.rank
    sizes[axis] = x.type.shape[axis]
    scales = op.reshape(op.cast(values[scales.name], kind), sizes)
    if node.args[0].meta["val"].dtype is torch.int32:  # biases
        return op.broadcasting_mul(op.cast(x, kind), scales)
    zeros = np.zeros(sizes, np.int8)
    offset = op.constant(zeros, dtype=x.type.element_type)
    shift = op.constant(zeros.astype(np.float32), dtype=kind)
    return op.blockwise_shift_scale(x, scales, offset, shift)


def _axis(axis: int) -> Any:
    return op.constant(np.array(axis, np.int32))


def _cast_operands(values: Values, node: Any) -> tuple[Any, Any]:
    """Return the operands in the type of the result."""
    if not hasattr(node.meta["val"], "dtype"):  # sizes
        return get_operand(values, node, 0), get_operand(values, node, 1)
    kind = get_output_element_type_from_node(node)
    x = op.cast(get_operand(values, node, 0), kind)
    y = op.cast(get_operand(values, node, 1), kind)
    return x, y


def _scaled(y: Any, node: Any, place: int = 9) -> Any:
    """Return an operand times ``alpha``, which may be the argument at ``place``."""
    alpha = node.kwargs.get("alpha", 1)
    if len(node.args) > place:
        alpha = node.args[place]
    return y if alpha == 1 else op.broadcasting_mul(y, _like(alpha, y))


def _floor(x: Any) -> Any:
    return op.broadcasting_floor_divide(x, _like(1, x))


def _negate(x: Any) -> Any:
    return op.broadcasting_mul(x, _like(-1, x))


def _like(number: float, x: Any) -> Any:
    """Return a constant of the type of ``x``."""
    return op.constant(number, dtype=x.type.element_type)


def _is_infinite(x: Any) -> Any:
    return op.broadcasting_equal(op.abs_(x), _like(float("inf"), x))


def _unless_infinite(x: Any, result: Any) -> Any:
    """Return ``x`` where it is infinite, and ``result`` elsewhere."""
    return op.broadcasting_where(_is_infinite(x), x, result)


RULES: Mapping[str, Callable[..., Any]] = {
    "aten::floor.default": floor,
    "aten::ceil.default": ceil,
    "aten::trunc.default": trunc,
    "aten::log1p.default": log1p,
    "aten::expm1.default": expm1,
    "aten::add.Tensor": add,
    "aten::sub.Tensor": sub,
    "aten::mul.Tensor": mul,
    "aten::rsub.Scalar": rsub,
    "aten::rsub.Tensor": rsub,
    "aten::unbind.int": unbind,
    "aten::adaptive_avg_pool2d.default": replace_adaptive_avg_pool2d,
    "aten::to.device": convert,
    "aten::to.other": convert,
    "aten::to.dtype_layout": convert,
    "aten::type_as.default": convert,
    "quantized_decomposed::quantize_per_tensor.default": quantize,
    "quantized_decomposed::dequantize_per_tensor.default": dequantize,
    "quantized_decomposed::dequantize_per_channel.default": dequantize_channels,
}
"""Operator -> the rule for it."""
