"""What kernels of the stock runtime refuse, or get wrong, although their operators take
it.

Found by running PyTorch's own samples of every operator in that runtime
(benchmarks/kernel_coverage.py), and calls with numbers that float32 does not hold
(benchmarks/kernel_numbers.py). A program that met one of these would fail on the
device, or compute something else; here its operator is put together from others, or
refused with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

Arguments = Mapping[str, Any]
"""Arguments by name; tensors as what export recorded of them."""
_NO_PROMOTION = frozenset({"aten::add.Scalar_out", "aten::sub.Scalar_out"})
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
"""Of float16 and bfloat16, where eager sums in float32 and rounds once: the sum of
5,000 ones is 4,096, or 256.
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
"""Kernels that take or give complex numbers; each was run with them
(tests/kernels/test_element_types.py).
"""
_COMPLEX_OF_ONE_SHAPE = frozenset(
    {"aten::add.out", "aten::sub.out", "aten::mul.out", "aten::div.out"}
)
"""Those that neither promote nor broadcast complex numbers."""


def why_not(kernel: str, given: Arguments, results: Sequence[Any]) -> str | None:
    """Why a kernel does not compute a call, or None."""
    tensors = [
        v for v in [*_flat(given.values()), *results] if isinstance(v, torch.Tensor)
    ]
    if any(t.dtype.is_complex for t in tensors):
        unfit = _why_not_complex(kernel, given, results)
        if unfit is not None:
            return unfit
    of_types = _TYPES.get(kernel)
    if of_types is not None:
        argument, refused = of_types
        value = given.get(argument)
        listed = value if isinstance(value, (tuple, list)) else [value]
        found = next(
            (t for t in listed if isinstance(t, torch.Tensor) and t.dtype in refused),
            None,
        )
        if found is not None:
            return f"its {argument} cannot be {str(found.dtype).removeprefix('torch.')}"
    if (
        kernel in _NO_PROMOTION
        and isinstance(given["self"], torch.Tensor)
        and given["self"].dtype != results[0].dtype
    ):
        return f"it does not promote {given['self'].dtype} to {results[0].dtype}"
    if kernel in _FLOATS_ONLY and not results[0].dtype.is_floating_point:
        return "of negative integers it is wrong"
    if kernel in _FLOATS_EXACTLY and not results[0].dtype.is_floating_point:
        return (
            "of integers it is computed in floating point, which does not hold all of"
            " them"
        )
    if (
        kernel in _DIVISIONS
        and given["rounding_mode"] == "trunc"
        and not results[0].dtype.is_floating_point
    ):
        return (
            "of integers, towards zero, it is computed in float64, which does not hold"
            " all of them"
        )
    if kernel in _SUM_IN_16_BITS and results[0].dtype in _HALVES:
        return f"it sums in {str(results[0].dtype).removeprefix('torch.')}"
    if kernel in _DEQUANTIZE and results[0].dtype == torch.bfloat16:
        return "it gives no bfloat16"
    if kernel in _POWERS and not results[0].dtype.is_floating_point:
        return (
            "of integers it is computed in floating point, which does not wrap around"
        )
    check = _CHECKS.get(kernel)
    return check(given) if check is not None else None


def loses_values(kernel: str, given: Arguments, results: Sequence[Any]) -> str | None:
    """Which values a kernel may meet that it computes wrong, or None. The formula of
    its operator keeps them away.
    """
    floats = (
        results[0].dtype.is_floating_point
        if results and isinstance(results[0], torch.Tensor)
        else False
    )
    other = given.get("other")
    if kernel == "aten::sign.out" and floats:
        return "of NaN it gives NaN, not 0"
    floors = given.get("rounding_mode", "floor") == "floor"
    if (
        kernel in _FLOORS
        and floats
        and floors
        and (isinstance(other, torch.Tensor) or other == 0)
    ):
        return "of zero by zero it gives an infinity, not NaN"
    if (
        kernel in _FLOORS
        and not floats
        and (isinstance(other, torch.Tensor) or other == -1)
    ):
        return "it ends the process where the least integer is divided by -1"
    if kernel in _SHIFTS:
        bits = results[0].itemsize * 8
        if not isinstance(other, int) or not 0 <= other < bits:
            return (
                f"it shifts by counts below 0 or from {bits} on as the machine does,"
                " and PyTorch shifts all bits out"
            )
    return None


def _why_not_complex(
    kernel: str, given: Arguments, results: Sequence[Any]
) -> str | None:
    if kernel not in _COMPLEX:
        return "it knows no complex numbers"
    if kernel in _COMPLEX_OF_ONE_SHAPE:
        operands = [
            t for t in (given["self"], given["other"]) if isinstance(t, torch.Tensor)
        ]
        known = {(t.dtype, tuple(t.shape)) for t in (*operands, *results)}
        return (
            None
            if len(operands) == 2 and len(known) == 1
            else "its complex operands need one type and one shape"
        )
    if kernel == "aten::index.Tensor_out" and any(
        i is not None and i.dtype == torch.bool for i in given["indices"]
    ):
        return "it selects no complex numbers by truth values"
    return None


def _flat(values: Any) -> list[Any]:
    return [
        v
        for value in values
        for v in (value if isinstance(value, (tuple, list)) else [value])
    ]


def _needs_dimension(given: Arguments) -> str | None:
    return None if given["self"].dim() else "its input needs a dimension"


def _needs_elements(given: Arguments) -> str | None:
    """Without any, it ends the process."""
    known = given["self"].numel()
    return (
        "its input needs an element" if isinstance(known, int) and known == 0 else None
    )


def _pads(given: Arguments) -> str | None:
    return (
        "it takes no negative pads"
        if any(isinstance(p, int) and p < 0 for p in given["pad"])
        else None
    )


