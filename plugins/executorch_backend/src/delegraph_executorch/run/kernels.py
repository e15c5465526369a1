"""What kernels compute, in torch: ATen's own out variants, and the few that only
ExecuTorch has.
"""

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
"""Elements of results that are computed before their size is looked at."""
Kernel = Callable[[Sequence[Any]], Any]
"""Takes arguments, then results: HostTensors, lists of them, numbers. Returns a number,
if it computes one.
"""


@cache
def kernel(name: str) -> Kernel:
    """The kernel of a name such as ``aten::add.out``. Raises Unsupported for one that
    is not known here.
    """
    if name in _SPECIAL:
        return _SPECIAL[name]
    namespace, _, rest = name.partition("::")
    if namespace == "executorch_prim" and rest in SCALAR_KERNELS:
        function = SCALAR_KERNELS[rest][1]
        return lambda args: function(*args[:-1])
    if namespace != "aten" or name not in stock_kernels():
        raise Unsupported("unsupported", f"this host does not know the kernel {name}")
    packet, _, overload = rest.partition(".")
    return _out_variant(getattr(getattr(torch.ops.aten, packet), overload or "default"))


def _out_variant(target: Any) -> Kernel:
    """A call of an out variant, into new tensors whose types and sizes are compared
    with the file's.
    """
    schema = target._schema.arguments
    count = len(schema)
    known: set[object] = set()
    """Shapes and numbers that were found to give results of the file's sizes."""

    def call(args: Sequence[Any]) -> None:
        if len(args) != count + 1:
            raise Unsupported(
                "unsupported",
                f"{target} is called with {len(args)} arguments; it takes {count + 1}",
            )
        results = [
            (a.name, value)
            for a, value in zip(schema, args[:count], strict=True)
            if a.is_out
        ]
        fresh = {name: _fresh(value) for name, value in results}
        given = [
            (a, _read(value))
            for a, value in zip(schema, args[:count], strict=True)
            if not a.is_out
        ]
        positional = [value for a, value in given if not a.kwarg_only]
        named = {a.name: value for a, value in given if a.kwarg_only}
        key = _shapes([*positional, *named.values()])
        if key not in known:
            _expect_sizes(target, positional, named, results)
            known.add(key)
        target(*positional, **named, **fresh)
        for name, value in results:
            _write(value, fresh[name])

    return call


def _expect_sizes(
    target: Any,
    positional: list[Any],
    named: dict[str, Any],
    results: list[tuple[str, Any]],
) -> None:
    """Raise FormatError if results are much larger than the file says, before any
    memory is taken for them.

    Where sizes depend on data, PyTorch cannot say them beforehand; there the arguments
    bound them. What it says can differ from what a kernel returns for results that
    nobody uses, so small ones are left to the kernel.
    """
    fresh = {
        name: pytree.tree_map(lambda t: t.to("meta"), _fresh(value))
        for name, value in results
    }
    args, kwargs = pytree.tree_map_only(
        torch.Tensor, lambda t: t.to("meta"), (positional, named)
    )
    try:
        target(*args, **kwargs, **fresh)
    except (NotImplementedError, RuntimeError):
        # not known for this kernel; what is wrong shows when it runs
        return
    for name, value in results:
        _expect(value, fresh[name])


def _expect(value: Any, computed: Any) -> None:
    if isinstance(value, list):
        for below, result in zip(value, computed, strict=True):
            _expect(below, result)
    elif computed.numel() > _SMALL:
        value.expect(computed, "damaged .pte file: a tensor is computed")


