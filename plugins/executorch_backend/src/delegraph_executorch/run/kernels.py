"""Compute kernels in torch: ATen's own out variants, and the few kernels of ExecuTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from delegraph.errors import Unsupported
from torch.utils import _pytree as pytree

from ..kernels import stock_kernels
from ..serialize.check import nbytes
from .scalars import SCALAR_KERNELS
from .tensors import HostTensor, arrange, reserve

_SMALL = 1 << 16
"""Results with at most this many elements are computed before their size is checked."""
Kernel = Callable[[Sequence[Any]], Any]
"""A function of arguments, then results.

Both are HostTensors, lists of them, and numbers. Returns a number, if it computes one.
"""


@cache
def kernel(name: str) -> Kernel:
    """Return the kernel of a name such as ``aten::add.out``.

    Raises Unsupported for an unknown kernel.
    """
    if name in _SPECIAL:
        return _SPECIAL[name]
    namespace, _, rest = name.partition("::")
    if namespace == "executorch_prim" and rest in SCALAR_KERNELS:
        compute = SCALAR_KERNELS[rest].compute
        return lambda args: compute(*args[:-1])
    if namespace != "aten" or name not in stock_kernels():
        raise Unsupported("unsupported", f"delegraph has no host kernel for {name}")
    packet, _, overload = rest.partition(".")
    return _out_variant(getattr(getattr(torch.ops.aten, packet), overload or "default"))


def _out_variant(target: Any) -> Kernel:
    """Return a function that calls an out variant.

    It computes new tensors and compares their types and sizes with the file's.
    """
    schema = target._schema.arguments
    count = len(schema)
    checked: set[object] = set()
    """Shapes and numbers that give results of the file's sizes."""

    def call(args: Sequence[Any]) -> None:
        if len(args) != count + 1:
            raise Unsupported(
                "unsupported",
                f"{target} is called with {len(args)} arguments; it takes {count + 1}",
            )
        results: dict[str, Any] = {}
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for argument, value in zip(schema, args[:count], strict=True):
            if argument.is_out:
                results[argument.name] = value
            elif argument.kwarg_only:
                named[argument.name] = _read(value)
            else:
                positional.append(_read(value))
        fresh = {name: _fresh(value) for name, value in results.items()}
        key = _shapes([*positional, *named.values()])
        if key not in checked:
            _check_sizes(target, positional, named, results)
            checked.add(key)
        target(*positional, **named, **fresh)
        for name, value in results.items():
            _write(value, fresh[name])

    return call


def _check_sizes(
    target: Any,
    positional: list[Any],
    named: dict[str, Any],
    results: dict[str, Any],
) -> None:
    """Raise FormatError before a result takes much more memory than the file allows.

    PyTorch cannot predict sizes that depend on data; the arguments bound these. It
    predicts other sizes than the kernel returns for some unused results, so small
    results are checked only by the kernel.
    """
    fresh = {
        name: pytree.tree_map(lambda t: t.to("meta"), _fresh(value))
        for name, value in results.items()
    }
    args, kwargs = pytree.tree_map_only(
        torch.Tensor, lambda t: t.to("meta"), (positional, named)
    )
    try:
        target(*args, **kwargs, **fresh)
    except (NotImplementedError, RuntimeError):
        # PyTorch cannot predict the sizes; faults show when the kernel runs.
        return
    for name, value in results.items():
        _expect(value, fresh[name])


def _expect(value: Any, computed: Any) -> None:
    if isinstance(value, list):
        for below, result in zip(value, computed, strict=True):
            _expect(below, result)
    elif computed.numel() > _SMALL:
        value.expect(computed, "damaged .pte file: a tensor is computed")


def _shapes(value: Any) -> Any:
    """Return the values that determine the sizes of results: shapes and numbers."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_shapes, value))
    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype
    return type(value), value


def _fresh(value: Any) -> Any:
    if isinstance(value, list):
        return [_fresh(v) for v in value]
    return torch.empty(0, dtype=value.dtype)


def _read(value: Any) -> Any:
    if isinstance(value, list):
        return [_read(v) for v in value]
    return value.read() if isinstance(value, HostTensor) else value


def _write(value: Any, computed: Any) -> None:
    if isinstance(value, list):
        for below, result in zip(value, computed, strict=True):
            _write(below, result)
    else:
        value.write(computed)


def _copy_into(args: Sequence[Any]) -> None:
    target = args[0]
    source = args[1].read()
    target.write(source.to(target.dtype).expand_as(target.read()))


def _put_into(args: Sequence[Any]) -> None:
    target, indices, values, accumulate = args[:4]
    written = (target.read(), _read(indices), values.read(), accumulate)
    if target.memory is not None:
        # In place: a cache is large, and the written rows are small.
        torch.ops.aten.index_put_(*written)
    else:
        target.write(torch.ops.aten.index_put(*written))


def _view(args: Sequence[Any]) -> None:
    """Let the result share the argument's memory, with other sizes."""
    source, sizes, result = args
    viewed = source.read().reshape(list(sizes))
    result.expect(viewed, "damaged .pte file: a tensor is viewed")
    result.now = viewed


