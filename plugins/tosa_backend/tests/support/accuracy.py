"""The accuracy that the specification asks of floating-point results, operator by
operator, and its official judge.

A result is compared with the reference model's in fp64, by the verifier that the
conformance tests use (tosa-tools' ``libtosa_reference_verify_lib``). It knows every
float type of TOSA 1.0 and 1.1 outside the block-scaled ones, so that no bound is
computed here; what is here says which rule, with which numbers, holds for which
operator:

==============  =====================================================================================================
EXACT           data movement, comparisons, CLAMP, MAXIMUM, ...: the result is the reference's, rounded
ULP             units in the last place of the reference
ABS_ERROR       a multiple of the reference's magnitude, larger where the function amplifies its operand's error
PRECOMPUTED     POW: as ABS_ERROR; the reference model computes the bound
MAX_RELATIVE    RESIZE: relative to the largest operand
REDUCE_PRODUCT  one rounding for each factor
DOT_PRODUCT     relative to the same sum over magnitudes: largest error and variance over the whole tensor
==============  =====================================================================================================
"""

from __future__ import annotations

import ctypes
import itertools
import json
import math
from collections.abc import Sequence
from functools import lru_cache
from importlib import metadata
from typing import Any

import numpy as np
from delegraph_tosa.evaluate.kernels import numbers_of
from delegraph_tosa.ir import operators as ops
from delegraph_tosa.ir.graph import Graph, Operator, Value
from delegraph_tosa.ir.types import FLOAT8, DType, ResizeMode
from delegraph_tosa.serialize import TosaFile
from delegraph_tosa.spec import TosaSpec

from . import reference_tools
from .samples import merged

FRACTION_BITS = {
    DType.FP32: 23,
    DType.FP16: 10,
    DType.BF16: 7,
    DType.FP8E4M3: 3,
    DType.FP8E5M2: 2,
}
SMALLEST_NORMAL = {DType.FP32: 2.0**-126, DType.FP16: 2.0**-14, DType.BF16: 2.0**-126}

_MODEL_TYPES = {DType.BF16: "<V2", DType.FP8E4M3: "<V1"}
_VERIFIER_TYPES = {
    DType.BF16: 0,
    DType.FP16: 2,
    DType.FP32: 3,
    DType.FP8E4M3: 12,
    DType.FP8E5M2: 13,
}
_FP64 = 99

_CORRECTLY_ROUNDED = {"ulp": {DType.FP32: 0.5, DType.FP16: 0.5, DType.BF16: 1.0}}
_ULP: dict[type[Operator], dict[str, Any]] = {
    ops.ADD: _CORRECTLY_ROUNDED,
    ops.SUB: _CORRECTLY_ROUNDED,
    ops.MUL: _CORRECTLY_ROUNDED,
    ops.CEIL: {"ulp": 0.5},
    ops.FLOOR: {"ulp": 0.5},
    ops.RECIPROCAL: {"ulp": 1.0},
    ops.RSQRT: {"ulp": 2},
    ops.ERF: {"ulp": 5},
    ops.CAST: {"ulp": 0.5, "ulp_lower": 1.0},
}
_EXP = {DType.FP32: 3, DType.FP16: 1, DType.BF16: 1}
_ABS_ERROR: dict[type[Operator], dict[str, Any]] = {
    ops.EXP: {"base_bound": _EXP},
    ops.LOG: {"lower_bound": 0.5},
    ops.SIGMOID: {},
    ops.TANH: {"lower_bound": 0.5, "base_bound": {t: 4 * n for t, n in _EXP.items()}},
    ops.COS: {"base_bound": 1.0, "bound_as_magnitude": True, "normal_divisor": 2},
    ops.SIN: {
        **{"base_bound": 2.0, "bound_as_magnitude": True, "normal_divisor": 2},
        "max_compare": {t: math.pi * n for t, n in SMALLEST_NORMAL.items()},
    },
}
TERMS: dict[type[Operator], Any] = {
    ops.CONV2D: lambda op: math.prod(op.weight.shape[1:]),
    ops.CONV3D: lambda op: math.prod(op.weight.shape[1:]),
    ops.TRANSPOSE_CONV2D: lambda op: math.prod(op.weight.shape[1:]),
    ops.DEPTHWISE_CONV2D: lambda op: math.prod(op.weight.shape[:2]),
    ops.MATMUL: lambda op: op.inputs[0].shape[2],
    ops.MATMUL_T: lambda op: op.inputs[0].shape[2],
    ops.AVG_POOL2D: lambda op: math.prod(op.kernel),
    ops.AVG_POOL2D_ADAPTIVE: lambda op: math.prod(op.inputs[3].constant.array[:2]),
    ops.REDUCE_SUM: lambda op: op.inputs[0].shape[op.axis],
    ops.FFT2D: lambda op: 2 * math.prod(op.inputs[0].shape[1:]),
    ops.RFFT2D: lambda op: math.prod(op.inputs[0].shape[1:]),
}
"""How many products or terms one element of the result sums."""


