"""Ties: positions that differ from eager's, of elements that are equal."""

from __future__ import annotations

import operator
from typing import Any

import torch
from delegraph.host import TOLERANCES
from delegraph_programs import bound_arguments
from torch._ops import OpOverload
from torch.fx import Node

_PICKS = {
    "topk",
    "sort",
    "argsort",
    "argmax",
    "argmin",
    "max",
    "min",
    "kthvalue",
    "median",
    "nanmedian",
    "mode",
}
"""Operators of ATen that return positions of elements."""

_PASSED_ON = {
    operator.getitem,
    torch.ops.aten._to_copy.default,
    torch.ops.aten.to.dtype,
}


def picks(node: Node) -> bool:
    """Whether a call returns positions of elements of its first operand."""
    return (
        isinstance(node.target, OpOverload)
        and node.target._schema.name.removeprefix("aten::") in _PICKS
    )


def picked_from(node: Node) -> Node | None:
    """The call that made the positions that ``node`` is, unpacked or in another type;
    None if they are no positions.
    """
    maker: Any = node
    while isinstance(maker, Node) and maker.target in _PASSED_ON:
        maker = maker.args[0]
    return maker if isinstance(maker, Node) and picks(maker) else None


def why_tied(node: Node, got: torch.Tensor, eager: torch.Tensor, source: Any) -> str:
    """The remark that ``got`` and ``eager``, positions in ``source`` that ``node``
    makes, are of equal elements.

    Elements are equal if the tolerance of their type cannot tell them apart, since they
    have errors themselves. "" if they are not.
    """
    if (
        got.dtype not in (torch.int32, torch.int64)
        or not isinstance(source, torch.Tensor)
        or not source.numel()
    ):
        return ""
    ours, theirs = (
        _picked(node, source, positions.long()) for positions in (got, eager)
    )
    if ours is None or theirs is None:
        return ""
    difference = (ours.double() - theirs.double()).abs()
    accepted = TOLERANCES.get(str(source.dtype).removeprefix("torch."), 0.0) * float(
        source.double().abs().max()
    )
    if not bool(((ours == theirs) | (difference <= accepted)).all()):
        return ""
    return (
        f"a tie in {node.target}: {int((got != eager).sum())} positions differ, of"
        " elements that are equal"
    )


def _picked(
    node: Node, source: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor | None:
    """The elements at these positions; None if there are none such."""
    dim = bound_arguments(node).get("dim")
    if dim is None:
        source = source.reshape(-1)
        dim = 0
        positions = positions.reshape(-1)
    elif positions.dim() < source.dim():
        positions = positions.unsqueeze(dim)
    if (
        positions.numel()
        and not 0 <= int(positions.min()) <= int(positions.max()) < source.shape[dim]
    ):
        return None
    return source.gather(dim, positions)
