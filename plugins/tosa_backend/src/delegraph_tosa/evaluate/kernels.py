"""Registry of kernels: a pure numpy function for each operator class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

import numpy as np
from delegraph.errors import InternalError, Unsupported

from ..ir.graph import Array, Graph, Operator
from ..ir.operators import ADD, MUL, SUB
from ..ir.types import ARRAY_DTYPES, BLOCK_SCALED, DType, NanMode, Type
from .small_floats import FRACTIONS, decoded, encoded

Result = Any
"""An array, or a tuple of arrays.

Numpy annotates most of its functions as returning Any.
"""
Kernel = Callable[..., Result]
K = TypeVar("K", bound=Kernel)

FAMILIES = (
    "block_scaled",
    "control",
    "convert",
    "convolution",
    "elementwise",
    "fourier",
    "image",
    "layout",
    "matmul",
    "reduce",
    "shape",
    "variable",
)
"""Modules of kernels, which register them."""
_KERNELS: dict[type[Operator], Kernel] = {}
"""Maps an operator class to ``kernel(operator, *operands)`` -> array or arrays.

A kernel may return a wider element type than the result's (the caller converts:
integers wrap, floats round), a view of an operand, or a scalar in place of a rank 0
array. It never writes to an operand.
"""

AS_STORED: set[type[Operator]] = set()
"""Operators with kernels on stored elements: they move elements or run bodies."""


ELEMENTWISE = frozenset({ADD, MUL, SUB})
"""Operators that scale and shift weights; the others compute small constants."""
PIECE = 1 << 20
"""Elements of BF16 that they compute at a time, to save memory."""


def computes(*operators: type[Operator], as_stored: bool = False) -> Callable[[K], K]:
    """Register the kernel of these operators; each has exactly one.

    A kernel gets BF16 and smaller floats as fp32. It gets block-scaled operands as fp32
    products of value and scale, or as pairs if its result is block-scaled, too. With
    ``as_stored``, it gets all operands as memory holds them.
    """

    def register(kernel: K) -> K:
        for operator in operators:
            if operator in _KERNELS:
                raise InternalError("internal", f"{operator.__name__} has two kernels")
            _KERNELS[operator] = kernel
        if as_stored:
            AS_STORED.update(operators)
        return kernel

    return register


@cache
def all_kernels() -> dict[type[Operator], Kernel]:
    """Return all kernels. They are imported late: many lowerings compute nothing."""
    for family in FAMILIES:
        import_module(f".{family}", __package__)
    return _KERNELS


def result_types(operator: Operator) -> tuple[Type, ...]:
    """Return the types of the results.

    They are inferred for an operator of a ``Folded`` constant, which has no outputs.
    """
    if operator.outputs:
        return tuple([value.type for value in operator.outputs])
    return operator.infer()


def why_not(operator: Operator) -> str | None:
    """Return why this operator cannot be computed here, or None."""
    kernels = all_kernels()
    if type(operator) not in kernels:
        return f"the host runtime does not compute {operator.name}"
    for body in operator.attribute_values().values():
        if not isinstance(body, Graph):
            continue
        # each graph once: the number of calls may double with each level of nesting
        for graph in body.reachable():
            for inner in graph.operators:
                if type(inner) not in kernels:
                    return f"the host runtime does not compute {inner.name}"
    return None


def expect_computable(operator: Operator) -> None:
    """Raise ``Unsupported`` for an operator that has no kernel."""
    why = why_not(operator)
    if why:
        raise Unsupported("unsupported", why, source=operator.source)


def compute(
    operator: Operator, operands: Sequence[Array], types: Sequence[Type]
) -> tuple[Array, ...]:
    """Return the results of an operator that has a kernel, as arrays of ``types``.

    The caller silences numpy's warnings.
    """
    kind = type(operator)
    if kind in AS_STORED:
        results = _results(operator, operands)
        _expect_shapes(operator, results, types)
        return results
    if kind in ELEMENTWISE:
        (result_type,) = types
        if result_type.dtype is DType.BF16 and len(result_type.shape) > 1:
            return (_in_pieces(operator, operands, result_type),)
    return _computed(operator, operands, types)


def _in_pieces(operator: Operator, operands: Sequence[Array], type: Type) -> Array:
    """Compute an elementwise operator in blocks of rows, to save memory."""
    result = np.empty(type.shape, ARRAY_DTYPES[type.dtype])
    rows = max(1, PIECE * len(result) // max(1, result.size))
    for first in range(0, len(result), rows):
        piece = slice(first, first + rows)
        parts = [
            operand[piece] if _has_rows_of(operand, result) else operand
            for operand in operands
        ]
        shape = (len(result[piece]), *type.shape[1:])
        (result[piece],) = _computed(operator, parts, (Type(shape, type.dtype),))
    return result


def _has_rows_of(operand: Array, result: Array) -> bool:
    """Return whether an operand has the rows of the result, and not one for all."""
    return operand.ndim == result.ndim and len(operand) == len(result)


def _computed(
    operator: Operator, operands: Sequence[Array], types: Sequence[Type]
) -> tuple[Array, ...]:
    """Compute an operator on decoded operands, and encode its results."""
    pairs = any(type.dtype in BLOCK_SCALED for type in types)
    numbers = [
        numbers_of(array, value.type.dtype, pairs)
        for array, value in zip(operands, operator.inputs, strict=True)
    ]
    results = zip(_results(operator, numbers), types, strict=True)
    stored = tuple(
        [stored_numbers(np.asarray(result), type.dtype) for result, type in results]
    )
    _expect_shapes(operator, stored, types)
    return stored


def _results(operator: Operator, operands: Sequence[Array]) -> tuple[Any, ...]:
    """Return the results of an operator's kernel as a tuple."""
    kernel = all_kernels()[type(operator)]
    results = kernel(operator, *operands)
    if isinstance(results, tuple):
        return results
    return (results,)


