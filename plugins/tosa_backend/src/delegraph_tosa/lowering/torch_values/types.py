"""torch's tensor types as TOSA types, and torch tensors as constants."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache, partial
from typing import Any

import torch
from delegraph.errors import ContractViolation, Unsupported
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node

from ...ir.graph import Array, Deferred, Value
from ...ir.sizes import exceeds, is_dynamic, waits
from ...ir.types import DType, Type
from .hints import data_dependent, no_dtype, number_at_run_time
from .sizes import depends_on_data, is_dynamic_tensor, is_empty_tensor, shape_of_tensor

DTYPES: dict[torch.dtype, DType] = {
    torch.float32: DType.FP32,
    torch.float16: DType.FP16,
    torch.bfloat16: DType.BF16,
    torch.int8: DType.INT8,
    torch.int16: DType.INT16,
    torch.int32: DType.INT32,
    torch.int64: DType.INT64,
    torch.bool: DType.BOOL,
}
"""torch's dtype -> TOSA's.

No operator of TOSA 1.0 takes INT64: constants are folded in it, and the graph computes in INT32 (``integer_widths``).
"""

TORCH_DTYPES: dict[DType, torch.dtype] = {tosa: torch_dtype for torch_dtype, tosa in DTYPES.items()}


def refused(why: str) -> Unsupported:
    """The error for what this target cannot express; ``why`` is in the user's terms, and may be a ``Reason``."""
    return Unsupported("unsupported", why)


def dtype_of(dtype: torch.dtype) -> DType:
    """The TOSA element type of a torch dtype; Unsupported where there is none."""
    found = DTYPES.get(dtype)
    if found is not None:
        return found
    raise refused(no_dtype(dtype))


def type_of(val: Any, what: str = "a value", of: Node | None = None, dtype: torch.dtype | None = None) -> Type:
    """The type of a fake (or real) tensor; Unsupported if it is no dense tensor with elements that TOSA has.

    ``what`` names the tensor in the reason, ``of`` is its node if it is an operand. ``dtype`` replaces the tensor's own
    where the graph holds it as another.
    """
    if not isinstance(val, torch.Tensor):
        raise refused(no_tensor(val, what))
    dtype = dtype or val.dtype
    # by far the commonest case, kept apart because a lowering asks thousands of times
    if val.layout is torch.strided and not is_dynamic_tensor(val):
        known = _known_type(val.shape, dtype)
        if known is not None:
            return known
    if val.layout is not torch.strided:
        raise refused(f"{what} has the layout {val.layout}; TOSA has dense tensors only")
    if is_dynamic_tensor(val) and depends_on_data(val.shape):
        raise refused(data_dependent(f"{what} has a shape that depends on the data, {list(val.shape)}", of))
    shape = shape_of_tensor(val.shape)
    if is_empty_tensor(val) or (is_dynamic_tensor(val) and any(exceeds(1, size) for size in shape)):
        raise refused(f"{what} of shape {list(shape)} is empty; TOSA has no empty tensors")
    element = DTYPES.get(dtype)
    if element is None:
        raise refused(no_dtype(dtype, what, of))
    return Type(shape, element)


@lru_cache(maxsize=4096)
def _known_type(shape: torch.Size, dtype: torch.dtype) -> Type | None:
    """The type of a dense tensor whose sizes are all numbers; equal calls share one object. None if TOSA has none."""
    found = DTYPES.get(dtype)
    return None if found is None or 0 in shape else Type(tuple(shape), found)


def dtype_of_number(number: float) -> torch.dtype:
    """The dtype that torch gives a tensor made of ``number``, which may be known at run time only."""
    if waits(number):
        return torch.int64 if is_dynamic(number) else torch.get_default_dtype()
    return torch.tensor(number).dtype


def no_tensor(val: Any, what: str) -> str:
    """The reason why ``val``, a Python number or another object, is refused where ``what`` has to be a tensor."""
    if isinstance(val, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return number_at_run_time(f"{what} is {val}, a number that is known at run time only")
    return f"{what} is {val!r}, not a tensor"


def constant_of(name: str, tensor: torch.Tensor) -> Value:
    """A parameter, buffer or constant as a constant that refers to its tensor; the file's writer reads the elements.

    Writing raises ContractViolation if the tensor was changed in place after the lowering.
    """
    value_type = type_of(tensor, f"the constant {name}")
    if isinstance(tensor, FakeTensor):
        raise refused(f"the constant {name} has no elements: the program was exported without weights")
    return Value(value_type, Deferred(partial(_read, name, tensor, _version(tensor))), name)


def _read(name: str, tensor: torch.Tensor, version: int | None) -> Array:
    """The elements for the file; ContractViolation unless the tensor still has the ``version`` that was lowered."""
    if _version(tensor) != version:
        raise ContractViolation("contract-violation", f"the weights of {name} changed between lowering and writing")
    return array_of(tensor)


def finfo(dtype: DType) -> torch.finfo:
    """The limits of a float type."""
    return torch.finfo(TORCH_DTYPES[dtype])


def array_of(tensor: torch.Tensor) -> Array:
    """The elements as constants have them (numpy, ``ARRAY_DTYPES``); no copy if the tensor is on the host."""
    plain = tensor.detach().cpu().resolve_neg()
    array: Array = (plain.view(torch.uint16) if plain.dtype is torch.bfloat16 else plain).numpy()
    return array


def memory_of(tensor: torch.Tensor) -> Hashable:
    """A key that is equal for tensors which are the same elements of the same memory, as tied weights are."""
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _version(tensor: torch.Tensor) -> int | None:
    """How often the tensor was written in place, as torch counts it; None for inference tensors, which do not count."""
    return None if tensor.is_inference() else tensor._version
