"""List calls that kernels of the stock runtime refuse or compute wrongly.

The limits were found by running PyTorch's samples of every operator in that runtime
(benchmarks/kernel_coverage.py), and calls with numbers that float32 does not represent
(benchmarks/kernel_numbers.py). A program with such a call would fail on the device or
compute a wrong value. The emitter decomposes the operator, or refuses it with the
reason. Each check returns such a reason, or None if the kernel computes the call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

Arguments = Mapping[str, Any]
"""Arguments by name; tensors as export recorded them."""
_NO_PROMOTION = frozenset({"aten::add.Scalar_out", "aten::sub.Scalar_out"})
"""Kernels that return the type of their tensor, even if the number needs another."""
_FLOATS_ONLY = frozenset({"aten::remainder.Scalar_out", "aten::remainder.Tensor_out"})
_FLOATS_EXACTLY = frozenset(
    {
        "aten::ceil.out",
        "aten::floor.out",
        "aten::trunc.out",
        "aten::fmod.Scalar_out",
        "aten::fmod.Tensor_out",
    }
)
_DIVISIONS = frozenset({"aten::div.out_mode", "aten::div.Scalar_mode_out"})
_FLOORS = frozenset({*_DIVISIONS, "aten::floor_divide.out"})
_SHIFTS = frozenset(
    f"aten::bitwise_{side}_shift.{kind}_out"
    for side in ("left", "right")
    for kind in ("Tensor", "Tensor_Scalar")
)
_HALVES = frozenset({torch.float16, torch.bfloat16})
_SUM_IN_16_BITS = frozenset(
    {
        "aten::_native_batch_norm_legit.no_stats_out",
        "aten::_native_batch_norm_legit.out",
        "aten::avg_pool2d.out",
        "aten::convolution.out",
        "aten::cumsum.out",
        "aten::native_layer_norm.out",
        "aten::scatter_add.out",
        "aten::var.correction_out",
        "aten::var.out",
        "aten::var_mean.correction_out",
    }
)
"""Kernels that sum float16 and bfloat16 in that type.