def is_float(dtype: DType) -> bool:
    """Whether the verifier judges this element type; others are equal bit for bit."""
    return dtype in FRACTION_BITS


def rule(operator: Operator, operands: Sequence[np.ndarray] = ()) -> dict[str, Any]:
    """The verifier's mode for the results of an operator, with its numbers;
    ``operands`` are those of RESIZE.
    """
    kind = type(operator)
    dtype = operator.outputs[0].dtype
    if kind is ops.COND_IF:
        return rule(operator.then_graph.operators[-1])
    if kind in TERMS:
        return {
            "mode": "DOT_PRODUCT",
            "dot_product_info": _dot_product(operator, dtype),
        }
    if kind in _ULP:
        return {"mode": "ULP", "ulp_info": _for_type(_ULP[kind], dtype)}
    if kind in _ABS_ERROR:
        numbers = _for_type(_ABS_ERROR[kind], dtype)
        return {"mode": "ABS_ERROR", **({"abs_error_info": numbers} if numbers else {})}
    if kind is ops.REDUCE_PRODUCT:
        return {
            "mode": "REDUCE_PRODUCT",
            "reduce_product_info": {"n": operator.inputs[0].shape[operator.axis]},
        }
    if kind is ops.RESIZE and operator.mode is ResizeMode.BILINEAR:
        largest = float(np.abs(numbers_of(operands[0], operator.input.dtype)).max())
        return {
            "mode": "MAX_RELATIVE",
            "max_relative_info": {"max": largest, "scale": 0.006, "ulp_bound": 20.0},
        }
    return {"mode": "PRECOMPUTED" if kind is ops.POW else "EXACT"}


def _for_type(numbers: dict[str, Any], dtype: DType) -> dict[str, Any]:
    return {name: n[dtype] if isinstance(n, dict) else n for name, n in numbers.items()}


def _dot_product(operator: Operator, dtype: DType) -> dict[str, Any]:
    """The bounds in half units of the last place: fewer where an accumulator is wider
    than the result.
    """
    types = {v.dtype for v in factors(operator)}
    wide = accumulator(operator, dtype)
    spared = 2 ** ((FRACTION_BITS[wide] - FRACTION_BITS[dtype]) / 2)
    terms = math.ceil(TERMS[type(operator)](operator) / spared) + biased(operator)
    largest = 2 * terms
    variance = 1.6 * terms
    if types & FLOAT8 and wide is DType.FP32:
        largest = 2 * max(terms, min(terms, 64) << 10)
        variance = 1.6 * max(terms, min(terms, 64) << 20)
    elif types == {DType.FP32}:
        largest = 6 * terms
    return {
        "s": -1,
        "ksb": terms,
        "abs_bound": largest,
        "variance_error_bound": variance,
    }