def _expect_shapes(
    operator: Operator, arrays: Sequence[Array], types: Sequence[Type]
) -> None:
    """Raise InternalError unless the results have the shapes of ``types``."""
    for array, type in zip(arrays, types, strict=True):
        if array.shape != type.shape:
            text = f"{operator.name} computed shape {list(array.shape)}, wanted {type}"
            raise InternalError("internal", text)


def numbers_of(array: Array, dtype: DType, pairs: bool = False) -> Array:
    """Decode elements for numpy: BF16 and smaller floats become fp32.

    Block-scaled elements become fp32 products of value and scale. With ``pairs``, they
    stay pairs.
    """
    if dtype in FRACTIONS:
        return decoded(array, dtype)
    if dtype is DType.BF16:
        bits = array.astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32)
    if dtype in BLOCK_SCALED and not pairs:
        _, scale_dtype, value_dtype = BLOCK_SCALED[dtype]
        values = decoded(array["value"], value_dtype)
        return values * decoded(array["scale"], scale_dtype)
    return array


def stored_numbers(array: Array, dtype: DType) -> Array:
    """Encode numbers as memory holds them: small floats as rounded bit patterns."""
    if dtype in FRACTIONS:
        return encoded(array, dtype)
    if dtype is not DType.BF16:
        return array.astype(ARRAY_DTYPES[dtype], copy=False)
    bits = array.astype(np.float32, copy=False).view(np.uint32)
    nearest_even = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded = np.where(np.isnan(array), np.uint32(0x7FC00000), bits + nearest_even)
    return (rounded >> np.uint32(16)).astype(np.uint16)


def extreme_of(operator: Operator) -> np.ufunc:
    """Return numpy's function for MAXIMUM, REDUCE_MIN etc., by the NaN mode."""
    ignores_nan = operator.attribute_values()["nan_mode"] is NanMode.IGNORE
    if "MAX" in operator.name:
        return np.fmax if ignores_nan else np.maximum
    return np.fmin if ignores_nan else np.minimum
