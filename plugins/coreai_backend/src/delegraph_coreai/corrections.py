"""Rules that replace wrong rules of coreai_torch, and rules that it lacks.

A rule writes one call with operators of Core AI, and returns its result. The converter
calls it with ``values``, the converted values by node name, with ``node``, the call,
and with ``loc``, its location. The docstring of a rule is the formula that it writes.
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
    replace_sdpa,
)
from coreai_torch._utils import (
    get_operand,
    get_output_element_type_from_node,
    get_promoted_type,
)

Values = Mapping[str, Any]


def floor(values: Values, node: Any, loc: Any) -> Any:
    """x // 1; infinite elements stay, because Core AI computes NaN for them."""
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
    """x * y; "and" for truth values. Integers keep their low bits, as in eager."""
    dtype = getattr(node.meta["val"], "dtype", None)
    if dtype is torch.bool:
        x = get_operand(values, node, 0)
        return op.broadcasting_and(x, get_operand(values, node, 1))
    if dtype is not None and not dtype.is_floating_point:
        return op.broadcasting_mul(*_cast_operands(values, node))
    return replace_binary_ops(values, node, loc)


def sub(values: Values, node: Any, loc: Any) -> Any:
    """x - alpha * y."""
    x, y = _cast_operands(values, node)
    return op.broadcasting_sub(x, _scaled(y, node))


def rsub(values: Values, node: Any, loc: Any) -> Any:
    """y - alpha * x."""
    x, y = _cast_operands(values, node)
    return op.broadcasting_sub(y, _scaled(x, node))


def remainder(values: Values, node: Any, loc: Any) -> Any:
    """The remainder with the sign of the divisor, which may be infinite."""
    x, y = _cast_operands(values, node)
    rest = op.broadcasting_modulo(x, y)
    zero = _like(0, rest)
    is_rest_negative = op.broadcasting_greater(zero, rest)
    is_divisor_negative = op.broadcasting_greater(zero, y)
    has_other_sign = op.broadcasting_and(
        op.broadcasting_not_equal(rest, zero),
        op.broadcasting_not_equal(is_rest_negative, is_divisor_negative),
    )
    return op.broadcasting_where(has_other_sign, op.broadcasting_add(rest, y), rest)


def less_or_equal(values: Values, node: Any, loc: Any) -> Any:
    """x <= y, which is false for NaN."""
    x, y = _promoted_operands(values, node)
    return op.broadcasting_or(
        op.broadcasting_greater(y, x), op.broadcasting_equal(x, y)
    )


def greater_or_equal(values: Values, node: Any, loc: Any) -> Any:
    """x >= y, which is false for NaN."""
    x, y = _promoted_operands(values, node)
    return op.broadcasting_or(
        op.broadcasting_greater(x, y), op.broadcasting_equal(x, y)
    )


def bitwise_not(values: Values, node: Any, loc: Any) -> Any:
    """-1 - x, and 255 - x in uint8. The converter computes it in float32."""
    x = get_operand(values, node, 0)
    dtype = node.meta["val"].dtype
    if dtype is torch.bool:
        return op.not_(x)
    return op.broadcasting_sub(_like(255 if dtype is torch.uint8 else -1, x), x)


def squeeze(values: Values, node: Any, loc: Any) -> Any:
    """``x`` without the given axes that have one element."""
    x = get_operand(values, node, 0)
    sizes = x.type.shape
    axes = [axis % len(sizes) for axis in node.args[1] if sizes]
    removed = [axis for axis in axes if sizes[axis] == 1]
    return op.shrink_dims(x, removed) if removed else x


def argmax(values: Values, node: Any, loc: Any) -> Any:
    """The position of the first NaN, or of the greatest element."""
    x = get_operand(values, node, 0)
    axis = node.args[1] if len(node.args) > 1 else None
    keeps_axis = len(node.args) > 2 and node.args[2]
    if axis is None:
        x = op.reshape(x, [-1])
        axis = 0
    axis %= x.type.rank
    found = _positions(x, axis)
    return found if keeps_axis else op.shrink_dims(found, [axis])


def max_of_axis(values: Values, node: Any, loc: Any) -> Any:
    """The greatest elements along an axis, and their positions."""
    x = get_operand(values, node, 0)
    axis = node.args[1] % x.type.rank
    results = [op.reduce_max(x, [axis]), _positions(x, axis)]
    return _with_axis(results, node, axis)