def _read_by_place(args: Sequence[Any]) -> None:
    """Compute ``as_strided`` in the file's dimension order.

    The caller's tensor may have other strides.
    """
    source, size, stride, offset, result = args[:5]
    in_file_order = source.read().permute(list(source.table.dim_order))
    memory = in_file_order.reshape(-1).contiguous()
    start = offset or 0
    last = start + sum((d - 1) * s for d, s in zip(size, stride, strict=True))
    # Elements after the end belong to no tensor, or to another one.
    if 0 not in size and last >= memory.numel():
        raise IndexError(
            f"it reads memory beyond its argument: element {last} of {memory.numel()}"
        )
    start += memory.storage_offset()
    result.write(memory.as_strided(list(size), list(stride), start))


def _copy_row(args: Sequence[Any]) -> None:
    """Append a row to the result; row 0 starts a new result."""
    result = args[0]
    row = args[1].read()
    index = args[2]
    sizes = (index + 1, *row.shape)
    if not result.fits(sizes):
        raise Unsupported(
            "unsupported", f"a result of {result} cannot have {index + 1} rows"
        )
    if result.memory is None:
        # An output for the caller has no planned memory.
        result.memory = reserve(nbytes(result.table))
    result.now = arrange(result.memory, result.dtype, sizes, result.table.dim_order)
    result.now[index].copy_(row)


def _cast(args: Sequence[Any]) -> None:
    """Copy a tensor. Such kernels differ only in the target's memory, layout or type."""
    result = args[-1]
    result.write(args[0].read().to(result.dtype))


def _empty(args: Sequence[Any]) -> None:
    args[-1].write(torch.zeros(list(args[0]), dtype=args[-1].dtype))


def _quantize(args: Sequence[Any]) -> None:
    """Compute (input, scale, zero point, low, high, dtype, result)."""
    x = args[0].read().to(torch.float32)
    scale, zero_point, low, high = args[1:5]
    result = args[-1]
    shifted = torch.round(x * (1.0 / scale)) + zero_point
    result.write(torch.clamp(shifted, low, high).to(result.dtype))


def _dequantize(args: Sequence[Any]) -> None:
    """Compute (input, scale, zero point, low, high, dtype, result's dtype, result)."""
    result = args[-1]
    result.write((args[0].read().to(result.dtype) - args[2]) * args[1])


def _along(parameters: HostTensor, x: torch.Tensor, axis: int) -> torch.Tensor:
    """Reshape numbers for the indices of an axis, to broadcast to the tensor."""
    given = parameters.read()
    if given.shape != (x.shape[axis],):
        raise ValueError(
            f"{list(given.shape)} parameters for axis {axis} of sizes {list(x.shape)}"
        )
    shape = [1] * x.dim()
    shape[axis] = len(given)
    return given.reshape(shape)


def _quantize_channels(args: Sequence[Any]) -> None:
    """Compute (input, scales, zero points, axis, low, high, dtype, result)."""
    x = args[0].read().to(torch.float32)
    axis, low, high = args[3:6]
    steps = torch.round(x * (1.0 / _along(args[1], x, axis)))
    shifted = steps + _along(args[2], x, axis)
    args[-1].write(torch.clamp(shifted, low, high).to(args[-1].dtype))


def _dequantize_channels(args: Sequence[Any]) -> None:
    """Compute (input, scales, zero points, axis, low, high, dtype, its dtype, result)."""
    x = args[0].read()
    axis = args[3]
    difference = x if args[2] is None else x - _along(args[2], x, axis)
    product = difference * _along(args[1], x, axis)
    args[-1].write(product.to(args[-1].dtype))


_SPECIAL: dict[str, Kernel] = {
    "quantized_decomposed::quantize_per_tensor.out": _quantize,
    "quantized_decomposed::dequantize_per_tensor.out": _dequantize,
    "quantized_decomposed::quantize_per_channel.out": _quantize_channels,
    "quantized_decomposed::dequantize_per_channel.out": _dequantize_channels,
    "aten::copy_": _copy_into,
    "aten::index_put_": _put_into,
    "aten::sym_size.int": lambda args: args[0].read().shape[args[1]],
    "aten::sym_numel": lambda args: args[0].read().numel(),
    "aten::_local_scalar_dense": lambda args: args[0].read().item(),
    "aten::_to_copy.out": _cast,
    "aten::clone.out": _cast,
    "aten::as_strided_copy.out": _read_by_place,
    "executorch_prim::et_view.default": _view,
    "executorch_prim::et_copy_index.tensor": _copy_row,
    "dim_order_ops::_to_dim_order_copy.out": _cast,
    "dim_order_ops::_clone_dim_order.out": _cast,
    "dim_order_ops::_empty_dim_order.out": _empty,
    "et_copy::_h2d_copy.out": _cast,
    "et_copy::_d2h_copy.out": _cast,
}
