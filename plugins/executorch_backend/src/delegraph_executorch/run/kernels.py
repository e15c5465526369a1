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
"""Results with at most this many elements are computed before their size is checked.

For some results that nothing reads, PyTorch predicts other sizes than the kernel
returns. These results are small.
"""
Kernel = Callable[[Sequence[Any]], Any]
"""A function that takes one list: the arguments of the call, then its results.

They are HostTensors, lists of HostTensors, and numbers. The function writes results that
are tensors, and returns a result that is a number.
"""


@cache
def kernel(name: str) -> Kernel:
    """Return the kernel of a name such as ``aten::add.out``.

    Raises Unsupported for an unknown kernel.
    """
    if name in _KERNELS_HERE:
        return _KERNELS_HERE[name]
    namespace, _, rest = name.partition("::")
    if namespace == "executorch_prim" and rest in SCALAR_KERNELS:
        compute = SCALAR_KERNELS[rest].compute
        # the last argument is the result, which the caller sets to the returned number
        return lambda args: compute(*args[:-1])
    if namespace != "aten" or name not in stock_kernels():
        raise Unsupported("unsupported", f"delegraph has no host kernel for {name}")
    packet, _, overload = rest.partition(".")
    return _out_variant(getattr(getattr(torch.ops.aten, packet), overload or "default"))


def _out_variant(target: Any) -> Kernel:
    """Return a function that calls an out variant.

    The function computes new tensors, compares their types and sizes with the file's,
    and copies them to the results. A program file passes the results twice: as the
    arguments ``out``, and as a last argument, which the function ignores.
    """
    schema = target._schema.arguments
    count = len(schema)
    # ``_shapes`` of the arguments of earlier calls: their results have the right sizes
    checked: set[object] = set()

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
        # PyTorch's out variants resize these empty tensors to the sizes of the results
        outs = {name: _empty_like(value) for name, value in results.items()}
        key = _shapes([*positional, *named.values()])
        if key not in checked:
            _check_sizes(target, positional, named, results)
            checked.add(key)
        target(*positional, **named, **outs)
        for name, value in results.items():
            _write(value, outs[name])

    return call


def _check_sizes(
    target: Any,
    positional: list[Any],
    named: dict[str, Any],
    results: dict[str, Any],
) -> None:
    """Raise FormatError if a large result would not have the size in the file.

    The check comes before the kernel allocates the result. A call with meta tensors,
    which have no elements, predicts the sizes. PyTorch cannot predict sizes that depend
    on data. They are not checked, because the sizes of the arguments bound them.
    """
    outs = {
        name: pytree.tree_map(lambda t: t.to("meta"), _empty_like(value))
        for name, value in results.items()
    }
    args, kwargs = pytree.tree_map_only(
        torch.Tensor, lambda t: t.to("meta"), (positional, named)
    )
    try:
        target(*args, **kwargs, **outs)
    except (NotImplementedError, RuntimeError, TypeError):
        # PyTorch cannot predict the sizes, and the kernel will report faults. TypeError
        # comes from add.Scalar and sub.Scalar with a factor.
        return
    for name, value in results.items():
        _check_size(value, outs[name])


def _check_size(value: Any, computed: Any) -> None:
    """Raise FormatError if a large result does not have the size in the file.

    ``value`` is the result in the file, ``computed`` a tensor of the predicted size.
    Lists are compared element by element.
    """
    if isinstance(value, list):
        for element, result in zip(value, computed, strict=True):
            _check_size(element, result)
    elif computed.numel() > _SMALL:
        value.expect(computed, "damaged .pte file: a tensor is computed")


def _shapes(value: Any) -> Any:
    """Return the shapes and element types of tensors, and the numbers, as nested tuples.

    Calls with the same facts have results of the same sizes. A number is stored with its
    type, because 1 equals True.
    """
    if isinstance(value, (list, tuple)):
        return tuple(map(_shapes, value))
    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype
    return type(value), value


def _empty_like(value: Any) -> Any:
    """Return an empty tensor of a result's element type; a list for a list."""
    if isinstance(value, list):
        return [_empty_like(v) for v in value]
    return torch.empty(0, dtype=value.dtype)


def _read(value: Any) -> Any:
    """Return the content of a HostTensor, also in a list; other values as they are."""
    if isinstance(value, list):
        return [_read(v) for v in value]
    return value.read() if isinstance(value, HostTensor) else value


def _write(value: Any, computed: Any) -> None:
    """Copy a computed tensor to a result; FormatError if their sizes differ."""
    if isinstance(value, list):
        for element, result in zip(value, computed, strict=True):
            _write(element, result)
    else:
        value.write(computed)


def _copy_into(args: Sequence[Any]) -> None:
    """Compute ``copy_`` of the arguments (target, source, non_blocking, result).

    The result is the target.
    """
    target = args[0]
    source = args[1].read()
    target.write(source.to(target.dtype).expand_as(target.read()))


def _put_into(args: Sequence[Any]) -> None:
    """Compute ``index_put_`` of (target, indices, values, accumulate, result)."""
    target, indices, values, accumulate = args[:4]
    operands = (target.read(), _read(indices), values.read(), accumulate)
    if target.memory is not None:
        # write in place: a cache is large, and the written rows are small
        torch.ops.aten.index_put_(*operands)
    else:
        # the target is a tensor of the caller or data of the file: never change these
        target.write(torch.ops.aten.index_put(*operands))