def _rank_of_convolution(given: Arguments) -> str | None:
    rank = given["input"].dim() - 2
    return (
        None if rank in (1, 2) else f"it has no more than two axes; this one has {rank}"
    )


def _index_type(given: Arguments) -> str | None:
    return (
        None
        if given["index"].dtype == torch.int64
        else f"its index is int64, not {given['index'].dtype}"
    )


def _sums_along(given: Arguments) -> str | None:
    """Along one dimension it sums in float32, whatever the element type; along several
    it does not.
    """
    if (
        given["dim"]
        and len(given["dim"]) == 1
        and given["self"].dtype in (torch.float64, torch.int64)
    ):
        return (
            "along one dimension it sums"
            f" {str(given['self'].dtype).removeprefix('torch.')} in float32"
        )
    return None


def _onesided(given: Arguments) -> str | None:
    return None if given["onesided"] else "it computes one side of the spectrum only"


def _sums(left: torch.Tensor) -> str | None:
    """Without anything to sum, it leaves its result as the memory was."""
    inner = left.shape[-1]
    return (
        "it needs something to sum" if isinstance(inner, int) and inner == 0 else None
    )


def _keeps_nan(given: Arguments) -> str | None:
    return (
        None
        if given["beta"]
        else "with beta=0 it adds NaN and infinities of its first operand times zero"
    )


def _channels(given: Arguments) -> str | None:
    return None if given["input"].dim() > 1 else "its input needs two dimensions"


def _has_elements(given: Arguments) -> str | None:
    known = [t.numel() for t in given["tensors"]]
    return (
        "it sizes results without elements wrong"
        if all(isinstance(n, int) and n == 0 for n in known)
        else None
    )


def _has_rows(given: Arguments) -> str | None:
    sizes = given["self"].shape
    return (
        "it selects nothing of a dimension without elements"
        if len(sizes) and sizes[given["dim"]] == 0
        else None
    )


def _fixed_sizes(given: Arguments) -> str | None:
    """It checks the sizes of its results, and does not set them."""
    return (
        None
        if all(isinstance(s, int) for s in given["self"].shape)
        else "the sizes of its results cannot vary"
    )


def _same_mask(given: Arguments) -> str | None:
    """Export bounds the number of results by the elements of the input, which may be
    fewer after broadcasting.
    """
    shapes = [tuple(given[name].shape) for name in ("self", "mask")]
    broadcast: Any = torch.broadcast_shapes
    same = math.prod(broadcast(*shapes)) == math.prod(shapes[0])
    return (
        None
        if same
        else (
            "its result may be larger than export says where the input is broadcast to"
            " the mask"
        )
    )


def _scales_of_float64(given: Arguments) -> str | None:
    """Others end the process."""
    fits = (
        given["scales"].dtype == torch.float64
        and given["zero_points"].dtype == torch.int64
    )
    return None if fits else "its scales need to be float64, and its zero points int64"


_CHECKS: dict[str, Callable[[Arguments], str | None]] = {
    **dict.fromkeys(
        (f"aten::_native_batch_norm_legit{end}.out" for end in ("", "_no_training")),
        _channels,
    ),
    "aten::mm.out": lambda given: _sums(given["self"]),
    "aten::bmm.out": lambda given: _sums(given["self"]),
    "aten::addmm.out": lambda given: _sums(given["mat1"]) or _keeps_nan(given),
    "aten::linear.out": lambda given: _sums(given["input"]),
    "aten::cat.out": _has_elements,
    "aten::index_select.out": _has_rows,
    "aten::unbind_copy.int_out": _fixed_sizes,
    "aten::constant_pad_nd.out": _pads,
    "aten::narrow_copy.out": lambda given: "it ends the process",
    "aten::convolution.out": _rank_of_convolution,
    "aten::cumsum.out": _needs_dimension,
    "aten::unfold_copy.out": _needs_dimension,
    "aten::amax.out": lambda given: _needs_dimension(given) or _needs_elements(given),
    "aten::amin.out": lambda given: _needs_dimension(given) or _needs_elements(given),
    "aten::_log_softmax.out": _needs_elements,
    "aten::_softmax.out": _needs_elements,
    "aten::sum.IntList_out": lambda given: (
        (_needs_dimension(given) if given["dim"] else None) or _sums_along(given)
    ),
    "aten::gather.out": _index_type,
    "aten::scatter.src_out": _index_type,
    "aten::scatter.value_out": _index_type,
    "aten::scatter_add.out": _index_type,
    "aten::_fft_r2c.out": _onesided,
    "aten::masked_select.out": _same_mask,
    "quantized_decomposed::quantize_per_channel.out": _scales_of_float64,
    "aten::max_pool2d_with_indices_backward.grad_input": lambda given: (
        "it computes other gradients than PyTorch"
    ),
}
_IN_FLOAT32 = frozenset({torch.float64})
"""What these compute in float32."""
_TYPES: dict[str, tuple[str, frozenset[torch.dtype]]] = {
    "aten::_log_softmax.out": ("self", _IN_FLOAT32),
    "aten::_adaptive_avg_pool2d.out": ("self", _IN_FLOAT32),
    "aten::_native_batch_norm_legit.no_stats_out": ("input", _IN_FLOAT32),
    "aten::_native_batch_norm_legit.out": ("input", _IN_FLOAT32),
    "aten::native_group_norm.out": ("input", _IN_FLOAT32),
    "aten::native_layer_norm.out": ("input", _IN_FLOAT32),
    "aten::remainder.Scalar_out": ("self", _IN_FLOAT32),
    "aten::remainder.Tensor_out": ("self", _IN_FLOAT32),
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