def _shapes(value: Any) -> Any:
    """What the sizes of results follow from: shapes of tensors, and numbers."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_shapes, value))
    return (
        (value.shape, value.dtype)
        if isinstance(value, torch.Tensor)
        else (type(value), value)
    )


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
    # where it lies: a cache is large, and what is written is not
    if target.memory is not None:
        torch.ops.aten.index_put_(
            target.read(), _read(indices), values.read(), accumulate
        )
    else:
        target.write(
            torch.ops.aten.index_put(
                target.read(), _read(indices), values.read(), accumulate
            )
        )


def _view(args: Sequence[Any]) -> None:
    """The result is the argument's memory with other sizes."""
    source, sizes, result = args
    viewed = source.read().reshape(list(sizes))
    result.expect(viewed, "damaged .pte file: a tensor is viewed")
    result.now = viewed


def _read_by_place(args: Sequence[Any]) -> None:
    """``as_strided`` counts places in the order that the file says, whatever strides
    the caller's tensor has.
    """
    source, size, stride, offset, result = args[:5]
    memory = (
        source.read().permute(list(source.table.dim_order)).reshape(-1).contiguous()
    )
    last = (offset or 0) + sum((d - 1) * s for d, s in zip(size, stride, strict=True))
    # what lies behind it there is no element of it
    if 0 not in size and last >= memory.numel():
        raise IndexError(
            f"it reads memory beyond its argument, to place {last} of {memory.numel()}"
        )
    start = memory.storage_offset() + (offset or 0)
    result.write(memory.as_strided(list(size), list(stride), start))


def _copy_row(args: Sequence[Any]) -> None:
    """The result gets one more row, below those that it has; row 0 starts it anew."""
    result = args[0]
    row = args[1].read()
    index = args[2]
    sizes = (index + 1, *row.shape)
    if not result.fits(sizes):
        raise Unsupported(
            "unsupported", f"a result of {result} cannot have {index + 1} rows"
        )
    if result.memory is None:  # an output that the caller gets has no place in the plan
        result.memory = reserve(nbytes(result.table))
    result.now = arrange(result.memory, result.dtype, sizes, result.table.dim_order)
    result.now[index].copy_(row)


def _cast(args: Sequence[Any]) -> None:
    """Copies that only differ in where they go and how they lie there."""
    result = args[-1]
    result.write(args[0].read().to(result.dtype))


def _empty(args: Sequence[Any]) -> None:
    args[-1].write(torch.zeros(list(args[0]), dtype=args[-1].dtype))


def _quantize(args: Sequence[Any]) -> None:
    """input, scale, zero point, smallest and largest integer, dtype, result"""
    x, scale, zero_point, low, high = args[0].read().to(torch.float32), *args[1:5]
    args[-1].write(
        torch.clamp(torch.round(x * (1.0 / scale)) + zero_point, low, high).to(
            args[-1].dtype
        )
    )


def _dequantize(args: Sequence[Any]) -> None:
    """input, scale, zero point, smallest and largest integer, dtype, the result's
    dtype, result
    """
    result = args[-1]
    result.write((args[0].read().to(result.dtype) - args[2]) * args[1])


def _along(parameters: HostTensor, x: torch.Tensor, axis: int) -> torch.Tensor:
    """One number for each index of an axis, in a shape that broadcasts to the tensor."""
    given = parameters.read()
    if given.shape != (x.shape[axis],):
        raise ValueError(
            f"{list(given.shape)} parameters for axis {axis} of sizes {list(x.shape)}"
        )
    shape = [1] * x.dim()
    shape[axis] = len(given)
    return given.reshape(shape)


def _quantize_channels(args: Sequence[Any]) -> None:
    """input, scales, zero points, axis, smallest and largest integer, dtype, result"""
    x = args[0].read().to(torch.float32)
    axis, low, high = args[3:6]
    steps = torch.round(x * (1.0 / _along(args[1], x, axis)))
    shifted = steps + _along(args[2], x, axis)
    args[-1].write(torch.clamp(shifted, low, high).to(args[-1].dtype))


def _dequantize_channels(args: Sequence[Any]) -> None:
    """input, scales, zero points or None, axis, smallest and largest integer, dtype,
    the result's dtype, result
    """
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