def min_of_axis(values: Values, node: Any, loc: Any) -> Any:
    """The least elements along an axis, and their positions."""
    x = get_operand(values, node, 0)
    axis = node.args[1] % x.type.rank
    results = [op.reduce_min(x, [axis]), _positions(_negate(x), axis)]
    return _with_axis(results, node, axis)


def attention(values: Values, node: Any, loc: Any) -> Any:
    """Attention, whose result is 0 for queries that may see no key."""
    result = replace_sdpa(values, node, loc)
    mask = node.kwargs.get("attn_mask")
    if len(node.args) > 3:
        mask = node.args[3]
    if mask is None:
        return result
    is_bool = mask.meta["val"].dtype is torch.bool
    mask = values[mask.name]
    if is_bool:
        mask = op.cast(mask, result.type.element_type)
    hidden = _like(0 if is_bool else float("-inf"), mask)
    most = op.reduce_max(mask, [mask.type.rank - 1])
    sees_a_key = op.broadcasting_greater(most, hidden)
    return op.broadcasting_where(sees_a_key, result, _like(0, result))


def unbind(values: Values, node: Any, loc: Any) -> Any:
    """One slice for each position along an axis of known size."""
    x = get_operand(values, node, 0)
    sizes = x.type.shape
    axis = node.args[1] if len(node.args) > 1 else 0
    axis %= len(sizes)
    if min(sizes) < 0:
        raise ValueError("unbind needs fixed sizes, but its operand has dynamic sizes")
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
    """The operand in the type of the result; a change of the device is ignored."""
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
    """x * scale, with a scale for each channel of an axis.

    The support check refuses zero points other than 0.
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
    """Return an axis as the operand of an operator."""
    return op.constant(np.array(axis, np.int32))


def _cast_operands(values: Values, node: Any) -> tuple[Any, Any]:
    """Return the operands in the type of the result."""
    if not hasattr(node.meta["val"], "dtype"):  # sizes
        return get_operand(values, node, 0), get_operand(values, node, 1)
    kind = get_output_element_type_from_node(node)
    x = op.cast(get_operand(values, node, 0), kind)
    y = op.cast(get_operand(values, node, 1), kind)
    return x, y


def _promoted_operands(values: Values, node: Any) -> tuple[Any, Any]:
    """Return the operands in their common type."""
    x = get_operand(values, node, 0)
    y = get_operand(values, node, 1)
    kind = get_promoted_type(x.type, y.type)
    return op.cast(x, kind), op.cast(y, kind)


def _scaled(y: Any, node: Any) -> Any:
    """Return an operand times ``alpha``, the third argument."""
    alpha = node.kwargs.get("alpha", 1)
    if len(node.args) > 2:
        alpha = node.args[2]
    return y if alpha == 1 else op.broadcasting_mul(y, _like(alpha, y))


def _positions(x: Any, axis: int) -> Any:
    """Return the positions of the greatest elements, where NaN counts as the greatest.

    Along a row with NaN, the search is among 1 for NaN and 0 for other elements.
    """
    is_nan = op.cast(op.broadcasting_not_equal(x, x), x.type.element_type)
    has_nan = op.broadcasting_greater(op.reduce_max(is_nan, [axis]), _like(0, x))
    marked = op.broadcasting_where(has_nan, is_nan, x)
    return op.cast(op.argmax(marked, axis), np.int32)


def _with_axis(results: list[Any], node: Any, axis: int) -> list[Any]:
    """Return results without their axis, unless the call keeps it."""
    if len(node.args) > 2 and node.args[2]:
        return results
    return [op.shrink_dims(result, [axis]) for result in results]


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
    "aten::add.Scalar": add,
    "aten::sub.Tensor": sub,
    "aten::sub.Scalar": sub,
    "aten::mul.Tensor": mul,
    "aten::mul.Scalar": mul,
    "aten::remainder.Tensor": remainder,
    "aten::le.Tensor": less_or_equal,
    "aten::le.Scalar": less_or_equal,
    "aten::ge.Tensor": greater_or_equal,
    "aten::ge.Scalar": greater_or_equal,
    "aten::bitwise_not.default": bitwise_not,
    "aten::squeeze.dims": squeeze,
    "aten::argmax.default": argmax,
    "aten::max.dim": max_of_axis,
    "aten::min.dim": min_of_axis,
    "aten::scaled_dot_product_attention.default": attention,
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
