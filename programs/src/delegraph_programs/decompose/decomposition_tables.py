"""Tables of decompositions: torch's own, and the few entries that they lack.

``to_core`` leads, step by step, to core ATen, PyTorch's small set of operators, which
every host has. ``beyond_core`` also decomposes operators of core ATen. That pays only
if a backend takes all calls of the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import SymInt, Tensor
from torch._decomp import decomposition_table
from torch._ops import OpOverload

from ..operator_schema import may_be_random

aten = torch.ops.aten
Decompose = Callable[..., Any]
"""A function with an operator's arguments that computes its results by other operators.
"""

_DATA_DEPENDENT = frozenset(
    {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
)
"""Tags of operators that cannot be traced under fake tensors, which have no data."""
RECURRENT = frozenset({"aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu"})
"""Schema names of recurrent layers."""


@cache
def _core_aten_table() -> Mapping[Any, Decompose]:
    """Return torch's decompositions to core ATen, except for composite operators.

    ``OpOverload.decompose`` decomposes composites. torch's public function adds them to
    the table by a search of all operators, which takes a tenth of a second. It is used
    only if a new torch lacks the private function without that search.
    """
    make: Any = getattr(
        torch._decomp,
        "_core_aten_decompositions_post_autograd",
        torch.export.default_decompositions,
    )
    return dict(make().items())


@cache
def to_core(op: Any) -> Decompose | None:
    """Return the function that computes ``op`` by operators nearer to core ATen.

    None if there is none, or if ``op`` is core ATen. None also if ``op`` must stay
    whole: it writes, or needs data or random numbers.
    """
    if op in _ADDED_TO_CORE:
        return _ADDED_TO_CORE[op]
    if not _may_be_decomposed(op) or torch.Tag.core in op.tags:
        return None
    if op in _core_aten_table():
        return _core_aten_table()[op]
    # before ``decompose``, which looks into the table of the trace and so calls itself
    in_python = op.py_kernels.get(torch._C.DispatchKey.CompositeImplicitAutograd)
    return in_python or (op.decompose if is_composite(op) else None)


@cache
def beyond_core(op: Any) -> Decompose | None:
    """Return the function that computes ``op`` by simpler operators, or None.

    None also if ``to_core`` decomposes ``op``.
    """
    if op in _BEYOND:
        return _BEYOND[op]
    if op in _IN_PRIMS_ONLY or not _may_be_decomposed(op) or to_core(op):
        return None
    # torch has no table entry for operators that it decomposes by itself
    return op.decompose if is_composite(op) else decomposition_table.get(op)


def is_composite(op: Any) -> bool:
    """Return whether torch itself decomposes ``op`` before a trace sees it."""
    if not isinstance(op, OpOverload):
        return False
    name: Any = op.name
    return torch._C._dispatch_has_kernel_for_dispatch_key(
        name(), "CompositeImplicitAutograd"
    )


def _may_be_decomposed(op: Any) -> bool:
    """Return whether an operator is pure, without data or random numbers."""
    if not isinstance(op, OpOverload) or op._schema.is_mutable:
        return False
    if _DATA_DEPENDENT & set(op.tags):
        return False
    # these draw random numbers only for dropout, which they do not apply in eval mode
    only_for_dropout = op._schema.name in RECURRENT or is_attention(op)
    return only_for_dropout or not may_be_random(op)


def is_attention(op: Any) -> bool:
    """Return whether ``op`` is scaled dot-product attention, in any of torch's forms."""
    return isinstance(op, OpOverload) and "scaled_dot_product" in op._schema.name


def _batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    *_: Any,
) -> tuple[Tensor, ...]:
    """Compute batch norm without writing statistics, by one of two core operators.

    Further arguments (``_``) have no effect. Raises NotImplementedError in training
    with running statistics, which would have to be written.
    """
    if not training:
        inference = aten._native_batch_norm_legit_no_training.default
        return tuple(
            inference(input, weight, bias, running_mean, running_var, momentum, eps)
        )
    if running_mean is None:
        by_batch = aten._native_batch_norm_legit.no_stats
        return tuple(by_batch(input, weight, bias, True, momentum, eps))
    raise NotImplementedError(
        "batch norm that writes its running statistics has no functional decomposition"
    )