Eager PyTorch sums in float32 and rounds once. In 16 bits, 5,000 ones sum to 4,096 or
256.
"""
_DEQUANTIZE = frozenset(
    f"quantized_decomposed::{name}.out"
    for name in ("dequantize_per_tensor", "dequantize_per_channel")
)
_POWERS = frozenset(
    {
        "aten::pow.Tensor_Scalar_out",
        "aten::pow.Tensor_Tensor_out",
        "aten::pow.Scalar_out",
    }
)
_COMPLEX = frozenset(
    {
        "aten::_conj_physical.out",
        "aten::_fft_c2r.out",
        "aten::_fft_r2c.out",
        "aten::abs.out",
        "aten::add.out",
        "aten::as_strided_copy.out",
        "aten::bmm.out",
        "aten::cat.out",
        "aten::clone.out",
        "aten::diagonal_copy.out",
        "aten::div.out",
        "aten::expand_copy.out",
        "aten::index.Tensor_out",
        "aten::index_select.out",
        "aten::mul.out",
        "aten::permute_copy.out",
        "aten::reflection_pad1d.out",
        "aten::reflection_pad2d.out",
        "aten::repeat.out",
        "aten::replication_pad2d.out",
        "aten::select_copy.int_out",
        "aten::slice_copy.Tensor_out",
        "aten::sub.out",
        "aten::sum.IntList_out",
        "aten::view_as_real_copy.out",
    }
)
"""Kernels that support complex numbers (tests/kernels/test_element_types.py)."""
_COMPLEX_OF_ONE_SHAPE = frozenset(
    {"aten::add.out", "aten::sub.out", "aten::mul.out", "aten::div.out"}
)
"""Kernels that neither promote nor broadcast complex numbers."""


def why_not(kernel: str, given: Arguments, results: Sequence[Any]) -> str | None:
    """Return why a kernel does not compute a call, or None."""
    values = [*pytree.tree_leaves(dict(given)), *results]
    if any(isinstance(v, torch.Tensor) and v.is_complex() for v in values):
        why = _why_not_complex(kernel, given, results)
        if why is not None:
            return why
    why = _why_not_type(kernel, given, results)
    if why is not None:
        return why
    check = _CHECKS.get(kernel)
    return check(given) if check is not None else None


def _why_not_type(kernel: str, given: Arguments, results: Sequence[Any]) -> str | None:
    """Return why a kernel does not compute these element types, or None."""
    if kernel in _TYPES:
        argument, refused = _TYPES[kernel]
        for value in pytree.tree_leaves(given.get(argument)):
            if isinstance(value, torch.Tensor) and value.dtype in refused:
                return f"its {argument} cannot be {_name(value.dtype)}"
    result = results[0] if results else None
    if not isinstance(result, torch.Tensor):
        return None
    is_integer = not result.dtype.is_floating_point
    tensor = given.get("self")
    if kernel in _NO_PROMOTION and isinstance(tensor, torch.Tensor):
        if tensor.dtype != result.dtype:
            return f"it does not promote {tensor.dtype} to {result.dtype}"
    if kernel in _FLOATS_ONLY and is_integer:
        return "its result is wrong for negative integers"
    if kernel in _FLOATS_EXACTLY and is_integer:
        return "it computes integers as floats, which cannot represent all integers"
    if kernel in _DIVISIONS and given["rounding_mode"] == "trunc" and is_integer:
        return "it truncates integers in float64, which cannot represent all integers"
    if kernel in _SUM_IN_16_BITS and result.dtype in _HALVES:
        return f"it adds up in {_name(result.dtype)}, and eager in float32"
    if kernel in _DEQUANTIZE and result.dtype == torch.bfloat16:
        return "its kernel cannot return bfloat16"
    if kernel in _POWERS and is_integer:
        return "it computes integers as floats, which do not wrap around"
    return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def loses_values(kernel: str, given: Arguments, results: Sequence[Any]) -> str | None:
    """Return for which values of its operands a kernel computes a wrong result, or None.

    The formula of its operator calls the kernel without such values. So this check must
    be left out for calls in the formula.
    """
    result = results[0] if results else None
    is_float = isinstance(result, torch.Tensor) and result.dtype.is_floating_point
    if kernel == "aten::sign.out" and is_float:
        return "it returns NaN for NaN, not 0"
    other = given.get("other")
    # the elements of a tensor may have any value
    is_tensor = isinstance(other, torch.Tensor)
    if kernel in _FLOORS and is_float:
        is_floor = given.get("rounding_mode", "floor") == "floor"
        if is_floor and (is_tensor or other == 0):
            return "it returns infinity for zero divided by zero, not NaN"
    elif kernel in _FLOORS and (is_tensor or other == -1):
        return "it crashes if the least integer is divided by -1"
    if kernel in _SHIFTS:
        bits = results[0].itemsize * 8
        if not isinstance(other, int) or not 0 <= other < bits:
            return (
                f"its result depends on the processor for counts below 0 or from {bits}"
                " on; PyTorch shifts all bits out"
            )
    return None


def _why_not_complex(
    kernel: str, given: Arguments, results: Sequence[Any]
) -> str | None:
    """Return why a kernel does not compute a call with complex tensors, or None."""
    if kernel not in _COMPLEX:
        return "it does not support complex numbers"
    if kernel in _COMPLEX_OF_ONE_SHAPE:
        operands = [
            t for t in (given["self"], given["other"]) if isinstance(t, torch.Tensor)
        ]
        types = {(t.dtype, tuple(t.shape)) for t in (*operands, *results)}
        if len(operands) != 2 or len(types) != 1:
            return "its complex operands must have the same type and the same shape"
        return None
    if kernel == "aten::index.Tensor_out":
        for index in given["indices"]:
            if index is not None and index.dtype == torch.bool:
                return "it does not index complex tensors by bools"
    return None


def _why_no_scalar(given: Arguments) -> str | None:
    return None if given["self"].dim() else "its input needs a dimension"


def _why_not_empty(given: Arguments) -> str | None:
    # without elements, the kernel crashes
    return "its input needs an element" if _is_zero(given["self"].numel()) else None


def _is_zero(number: Any) -> bool:
    """Return whether a size is 0 for certain; a dynamic size is not."""
    return isinstance(number, int) and number == 0


def _why_no_negative_pads(given: Arguments) -> str | None:
    if any(isinstance(pad, int) and pad < 0 for pad in given["pad"]):
        return "it takes no negative pads"
    return None


def _why_rank_of_convolution(given: Arguments) -> str | None:
    rank = given["input"].dim() - 2
    return None if rank in (1, 2) else f"it supports 1 or 2 axes; this one has {rank}"


def _why_index_type(given: Arguments) -> str | None:
    dtype = given["index"].dtype
    return None if dtype == torch.int64 else f"its index must be int64, not {dtype}"


def _why_sum_along_one_dim(given: Arguments) -> str | None:
    # Along one dimension, the kernel sums every type in float32.
    dtype = given["self"].dtype
    is_one_dim = given["dim"] and len(given["dim"]) == 1
    if is_one_dim and dtype in (torch.float64, torch.int64):
        return f"it sums {_name(dtype)} along one dimension in float32"
    return None


def _why_not_two_sided(given: Arguments) -> str | None:
    return None if given["onesided"] else "it computes one-sided spectra only"


def _why_inner_dimension(left: torch.Tensor) -> str | None:
    # For an inner dimension of 0, the kernel leaves its result uninitialized.
    return "its inner dimension cannot be 0" if _is_zero(left.shape[-1]) else None


def _why_beta_of_zero(given: Arguments) -> str | None:
    if given["beta"]:
        return None
    return "with beta=0, NaN and infinity of its first operand reach the result"


def _why_no_channels(given: Arguments) -> str | None:
    return None if given["input"].dim() > 1 else "its input needs two dimensions"


def _why_cat_of_empty(given: Arguments) -> str | None:
    if all(_is_zero(tensor.numel()) for tensor in given["tensors"]):
        return "it returns wrong sizes for results without elements"
    return None


def _why_select_from_empty(given: Arguments) -> str | None:
    sizes = given["self"].shape
    if len(sizes) and sizes[given["dim"]] == 0:
        return "it cannot select from a dimension of size 0"
    return None


def _why_dynamic_sizes(given: Arguments) -> str | None:
    # The kernel checks the sizes of its results and does not set them.
    if all(isinstance(size, int) for size in given["self"].shape):
        return None
    return "the sizes of its results cannot vary"


def _why_broadcast_to_mask(given: Arguments) -> str | None:
    # Export bounds the number of results by the elements of the input. Broadcasting to
    # the mask may give more.
    shape = tuple(given["self"].shape)
    broadcast: Any = torch.broadcast_shapes
    if math.prod(broadcast(shape, tuple(given["mask"].shape))) == math.prod(shape):
        return None
    return "its result may exceed export's bound if the input is broadcast to the mask"


def _why_types_of_scales(given: Arguments) -> str | None:
    # The kernel crashes for other types.
    is_float64 = given["scales"].dtype == torch.float64
    if is_float64 and given["zero_points"].dtype == torch.int64:
        return None
    return "its scales must be float64, and its zero points int64"


_CHECKS: dict[str, Callable[[Arguments], str | None]] = {
    **dict.fromkeys(
        (f"aten::_native_batch_norm_legit{end}.out" for end in ("", "_no_training")),
        _why_no_channels,
    ),
    "aten::mm.out": lambda given: _why_inner_dimension(given["self"]),
    "aten::bmm.out": lambda given: _why_inner_dimension(given["self"]),
    "aten::addmm.out": lambda given: (
        _why_inner_dimension(given["mat1"]) or _why_beta_of_zero(given)
    ),
    "aten::linear.out": lambda given: _why_inner_dimension(given["input"]),
    "aten::cat.out": _why_cat_of_empty,
    "aten::index_select.out": _why_select_from_empty,
    "aten::unbind_copy.int_out": _why_dynamic_sizes,
    "aten::constant_pad_nd.out": _why_no_negative_pads,
    "aten::narrow_copy.out": lambda given: "it crashes",
    "aten::convolution.out": _why_rank_of_convolution,
    "aten::cumsum.out": _why_no_scalar,
    "aten::unfold_copy.out": _why_no_scalar,
    "aten::amax.out": lambda given: _why_no_scalar(given) or _why_not_empty(given),
    "aten::amin.out": lambda given: _why_no_scalar(given) or _why_not_empty(given),
    "aten::_log_softmax.out": _why_not_empty,
    "aten::_softmax.out": _why_not_empty,
    "aten::sum.IntList_out": lambda given: (
        (_why_no_scalar(given) if given["dim"] else None)
        or _why_sum_along_one_dim(given)
    ),
    "aten::gather.out": _why_index_type,
    "aten::scatter.src_out": _why_index_type,
    "aten::scatter.value_out": _why_index_type,
    "aten::scatter_add.out": _why_index_type,
    "aten::_fft_r2c.out": _why_not_two_sided,
    "aten::masked_select.out": _why_broadcast_to_mask,
    "quantized_decomposed::quantize_per_channel.out": _why_types_of_scales,
    "aten::max_pool2d_with_indices_backward.grad_input": lambda given: (
        "its gradients differ from PyTorch's"
    ),
}
"""Kernel -> a function that returns why it does not compute these arguments, or None."""
_FLOAT64 = frozenset({torch.float64})
_TYPES: dict[str, tuple[str, frozenset[torch.dtype]]] = {
    # these kernels compute float64 in float32
    "aten::_log_softmax.out": ("self", _FLOAT64),
    "aten::_adaptive_avg_pool2d.out": ("self", _FLOAT64),
    "aten::_native_batch_norm_legit.no_stats_out": ("input", _FLOAT64),
    "aten::_native_batch_norm_legit.out": ("input", _FLOAT64),
    "aten::native_group_norm.out": ("input", _FLOAT64),
    "aten::native_layer_norm.out": ("input", _FLOAT64),
    "aten::remainder.Scalar_out": ("self", _FLOAT64),
    "aten::remainder.Tensor_out": ("self", _FLOAT64),
    "aten::_upsample_bilinear2d_aa.out": (
        "self",
        frozenset({torch.uint8, torch.float64}),
    ),
    "aten::upsample_bilinear2d.vec_out": ("input", frozenset({torch.uint8})),
    "quantized_decomposed::quantize_per_tensor.out": (
        "input",
        frozenset({torch.bfloat16}),
    ),
    "quantized_decomposed::quantize_per_channel.out": (
        "input",
        frozenset({torch.bfloat16}),
    ),
    "aten::_local_scalar_dense": ("self", frozenset({torch.float16, torch.bfloat16})),
}
"""Kernel -> an argument, and element types that it cannot have."""
