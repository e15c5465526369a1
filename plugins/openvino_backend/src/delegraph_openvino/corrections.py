"""Rules for operators that OpenVINO computes wrongly, or that its frontend lacks.

A rule writes an operator with others that OpenVINO computes right.
``OPERATORS`` maps an operator of torch to a function of OpenVINO's values. All operands
have one floating-point type, that of torch's type promotion; Python numbers are
constants of this type.

The functions avoid the following faults, seen with openvino 2026.4.1 on a CPU. ``exp``
of NaN is infinite, ``greater`` of NaN is true, and ``maximum`` may lose NaN. ``log(1 +
x)`` and ``exp(x) - 1`` lose digits near 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import openvino as ov
import torch
from torch.fx import Node

op = ov.opset13
aten = torch.ops.aten
Rule = Callable[..., Any]


def _number(value: float, like: Any) -> Any:
    """Return a constant of the type of ``like``."""
    return op.convert(op.constant(np.float32(value)), like.get_element_type())


def _if_number(x: Any, result: Any) -> Any:
    """Return ``result`` for elements of ``x`` that are numbers, and NaN for NaN."""
    return op.select(op.equal(x, x), result, x)


def _exp(x: Any) -> Any:
    return _if_number(x, op.exp(x))


def _expm1(x: Any) -> Any:
    """Return exp(x) - 1 as 2t / (1 - t) with t = tanh(x / 2), for x of at most 1."""
    one = _number(1, x)
    two = _number(2, x)
    t = op.tanh(op.divide(x, two))
    near = op.divide(op.multiply(two, t), op.subtract(one, t))
    far = op.subtract(op.exp(x), one)
    return op.select(op.less(one, x), far, near)


def _log1p(x: Any) -> Any:
    """Return log(y) x / (y - 1) with the rounded y = 1 + x: the rounding errors cancel.

    It uses a subtraction: OpenVINO replaces ``log(exp(x) + 1)`` by one inexact
    operator.
    """
    one = _number(1, x)
    y = op.subtract(x, _number(-1, x))
    corrected = op.multiply(op.log(y), op.divide(x, op.subtract(y, one)))
    is_large = op.less(_number(1e4, x), x)
    return op.select(op.equal(y, one), x, op.select(is_large, op.log(y), corrected))


def _softplus_of(x: Any) -> Any:
    """Return max(x, 0) + log(1 + exp(-|x|)), which does not overflow."""
    decay = op.exp(op.negative(op.abs(x)))
    return _if_number(x, op.add(op.maximum(x, _number(0, x)), _log1p(decay)))


def _softplus(x: Any, beta: Any, threshold: Any) -> Any:
    scaled = op.multiply(x, beta)
    return op.select(
        op.less(threshold, scaled), x, op.divide(_softplus_of(scaled), beta)
    )


def _log_sigmoid(x: Any) -> Any:
    return op.negative(_softplus_of(op.negative(x)))


def _mish(x: Any) -> Any:
    return op.multiply(x, op.tanh(_softplus_of(x)))


def _logaddexp(a: Any, b: Any) -> Any:
    """Return max(a, b) + log(1 + exp(-|a - b|))."""
    decay = _log1p(op.exp(op.negative(op.abs(op.subtract(a, b)))))
    # two equal infinities have no difference
    return op.select(
        op.equal(a, b),
        op.add(a, _number(math.log(2), a)),
        op.add(_maximum(a, b), decay),
    )


def _elu(x: Any, alpha: Any, scale: Any, input_scale: Any) -> Any:
    """Return scale * x above 0, else alpha * scale * (exp(x * input_scale) - 1)."""
    below = op.multiply(op.multiply(alpha, scale), _expm1(op.multiply(x, input_scale)))
    return op.select(op.less(_number(0, x), x), op.multiply(x, scale), below)


def _celu(x: Any, alpha: Any) -> Any:
    """Return x above 0, else alpha * (exp(x / alpha) - 1)."""
    below = op.multiply(alpha, _expm1(op.divide(x, alpha)))
    return op.select(op.less(_number(0, x), x), x, below)


def _erf(x: Any) -> Any:
    """Return the first terms of the series near 0, where OpenVINO is inexact."""
    square = op.multiply(x, x)
    sum_ = _number(-1 / 42, x)
    for term in (1 / 10, -1 / 3, 1):
        sum_ = op.add(op.multiply(sum_, square), _number(term, x))
    series = op.multiply(op.multiply(x, sum_), _number(2 / math.sqrt(math.pi), x))
    return op.select(op.less(op.abs(x), _number(0.1, x)), series, op.erf(x))


def _maximum(a: Any, b: Any) -> Any:
    """Return the maximum; NaN if an operand is NaN."""
    return _if_number(a, op.maximum(a, b))


def _minimum(a: Any, b: Any) -> Any:
    return _if_number(a, op.minimum(a, b))


def _clamp(x: Any, least: Any, most: Any) -> Any:
    return _if_number(x, op.minimum(op.maximum(x, least), most))


def _sign(x: Any) -> Any:
    """Return the sign; that of NaN is 0 in torch."""
    return op.select(op.equal(x, x), op.sign(x), _number(0, x))


def _angle(x: Any) -> Any:
    """Return the angle of real numbers: pi below 0, else 0; NaN for NaN."""
    zero = _number(0, x)
    return _if_number(x, op.select(op.less(x, zero), _number(math.pi, x), zero))


def _is_true(x: Any) -> Any:
    return op.not_equal(x, _number(0, x))


def _is_finite(x: Any) -> Any:
    """Return whether |x| is below infinity; a comparison with NaN is false."""
    return op.less(op.abs(x), _number(math.inf, x))


def _truncate(x: Any) -> Any:
    """Round toward zero."""
    return op.select(op.less(x, _number(0, x)), op.ceiling(x), op.floor(x))


OPERATORS: Mapping[Any, Rule] = {
    aten.exp.default: _exp,
    aten.expm1.default: _expm1,
    aten.log1p.default: _log1p,
    aten.softplus.default: _softplus,
    aten.log_sigmoid.default: _log_sigmoid,
    aten.mish.default: _mish,
    aten.logaddexp.default: _logaddexp,
    aten.elu.default: _elu,
    aten.celu.default: _celu,
    aten.erf.default: _erf,
    aten.maximum.default: _maximum,
    aten.minimum.default: _minimum,
    aten.clamp.default: _clamp,
    aten.clamp.Tensor: lambda x, least, most: _minimum(_maximum(x, least), most),
    aten.clamp_min.default: _maximum,
    aten.clamp_max.default: _minimum,
    aten.clamp_min.Tensor: _maximum,
    aten.clamp_max.Tensor: _minimum,
    # torch's decomposition compares, which is refused for dequantized numbers
    aten.prelu.default: op.prelu,
    aten.sign.default: _sign,
    aten.sgn.default: _sign,
    aten.angle.default: _angle,
    aten.gt.Tensor: lambda a, b: op.less(b, a),
    aten.gt.Scalar: lambda a, b: op.less(b, a),
    aten.ge.Tensor: lambda a, b: op.less_equal(b, a),
    aten.ge.Scalar: lambda a, b: op.less_equal(b, a),
    aten.isfinite.default: _is_finite,
    aten.logical_not.default: lambda x: op.logical_not(_is_true(x)),
    aten.logical_and.default: lambda a, b: op.logical_and(_is_true(a), _is_true(b)),
    aten.logical_or.default: lambda a, b: op.logical_or(_is_true(a), _is_true(b)),
    aten.logical_xor.default: lambda a, b: op.logical_xor(_is_true(a), _is_true(b)),
    aten.trunc.default: _truncate,
    aten.div.Tensor_mode: lambda a, b: _truncate(op.divide(a, b)),
    aten.div.Scalar_mode: lambda a, b: _truncate(op.divide(a, b)),
}
"""Operator of torch -> the function that writes it."""
TO_BOOL = "delegraph.is_true"
"""The name of a cast from floats to bool."""
_CASTS = (aten.to.dtype, aten._to_copy.default)
_LOGICAL = (
    aten.logical_not.default,
    aten.logical_and.default,
    aten.logical_or.default,
    aten.logical_xor.default,
)
REDUCTIONS = (
    aten.any.default,
    aten.any.dim,
    aten.any.dims,
    aten.all.default,
    aten.all.dim,
    aten.all.dims,
)
"""Reductions of truth values. OpenVINO converts numbers to 8 bits there, and NaN to 0.
"""


def name_of(target: Any) -> str:
    """Return the name by which OpenVINO's frontend finds the function for ``target``."""
    return f"delegraph.{target}"


