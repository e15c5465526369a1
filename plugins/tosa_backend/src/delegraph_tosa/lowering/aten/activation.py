"""Activation functions. Infinities and NaN give the same as in torch."""

from __future__ import annotations

import math

import torch

from ...ir.graph import Value
from ...ir.types import FLOATS, DType
from ..builder import Shape, Tosa
from ..promotion import floating_value, promoted
from ..registry import lowers
from .elementwise import inverse, scaled
from .exponential import expm1_of, log1p_of

aten = torch.ops.aten
inf = math.inf


def limited(t: Tosa, x: Value, low: float | None, high: float | None) -> Value:
    """Return x clamped to ``low`` .. ``high``; None means no limit.

    If ``low`` is above ``high``, every element becomes ``high``, as in torch. Integers
    are clamped by MAXIMUM and MINIMUM. Raises Unsupported if a limit of them is a
    float.
    """
    if low is not None and high is not None and low > high:
        low = high
    if x.dtype in FLOATS:
        least = -inf if low is None else low
        most = inf if high is None else high
        return t.clamp(x, least, most)
    for limit in (low, high):
        t.refuse_unless(
            limit is None or isinstance(limit, int),
            f"limits {low} and {high} of {x.dtype} are not lowered, only whole numbers",
        )
    if low is not None:
        x = t.maximum(x, low)
    if high is not None:
        x = t.minimum(x, high)
    return x