def _view(args: Sequence[Any]) -> None:
    """Make the result a view of the source; arguments: (source, sizes, result)."""
    source, sizes, result = args
    viewed = source.read().reshape(list(sizes))
    result.expect(viewed, "damaged .pte file: a tensor is viewed")
    result.content = viewed


def _as_strided(args: Sequence[Any]) -> None:
    """Compute ``as_strided_copy`` of (source, size, stride, offset, result, result).

    The file passes the result twice. Strides count elements of a dense source in the
    dimension order of the file. A caller's tensor may lie differently in memory, so the
    source is brought into this order first.
    """
    source, size, stride, offset, result = args[:5]
    in_file_order = source.read().permute(list(source.table.dim_order))
    memory = in_file_order.reshape(-1).contiguous()
    offset = offset or 0
    last = offset
    for count, step in zip(size, stride, strict=True):
        last += (count - 1) * step
    # elements after the end belong to no tensor, or to another one
    if 0 not in size and last >= memory.numel():
        raise IndexError(
            f"it reads memory beyond its argument: element {last} of {memory.numel()}"
        )
    # as_strided counts from the start of the storage
    start = memory.storage_offset() + offset
    result.write(memory.as_strided(list(size), list(stride), start))


def _copy_row(args: Sequence[Any]) -> None:
    """Write one row of a result: the arguments are (result, row, index).

    Rows come in order: row 0 starts a new result, and later rows are appended to it.
    """
    result = args[0]
    row = args[1].read()
    index = args[2]
    sizes = (index + 1, *row.shape)
    if not result.fits(sizes):
        raise Unsupported(
            "unsupported",
            f"a result has more rows than its memory of {result}: row {index}",
        )
    if result.memory is None:
        # no planned memory: in ExecuTorch's runtime, the caller provides it
        result.memory = reserve(nbytes(result.table))
    # the rows so far stay where they are, at the start of the same memory
    result.content = arrange(result.memory, result.dtype, sizes, result.table.dim_order)
    result.content[index].copy_(row)


def _cast(args: Sequence[Any]) -> None:
    """Convert the first argument to the type of the result, which is the last argument.

    Several kernels use this function: they differ only in the memory, the layout or the
    type of the result.
    """
    result = args[-1]
    result.write(args[0].read().to(result.dtype))


def _empty(args: Sequence[Any]) -> None:
    """Fill the result with zeros; arguments: (sizes, ..., result).

    ExecuTorch leaves the content undefined.
    """
    sizes = args[0]
    result = args[-1]
    result.write(torch.zeros(list(sizes), dtype=result.dtype))


def _quantize(args: Sequence[Any]) -> None:
    """Quantize; the arguments are (input, scale, zero point, low, high, dtype, result)."""
    x = args[0].read().to(torch.float32)
    scale, zero_point, low, high = args[1:5]
    result = args[-1]
    shifted = torch.round(x * (1.0 / scale)) + zero_point
    result.write(torch.clamp(shifted, low, high).to(result.dtype))


def _dequantize(args: Sequence[Any]) -> None:
    """Dequantize.

    The arguments are (input, scale, zero point, low, high, dtype, dtype of the result,
    result).
    """
    scale = args[1]
    zero_point = args[2]
    result = args[-1]
    result.write((args[0].read().to(result.dtype) - zero_point) * scale)


def _along(parameters: HostTensor, x: torch.Tensor, axis: int) -> torch.Tensor:
    """Reshape the parameters of an axis so that they broadcast to ``x``.

    Raises ValueError unless there is one parameter for each index of the axis.
    """
    numbers = parameters.read()
    if numbers.shape != (x.shape[axis],):
        raise ValueError(
            f"the parameters have the shape {list(numbers.shape)}; axis {axis} of the"
            f" shape {list(x.shape)} needs one for each index"
        )
    shape = [1] * x.dim()
    shape[axis] = len(numbers)
    return numbers.reshape(shape)


def _quantize_channels(args: Sequence[Any]) -> None:
    """Quantize with one scale for each index of an axis.

    The arguments are (input, scales, zero points, axis, low, high, dtype, result).
    """
    x = args[0].read().to(torch.float32)
    axis, low, high = args[3:6]
    result = args[-1]
    steps = torch.round(x * (1.0 / _along(args[1], x, axis)))
    shifted = steps + _along(args[2], x, axis)
    result.write(torch.clamp(shifted, low, high).to(result.dtype))


def _dequantize_channels(args: Sequence[Any]) -> None:
    """Dequantize with one scale for each index of an axis.

    The arguments are (input, scales, zero points, axis, low, high, dtype, dtype of the
    result, result). The zero points are None for symmetric quantization.
    """
    x = args[0].read()
    scales, zero_points, axis = args[1:4]
    result = args[-1]
    difference = x if zero_points is None else x - _along(zero_points, x, axis)
    product = difference * _along(scales, x, axis)
    result.write(product.to(result.dtype))


_KERNELS_HERE: dict[str, Kernel] = {
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
    "aten::as_strided_copy.out": _as_strided,
    "executorch_prim::et_view.default": _view,
    "executorch_prim::et_copy_index.tensor": _copy_row,
    "dim_order_ops::_to_dim_order_copy.out": _cast,
    "dim_order_ops::_clone_dim_order.out": _cast,
    "dim_order_ops::_empty_dim_order.out": _empty,
    "et_copy::_h2d_copy.out": _cast,
    "et_copy::_d2h_copy.out": _cast,
}
"""Kernels that ATen does not have, or that need the memory of their tensors."""
