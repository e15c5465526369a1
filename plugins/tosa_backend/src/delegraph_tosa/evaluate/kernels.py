"""The registry of kernels: one pure function on numpy arrays for each operator class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from delegraph.errors import InternalError, Unsupported

from ..ir.graph import Array, Graph, Operator
from ..ir.types import ARRAY_DTYPES, FLOAT8, DType, Type
from .float8 import decoded_float8, encoded_float8

Result = Any
"""An array, or a tuple of arrays; numpy annotates most of its functions as returning Any."""
Kernel = Callable[..., Result]
K = TypeVar("K", bound=Kernel)

KERNELS: dict[type[Operator], Kernel] = {}
"""Operator class -> ``kernel(operator, *operands)``, which returns an array or a tuple of arrays.

A kernel may return a wider element type than the result's (the caller converts: integers wrap, floats round), a view
of an operand, or a scalar in place of a rank 0 array. It never writes to an operand.
"""

AS_STORED: set[type[Operator]] = set()
"""Operators whose kernels take and give arrays as they are stored: bodies of control flow decode for themselves."""

_OPAQUE = frozenset(t for t in DType if "FP" in t.name and t > DType.SHAPE and t not in FLOAT8) | {DType.MXINT8}


def computes(*operators: type[Operator], as_stored: bool = False) -> Callable[[K], K]:
    """Register the kernel of these operators; each has exactly one."""

    def register(kernel: K) -> K:
        for operator in operators:
            if operator in KERNELS:
                raise InternalError("internal", f"{operator.__name__} has two kernels")
            KERNELS[operator] = kernel
            if as_stored:
                AS_STORED.add(operator)
        return kernel

    return register


def result_types(operator: Operator) -> tuple[Type, ...]:
    """Types of the results; those of an operator that is only the expression of a constant are inferred."""
    return tuple(v.type for v in operator.outputs) or operator.infer()


def why_not(operator: Operator) -> str | None:
    """Why this operator cannot be computed here, or None."""
    if type(operator) not in KERNELS:
        return f"the host runtime does not compute {operator.name}"
    types = [v.type for v in operator.inputs] + list(result_types(operator))
    strange = next((t.dtype for t in types if t.dtype not in ARRAY_DTYPES or t.dtype in _OPAQUE), None)
    if strange:
        return f"the host runtime does not compute {operator.name} on {strange}"
    bodies = [v for v in operator.attribute_values().values() if isinstance(v, Graph)]
    return next((why for body in bodies for inner in body.operators if (why := why_not(inner))), None)


def expect_computable(operator: Operator) -> None:
    """Raise ``Unsupported`` for an operator that has no kernel."""
    why = why_not(operator)
    if why:
        raise Unsupported("unsupported", why, source=operator.source)


def compute(operator: Operator, operands: Sequence[Array], types: Sequence[Type]) -> tuple[Array, ...]:
    """Results of one operator, exactly of ``types``. The caller silences numpy's floating-point warnings."""
    if type(operator) in AS_STORED:
        return tuple(KERNELS[type(operator)](operator, *operands))
    decoded = [_decoded(a, v.type.dtype) for a, v in zip(operands, operator.inputs, strict=True)]
    results = KERNELS[type(operator)](operator, *decoded)
    if not isinstance(results, tuple):
        results = (results,)
    return tuple(_conform(operator, r, t) for r, t in zip(results, types, strict=True))


def _conform(operator: Operator, result: Any, type: Type) -> Array:
    array = _encoded(np.asarray(result), type.dtype)
    if array.shape != type.shape:
        raise InternalError("internal", f"{operator.name} computed shape {list(array.shape)}, wanted {type}")
    return array


def _decoded(array: Array, dtype: DType) -> Array:
    """BF16 and FP8 bits as fp32; every other type is what numpy has."""
    if dtype in FLOAT8:
        return decoded_float8(array, dtype)
    if dtype is not DType.BF16:
        return array
    return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _encoded(array: Array, dtype: DType) -> Array:
    if dtype in FLOAT8:
        return encoded_float8(array, dtype)
    if dtype is not DType.BF16:
        return array.astype(ARRAY_DTYPES[dtype], copy=False)
    bits = array.astype(np.float32, copy=False).view(np.uint32)
    nearest_even = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded = np.where(np.isnan(array), np.uint32(0x7FC00000), bits + nearest_even)
    return (rounded >> np.uint32(16)).astype(np.uint16)
