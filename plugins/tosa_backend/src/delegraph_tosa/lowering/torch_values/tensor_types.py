"""torch's tensor types as TOSA types, and torch tensors as constants."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache, partial
from typing import Any

import torch
from delegraph.errors import ContractViolation, Unsupported
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node

from ...ir.dynamic_sizes import exceeds, is_dynamic, waits
from ...ir.graph import Array, Deferred, Value
from ...ir.types import DType, Type
from .hints import data_dependent, no_dtype, number_at_run_time
from .symbolic_sizes import (
    SYMBOLIC,
    depends_on_data,
    is_dynamic_tensor,
    is_empty_tensor,
    shape_of_tensor,
)

DTYPES: dict[torch.dtype, DType] = {
    torch.float32: DType.FP32,
    torch.float16: DType.FP16,
    torch.bfloat16: DType.BF16,
    torch.float8_e4m3fn: DType.FP8E4M3,
    torch.float8_e5m2: DType.FP8E5M2,
    torch.int8: DType.INT8,
    torch.int16: DType.INT16,
    torch.int32: DType.INT32,
    torch.int64: DType.INT64,
    torch.bool: DType.BOOL,
}
"""torch's dtype -> TOSA's.

No operator of TOSA 1.0 takes INT64: constants are folded in it, and the graph computes
in INT32 (``integer_widths``).
"""

BITS = {
    torch.bfloat16: torch.uint16,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
}
"""Maps torch's dtypes that numpy lacks to the dtype that holds their bits."""

TORCH_DTYPES: dict[DType, torch.dtype] = {
    tosa: torch_dtype for torch_dtype, tosa in DTYPES.items()
}


def refused(why: str) -> Unsupported:
    """Return Unsupported with the reason ``why``: a text, or one with a hint."""
    return Unsupported("unsupported", why)


def dtype_of(dtype: torch.dtype) -> DType:
    """Return the TOSA element type of a torch dtype.

    Raises Unsupported if there is none.
    """
    element = DTYPES.get(dtype)
    if element is not None:
        return element
    raise refused(no_dtype(dtype))


def type_of(
    val: Any,
    what: str = "a value",
    of: Node | None = None,
    dtype: torch.dtype | None = None,
) -> Type:
    """Return the type of a fake (or real) tensor.

    Raises Unsupported if it is no dense tensor, is empty, has an element type that TOSA
    lacks, or a shape that depends on data. ``what`` names the tensor in the reason;
    ``of`` is its node if it is an operand. ``dtype``, if not None, replaces the
    tensor's element type.
    """
    if not isinstance(val, torch.Tensor):
        raise refused(no_tensor(val, what))
    dtype = dtype or val.dtype
    # fast path for nearly all tensors: a lowering calls this thousands of times
    if val.layout is torch.strided and not is_dynamic_tensor(val):
        known = _known_type(val.shape, dtype)
        if known is not None:
            return known
    if val.layout is not torch.strided:
        raise refused(
            f"{what} has the layout {val.layout}; TOSA has dense tensors only"
        )
    has_dynamic_shape = is_dynamic_tensor(val)
    if has_dynamic_shape and depends_on_data(val.shape):
        why = f"{what} has a shape that depends on the data, {list(val.shape)}"
        raise refused(data_dependent(why, of))
    shape = shape_of_tensor(val.shape)
    is_empty = is_empty_tensor(val)
    if has_dynamic_shape:
        # a computed size may be proven to be 0
        is_empty |= any(exceeds(1, size) for size in shape)
    if is_empty:
        raise refused(
            f"{what} of shape {list(shape)} is empty; TOSA has no empty tensors"
        )
    element = DTYPES.get(dtype)
    if element is None:
        raise refused(no_dtype(dtype, what, of))
    return Type(shape, element)


@lru_cache(maxsize=4096)
def _known_type(shape: torch.Size, dtype: torch.dtype) -> Type | None:
    """Return the type of a dense tensor with static sizes, cached.

    None if it is empty or TOSA lacks its element type.
    """
    element = DTYPES.get(dtype)
    if element is None or 0 in shape:
        return None
    return Type(tuple(shape), element)


def dtype_of_number(number: float) -> torch.dtype:
    """Return torch's default dtype for a tensor of ``number``.

    A size known at run time only is int64, any other such number a float.
    """
    if is_dynamic(number):
        return torch.int64
    if waits(number):
        return torch.get_default_dtype()
    return torch.tensor(number).dtype


def no_tensor(val: Any, what: str) -> str:
    """Return the reason to refuse ``val``, named ``what``, which must be a tensor."""
    if isinstance(val, SYMBOLIC):
        return number_at_run_time(
            f"{what} is {val}, a number that is known at run time only"
        )
    return f"{what} is {val!r}, not a tensor"


def constant_of(name: str, tensor: torch.Tensor) -> Value:
    """Return ``tensor`` as a constant that is read when a file is written.

    Reading raises ContractViolation if the tensor was changed in place after this call.
    Raises Unsupported if the program was exported without weights.
    """
    value_type = type_of(tensor, f"the constant {name}")
    if isinstance(tensor, FakeTensor):
        raise refused(
            f"the constant {name} has no elements: the program was exported without"
            " weights"
        )
    read = partial(_read, name, tensor, _version(tensor))
    return Value(value_type, Deferred(read), name)


def _read(name: str, tensor: torch.Tensor, version: int | None) -> Array:
    """Return the elements of ``tensor``.

    Raises ContractViolation unless it still has the ``version`` that was lowered.
    """
    if _version(tensor) != version:
        raise ContractViolation(
            "contract-violation",
            f"the weights of {name} changed between lowering and writing",
        )
    return array_of(tensor)


def finfo(dtype: DType) -> torch.finfo:
    """Return the limits of a float type: max, min normal, epsilon."""
    return torch.finfo(TORCH_DTYPES[dtype])


def array_of(tensor: torch.Tensor) -> Array:
    """Return the elements as a numpy array of the type in ``ARRAY_DTYPES``.

    The array shares the memory of a tensor on the host. numpy has neither bf16 nor fp8:
    their array has the bits of each element as uint16 or uint8.
    """
    # ``resolve_neg`` computes the elements of a tensor that torch only marked as
    # negated
    on_host = tensor.detach().cpu().resolve_neg()
    bits = BITS.get(on_host.dtype)
    if bits is not None:
        on_host = on_host.view(bits)
    array: Array = on_host.numpy()
    return array


def memory_of(tensor: torch.Tensor) -> Hashable:
    """Return a key of a tensor's memory, type, shape and strides.

    Tied weights have equal keys.
    """
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _version(tensor: torch.Tensor) -> int | None:
    """Return torch's count of in-place writes to the tensor.

    Returns None for inference tensors, which have no count.
    """
    return None if tensor.is_inference() else tensor._version