def _lstm_cell(
    input: Tensor,
    hx: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return one step of an LSTM: the new hidden state and the new cell state."""
    hidden, cell = hx
    gates = aten.linear(hidden, w_hh, b_hh) + aten.linear(input, w_ih, b_ih)
    gate_in, gate_forget, gate_cell, gate_out = gates.chunk(4, 1)
    new_cell = gate_forget.sigmoid() * cell + gate_in.sigmoid() * gate_cell.tanh()
    return gate_out.sigmoid() * new_cell.tanh(), new_cell


def _gru_cell(
    input: Tensor,
    hx: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Tensor:
    """Return one step of a GRU: the new hidden state."""
    reset_in, update_in, new_in = aten.linear(input, w_ih, b_ih).chunk(3, 1)
    reset_hidden, update_hidden, new_hidden = aten.linear(hx, w_hh, b_hh).chunk(3, 1)
    reset = (reset_hidden + reset_in).sigmoid()
    update = (update_hidden + update_in).sigmoid()
    new = (new_in + new_hidden * reset).tanh()
    result: Tensor = (hx - new) * update + new
    return result


_ADDED_TO_CORE: dict[OpOverload, Decompose] = {
    aten.batch_norm.default: lambda *args: _batch_norm(*args)[0],
    aten.native_batch_norm.default: _batch_norm,
    aten.lstm_cell.default: _lstm_cell,
    aten.gru_cell.default: _gru_cell,
}
"""Operator -> decomposition: norms, which torch's tables lack, and cells.

torch's decompositions of cells write the gates in place; each gate is a part of one
tensor. Without these writes, backends take all of a cell.
"""


def _var(
    self: Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
) -> Tensor:
    """Return the variance: the sum of squared distances from the mean, over a divisor.

    The divisor is the count of elements minus ``correction`` (None: 1). ``dim`` None or
    empty: over all dimensions. Raises NotImplementedError for complex numbers, and if
    the divisor is not positive.
    """
    if self.is_complex():
        raise NotImplementedError("a variance of complex numbers is not supported")
    dims = [d % max(self.dim(), 1) for d in dim or range(self.dim())]
    count: int | SymInt = math.prod(self.shape[d] for d in dims) if self.dim() else 1
    distance = self - aten.mean.dim(self, dims, True)
    divisor = count - (1 if correction is None else correction)
    if isinstance(divisor, (int, float)) and divisor <= 0:
        raise NotImplementedError(
            f"a variance of {count} elements with the correction {correction} has no"
            " positive divisor"
        )
    sum_of_squares: Tensor = aten.sum.dim_IntList(distance * distance, dims, keepdim)
    return sum_of_squares / divisor


def _var_mean(
    self: Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the variance, as ``_var`` computes it, and the mean."""
    dims = list(dim or range(self.dim()))
    var = _var(self, dims, correction=correction, keepdim=keepdim)
    return var, aten.mean.dim(self, dims, keepdim)


def _group_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    N: Any,
    C: Any,
    HxW: Any,
    group: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize each group of channels of each sample, then scale and shift by channel.

    ``input`` has N samples of C channels with HxW elements each. Returns the result,
    and of each group the mean and the reciprocal of the standard deviation, both of
    shape [N, group].
    """
    rows = aten.view.default(input, [N, group, -1])
    var, mean = _var_mean(rows, [2], correction=0, keepdim=True)
    scale = aten.rsqrt.default(var + eps)
    result = aten.view.default((rows - mean) * scale, list(input.shape))
    channel_shape = [1, C, *([1] * (input.dim() - 2))]
    if weight is not None:
        result = result * aten.view.default(weight, channel_shape)
    if bias is not None:
        result = result + aten.view.default(bias, channel_shape)
    mean = aten.view.default(mean, [N, group])
    scale = aten.view.default(scale, [N, group])
    return result, mean, scale


def _any_dim(self: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    """Return whether any element along ``dim`` is true: the largest of 0 and 1 is 1."""
    is_true = self if self.dtype is torch.bool else self != 0
    ones = aten.to.dtype(is_true, torch.float32)
    largest: Tensor = aten.amax.default(ones, [dim], keepdim)
    return largest > 0.5


_BEYOND: dict[OpOverload, Decompose] = {
    aten.var.correction: _var,
    aten.var_mean.correction: _var_mean,
    aten.native_group_norm.default: _group_norm,
    aten.any.dim: _any_dim,
}
"""Decompositions of operators that torch does not decompose, or only to its ``prims``.
"""
_IN_PRIMS_ONLY = frozenset({aten._to_copy.default})
"""Operators that stay whole, because torch decomposes them only to its ``prims``."""