@lowers(aten.relu.default)
def relu(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; relu(inf) is inf: the upper limit of the CLAMP is infinity, not the
    largest finite number
    """
    return limited(t, self, low=0, high=None)


@lowers(aten.relu6.default)
def relu6(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]"""
    return limited(t, self, low=0, high=6)


@lowers(aten.hardtanh.default)
def hardtanh(t: Tosa, self: Value, min_val: float, max_val: float) -> Value:
    """[*S] -> [*S]"""
    return limited(t, self, min_val, max_val)


@lowers(
    aten.clamp.default,
    aten.clip.default,
    aten.clamp_min.default,
    aten.clamp_max.default,
)
def clamp(
    t: Tosa, self: Value, min: float | None = None, max: float | None = None
) -> Value:
    """[*S] -> [*S]"""
    return limited(t, self, min, max)


@lowers(aten.clamp.Tensor)
def clamp_tensor(t: Tosa, self: Value, min: Value | None, max: Value | None) -> Value:
    """self [*S], min [*S], max [*S] -> [*S]; they broadcast"""
    x = self
    if min is not None:
        left, right = promoted(t, x, min)
        x = t.maximum(left, right)
    if max is not None:
        left, right = promoted(t, x, max)
        x = t.minimum(left, right)
    return x


@lowers(aten.sigmoid.default)
def sigmoid(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]"""
    return t.sigmoid(floating_value(t, self))


@lowers(aten.tanh.default)
def tanh(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; the absolute error is up to 6e-8: TOSA does not bound the relative
    error of TANH near 0
    """
    return t.tanh(floating_value(t, self))


@lowers(aten.silu.default)
def silu(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; x * sigmoid(x)"""
    return t.mul(self, t.sigmoid(self))


@lowers(aten.mish.default)
def mish(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; x * tanh(log(1 + exp(x))), which is x * n / (n + 2) with n = exp(x)
    * (exp(x) + 2)
    """
    # above this limit, n / (n + 2) rounds to 1; further up, exp(x)^2 would overflow
    limit = 5.0 if self.dtype is DType.FP16 else 20.0
    exponential = t.exp(t.minimum(self, limit))
    n = t.mul(exponential, t.add(exponential, 2))
    factor = t.mul(n, t.reciprocal(t.add(n, 2)))
    return t.mul(self, factor)


@lowers(aten.hardsigmoid.default)
def hardsigmoid(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; clamp(x + 3, 0, 6) / 6"""
    clamped = t.clamp(t.add(self, 3), 0, 6)
    return t.mul(clamped, 1 / 6)


@lowers(aten.hardswish.default)
def hardswish(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; x * clamp(x + 3, 0, 6) / 6"""
    clamped = t.clamp(t.add(self, 3), 0, 6)
    return t.mul(t.mul(self, clamped), 1 / 6)


@lowers(aten.leaky_relu.default)
def leaky_relu(t: Tosa, self: Value, negative_slope: float) -> Value:
    """[*S] -> [*S]; slope * x below 0"""
    sloped = t.mul(self, negative_slope)
    # for a slope up to 1, the larger of x and slope * x is the result on both sides of
    # 0
    if 0 < negative_slope <= 1:
        return t.maximum(self, sloped)
    return t.select(t.greater(self, 0), self, sloped)


@lowers(aten.rrelu.default)
def rrelu(t: Tosa, self: Value, lower: float, upper: float, training: bool) -> Value:
    """[*S] -> [*S]; a leaky ReLU with the mean of ``lower`` and ``upper`` as slope.

    Refused for training.
    """
    t.refuse_unless(not training, "it draws random numbers, which TOSA cannot")
    return leaky_relu(t, self, (lower + upper) / 2)


@lowers(aten.prelu.default)
def prelu(t: Tosa, self: Value, weight: Value) -> Value:
    """[N,C,*S], [C] or [1] -> [N,C,*S]; weight * x below 0"""
    slopes = t.reshape(weight, slopes_shape(self, weight))
    is_positive = t.greater(self, 0)
    return t.select(is_positive, self, t.mul(self, slopes))


def slopes_shape(x: Value, weight: Value) -> Shape:
    """Return the shape [1,C,1,..] in which PReLU slopes broadcast with x [N,C,*S].

    ``weight`` is [C], or [1] for one slope of all channels; then the shape is
    [1,1,1,..].
    """
    shape = [1] * x.rank
    # a tensor [N] has one slope and no axis of channels
    if x.rank > 1:
        shape[1] = math.prod(weight.shape)
    return tuple(shape)


@lowers(aten.elu.default)
def elu(t: Tosa, self: Value, alpha: float, scale: float, input_scale: float) -> Value:
    """[*S] -> [*S]; scale * x above 0, scale * alpha * (exp(input_scale * x) - 1)
    below; a zero keeps its sign
    """
    exponent = _times_factor(t, self, input_scale)
    exponential = expm1_of(t, exponent)
    is_negative = t.greater(0.0, self)
    below = _times_factor(t, exponential, alpha * scale)
    above = _times_factor(t, self, scale)
    return t.select(is_negative, below, above)


@lowers(aten.celu.default)
def celu(t: Tosa, self: Value, alpha: float) -> Value:
    """[*S] -> [*S]; x above 0, alpha * (exp(x / alpha) - 1) below"""
    input_scale = inverse(t, alpha, self.dtype)
    return elu(t, self, alpha, scale=1, input_scale=input_scale)


@lowers(aten.selu.default)
def selu(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; ELU with the constants of self-normalizing networks"""
    alpha = 1.6732632423543772
    scale = 1.0507009873554805
    return elu(t, self, alpha, scale, input_scale=1)


def _times_factor(t: Tosa, x: Value, factor: float) -> Value:
    """Return x * factor, or x itself if the factor is 1."""
    result = scaled(t, x, factor)
    assert isinstance(result, Value)
    return result


@lowers(aten.gelu.default)
def gelu(t: Tosa, self: Value, approximate: str) -> Value:
    """[*S] -> [*S]; x / 2 * (1 + erf(x / sqrt(2))), or torch's formula with tanh; the
    error is up to 1e-7 of x
    """
    if approximate == "tanh":
        cube = t.mul(t.mul(self, self), self)
        polynomial = t.add(self, t.mul(cube, 0.044715))
        curve = t.tanh(t.mul(polynomial, math.sqrt(2 / math.pi)))
    else:
        curve = t.erf(t.mul(self, math.sqrt(0.5)))
    half = t.mul(self, 0.5)
    return t.mul(half, t.add(curve, 1))


@lowers(aten.softplus.default)
def softplus(t: Tosa, self: Value, beta: float, threshold: float) -> Value:
    """[*S] -> [*S]; log(1 + exp(beta x)) / beta, and x where beta x is above the
    threshold
    """
    exponent = _times_factor(t, self, beta)
    exponential = t.exp(t.minimum(exponent, threshold))
    logarithm = log1p_of(t, exponential)
    is_linear = t.greater(exponent, threshold)
    inverse_beta = inverse(t, beta, self.dtype)
    curved = _times_factor(t, logarithm, inverse_beta)
    return t.select(is_linear, self, curved)
