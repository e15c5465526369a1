"""Which operators can be written in terms of others: torch's own tables, and the few
entries that they lack.

``to_core`` leads, step by step, to core ATen, the operators that every host has.
``beyond_core`` decomposes those, too, which pays only for a backend that takes all of
the result.
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
def _listed() -> Mapping[Any, Decompose]:
    """torch's decompositions to core ATen without those of composites, for which
    ``OpOverload.decompose`` is the same.

    torch's whole table takes a tenth of a second, because it looks through all
    operators.
    """
    make: Any = getattr(
        torch._decomp,
        "_core_aten_decompositions_post_autograd",
        torch.export.default_decompositions,
    )
    return dict(make().items())


@cache
def to_core(op: Any) -> Decompose | None:
    """The function that computes ``op`` by operators nearer to core ATen.

    None if there is none, if ``op`` is core ATen, or if it must stay whole: it writes,
    or needs data or random numbers.
    """
    if op in _OWN:
        return _OWN[op]
    if not _may_be_decomposed(op) or torch.Tag.core in op.tags:
        return None
    # what torch wrote in Python comes before ``decompose``, which calls what a table
    # puts in its place, and so itself
    python = op.py_kernels.get(torch._C.DispatchKey.CompositeImplicitAutograd)
    return _listed().get(op, python or (op.decompose if is_composite(op) else None))


@cache
def beyond_core(op: Any) -> Decompose | None:
    """The function that computes ``op`` by simpler operators if ``to_core`` leaves it
    whole; None if there is none.
    """
    if op in _BEYOND:
        return _BEYOND[op]
    if op in _IN_PRIMS_ONLY or not _may_be_decomposed(op) or to_core(op):
        return None
    # torch has no table entry for operators that it decomposes by itself
    return op.decompose if is_composite(op) else decomposition_table.get(op)


def is_composite(op: Any) -> bool:
    """Whether torch itself decomposes ``op`` before a trace sees it."""
    if not isinstance(op, OpOverload):
        return False
    name: Any = op.name
    return torch._C._dispatch_has_kernel_for_dispatch_key(
        name(), "CompositeImplicitAutograd"
    )


def _may_be_decomposed(op: Any) -> bool:
    """Whether an operator is pure and needs neither data nor random numbers, so that it
    can be traced.
    """
    if (
        not isinstance(op, OpOverload)
        or op._schema.is_mutable
        or _DATA_DEPENDENT & set(op.tags)
    ):
        return False
    # these draw random numbers only for dropout, which they do not apply in eval mode
    only_for_dropout = (
        op._schema.name in RECURRENT or "scaled_dot_product" in op._schema.name
    )
    return torch.Tag.nondeterministic_seeded not in op.tags or only_for_dropout


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
    """Batch norm that writes no statistics, as one of two core operators. ``_``:
    further arguments, without effect.

    Raises NotImplementedError if it would write them: in training, with running
    statistics.
    """
    if not training:
        inference = aten._native_batch_norm_legit_no_training.default
        return tuple(
            inference(input, weight, bias, running_mean, running_var, momentum, eps)
        )
    if running_mean is None:
        return tuple(
            aten._native_batch_norm_legit.no_stats(
                input, weight, bias, True, momentum, eps
            )
        )
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
    """One step of an LSTM: the new hidden state and the new cell state."""
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
    """One step of a GRU: the new hidden state."""
    reset_in, update_in, new_in = aten.linear(input, w_ih, b_ih).chunk(3, 1)
    reset_hidden, update_hidden, new_hidden = aten.linear(hx, w_hh, b_hh).chunk(3, 1)
    reset = (reset_hidden + reset_in).sigmoid()
    update = (update_hidden + update_in).sigmoid()
    new = (new_in + new_hidden * reset).tanh()
    result: Tensor = (hx - new) * update + new
    return result


_OWN: dict[OpOverload, Decompose] = {
    aten.batch_norm.default: lambda *args: _batch_norm(*args)[0],
    aten.native_batch_norm.default: _batch_norm,
    aten.lstm_cell.default: _lstm_cell,
    aten.gru_cell.default: _gru_cell,
}
"""Operator -> decomposition: norms, which torch's tables lack, and cells.

torch's decompositions of cells write the gates in place, each of which is a part of one
tensor. Without these writes, backends take all of a cell.
"""


def _var(
    self: Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
) -> Tensor:
    """The variance: the sum of squared distances from the mean, divided by the count
    minus ``correction``.

    ``dim`` None or empty: over all dimensions. ``correction`` None: 1. Raises
    NotImplementedError for complex numbers, and if the divisor is not positive.
    """
    if self.is_complex():
        raise NotImplementedError("a variance of complex numbers")
    dims = [d % max(self.dim(), 1) for d in dim or range(self.dim())]
    count: int | SymInt = math.prod(self.shape[d] for d in dims) if self.dim() else 1
    distance = self - aten.mean.dim(self, dims, True)
    divisor = count - (1 if correction is None else correction)
    if isinstance(divisor, (int, float)) and divisor <= 0:
        raise NotImplementedError("a variance of too few elements")
    sum_of_squares: Tensor = aten.sum.dim_IntList(distance * distance, dims, keepdim)
    return sum_of_squares / divisor


def _var_mean(
    self: Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:
    """The variance, as ``_var`` computes it, and the mean."""
    dims = list(dim or range(self.dim()))
    return _var(self, dims, correction=correction, keepdim=keepdim), aten.mean.dim(
        self, dims, keepdim
    )


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
    """Normalize each group of channels of each sample, a row, by its mean and variance;
    then scale, shift by channel.

    ``input`` has N samples of C channels with HxW elements each. Returns the result,
    and for each of the N * group rows the mean and the reciprocal of the standard
    deviation, both of shape [N, group].
    """
    rows = aten.view.default(input, [N, group, -1])
    var, mean = _var_mean(rows, [2], correction=0, keepdim=True)
    scale = aten.rsqrt.default(var + eps)
    result = aten.view.default((rows - mean) * scale, list(input.shape))
    channel_shape = [1, C, *([1] * (input.dim() - 2))]
    result = (
        result if weight is None else result * aten.view.default(weight, channel_shape)
    )
    result = result if bias is None else result + aten.view.default(bias, channel_shape)
    return (
        result,
        aten.view.default(mean, [N, group]),
        aten.view.default(scale, [N, group]),
    )


def _any_dim(self: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    """Whether any element along ``dim`` is true, computed as a maximum of ones (true)
    and zeros.
    """
    ones = aten.to.dtype(self if self.dtype is torch.bool else self != 0, torch.float32)
    largest: Tensor = aten.amax.default(ones, [dim], keepdim)
    return largest > 0.5


_BEYOND: dict[OpOverload, Decompose] = {
    aten.var.correction: _var,
    aten.var_mean.correction: _var_mean,
    aten.native_group_norm.default: _group_norm,
    aten.any.dim: _any_dim,
}
"""Decompositions for operators that torch has none for, or only one in terms of its
``prims``.
"""
_IN_PRIMS_ONLY = frozenset({aten._to_copy.default})
"""Operators that torch decomposes only to its ``prims``, which no backend takes; they
stay as they are.
"""