def factors(operator: Operator) -> tuple[Value, ...]:
    """The operands whose products are summed."""
    return operator.inputs[
        : 2 if hasattr(operator, "weight") or "MATMUL" in operator.name else 1
    ]


def accumulator(operator: Operator, dtype: DType) -> DType:
    if "acc_type" in operator.attributes:
        return operator.acc_type
    return DType.FP32 if dtype is DType.BF16 else dtype


def biased(operator: Operator) -> bool:
    bias = getattr(operator, "bias", None)
    return bias is not None and bool(
        np.any(numbers_of(bias.constant.array, bias.dtype))
    )


def reference_results(
    graphs: Sequence[Graph], inputs: Sequence[Sequence[np.ndarray]], spec: TosaSpec
) -> list[reference_tools.Precise]:
    """What is right for each graph: the reference model computes all as one file, which
    saves its start.
    """
    whole = merged(graphs)
    arrays = [array for each in inputs for array in each]
    types = [
        _MODEL_TYPES.get(v.dtype, a.dtype.str)
        for v, a in zip(whole.inputs, arrays, strict=True)
    ]
    right = reference_tools.run_precisely(
        TosaFile(whole, spec).join(), list(zip(arrays, types, strict=True))
    )
    ends = list(itertools.accumulate(len(graph.outputs) for graph in graphs))
    parts = [
        slice(end - len(graph.outputs), end)
        for graph, end in zip(graphs, ends, strict=True)
    ]
    return [
        reference_tools.Precise(right.outputs[part], right.bounds[part])
        for part in parts
    ]


class _Tensor(ctypes.Structure):
    """``tosa_tensor_t`` of the verifier."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_int32)),
        ("rank", ctypes.c_int32),
        ("type", ctypes.c_int),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
    )


def _tensor(array: np.ndarray, type: int) -> _Tensor:
    shape = (ctypes.c_int32 * array.ndim)(*array.shape)
    return _Tensor(b"result", shape, array.ndim, type, array.ctypes.data, array.nbytes)


@lru_cache(maxsize=1)
def _verify() -> Any:
    reference_tools.tools()
    library = metadata.distribution("tosa-tools").locate_file(
        "tosa_reference_model/libtosa_reference_verify_lib.so"
    )
    function = ctypes.cdll.LoadLibrary(str(library)).tvf_verify_data
    function.argtypes = [*([ctypes.POINTER(_Tensor)] * 3), ctypes.c_char_p]
    function.restype = ctypes.c_bool
    return function


def is_accurate(
    dtype: DType,
    asked: dict[str, Any],
    result: np.ndarray,
    right: np.ndarray,
    bound: np.ndarray,
) -> bool:
    """Whether a float result is within the bounds that ``rule`` says. The verifier
    writes to stderr what is not.
    """
    described = {"data_type": dtype.name, "shape": list(result.shape), **asked}
    config = json.dumps({"version": "1.2", "tensors": {"result": described}}).encode()
    result, right, bound = (
        np.array(array, order="C") for array in (result, right, bound)
    )
    tensors = (
        _tensor(right, _FP64),
        _tensor(bound, _FP64),
        _tensor(result, _VERIFIER_TYPES[dtype]),
    )
    return bool(_verify()(*tensors, config))


def is_compliant(
    graph: Graph,
    inputs: Sequence[np.ndarray],
    results: Sequence[np.ndarray],
    right: reference_tools.Precise,
) -> bool:
    """Whether the results of a graph of one operator are accurate, and equal where they
    are no floats.
    """
    asked = rule(graph.operators[-1], inputs)
    return all(
        (
            is_accurate(v.dtype, asked, ours, theirs, bound)
            if is_float(v.dtype)
            else np.array_equal(ours, theirs)
        )
        for v, ours, theirs, bound in zip(
            graph.outputs, results, right.outputs, right.bounds, strict=True
        )
    )
