"""Conversions between element types as torch has them."""

from __future__ import annotations

import math

import torch

from ...ir.graph import Value
from ...ir.operators import CAST
from ...ir.types import FLOATS, DType, Type
from ..builder import Tosa
from ..float8 import LEAST_KEPT
from ..lazy.lazy_values import Scaled
from ..lazy.quantization import Scale
from ..promotion import converted
from ..registry import lowers
from ..torch_values.tensor_types import dtype_of

aten = torch.ops.aten


def to_torch(t: Tosa, x: Value, dtype: torch.dtype | None) -> Value:
    """Return x cast to ``dtype``, or x itself if ``dtype`` is None."""
    if dtype is None:
        return x
    return converted(t, x, dtype_of(dtype))


@lowers(aten.to.dtype, aten.to.dtype_layout, aten.to.device, aten._to_copy.default)
def to_dtype(t: Tosa, self: Value, dtype: torch.dtype | None) -> Value:
    """[*S] -> [*S]

    On a target without floats, the cast of integers to float32 emits no operator. It
    returns a lazy value with a scale of 1, which quantized operators can read. A large
    weight of int8 is cast at run time: in the file, it takes a quarter of the floats.
    """
    if dtype is not torch.float32 or self.dtype in FLOATS:
        return to_torch(t, self, dtype)
    has_floats = "FP" in t.spec.profiles
    if has_floats and _is_large_weight(self):
        return t.emit(CAST, (self,), fold=False, dtype=DType.FP32)
    if has_floats or self.constant is not None:
        return to_torch(t, self, dtype)
    # a lazy value holds integers of at most 32 bits
    x = self
    if x.dtype is DType.BOOL:
        x = t.cast(x, DType.INT8)
    elif x.dtype is DType.INT64:
        x = t.cast(x, DType.INT32)
    return Scaled(x, Scale(1.0))


def _is_large_weight(x: Value) -> bool:
    """Return whether x is an int8 constant of at least LEAST_KEPT elements."""
    is_int8_constant = x.constant is not None and x.dtype is DType.INT8
    return is_int8_constant and math.prod(x.shape) >= LEAST_KEPT


@lowers(aten.to.other, aten.type_as.default)
def to_other(t: Tosa, self: Value, other: Type) -> Value:
    """[*S] -> [*S] of the type of ``other``"""
    return converted(t, self, other.dtype)