def rules() -> dict[str, Rule]:
    """Return the functions by the names that ``correct`` returns."""
    named = {name_of(target): rule for target, rule in OPERATORS.items()}
    return {**named, TO_BOOL: _is_true}


class Correction(NamedTuple):
    """A call of a rule that replaces a call of torch.

    ``rule``: a name in ``rules``. ``operands``: nodes and numbers. ``dtype``: the type
    to which the operands are cast.
    """

    rule: str
    operands: list[Any]
    dtype: torch.dtype


def correct(
    node: Node, arguments: Mapping[str, Any], types: Collection[torch.dtype]
) -> Correction | None:
    """Return the call of a rule that replaces ``node``, or None.

    It is None if OpenVINO computes the call right. ``arguments``: those of the call, by
    name, with defaults. ``types``: the element types of OpenVINO.
    """
    common = _common_type(node, arguments)
    if common is None or common not in types:
        return None
    reads_truth = node.target in _LOGICAL or node.target in _CASTS
    is_number = reads_truth and common is not torch.bool
    if not common.is_floating_point and not is_number:
        return None
    if node.target in _CASTS:
        if arguments.get("dtype") is not torch.bool:
            return None
        return Correction(TO_BOOL, [arguments["self"]], common)
    arguments = dict(arguments)
    rounding_mode = arguments.pop("rounding_mode", "trunc")
    if node.target not in OPERATORS or rounding_mode != "trunc":
        return None
    if node.target is aten.clamp.default:
        arguments["min"] = -math.inf if arguments["min"] is None else arguments["min"]
        arguments["max"] = math.inf if arguments["max"] is None else arguments["max"]
    operands = list(arguments.values())
    if any(operand is None for operand in operands):
        return None
    return Correction(name_of(node.target), operands, common)


def _common_type(node: Node, arguments: Mapping[str, Any]) -> torch.dtype | None:
    """Return the type to which torch promotes the operands of a call.

    None for a call without tensors, or with other operands as well.
    """
    values = [operand.meta.get("val") for operand in node.all_input_nodes]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if not tensors or len(tensors) < len(values):
        return None
    common = tensors[0].dtype
    for tensor in tensors[1:]:
        common = torch.promote_types(common, tensor.dtype)
    has_float = any(isinstance(value, float) for value in arguments.values())
    if has_float and not common.is_floating_point:
        common = torch.float32
    return common
