"""Find ties: positions of equal elements that differ from eager's."""

from __future__ import annotations

import operator
from typing import Any

import torch
from delegraph.host import TOLERANCES
from delegraph.report import pluralize
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
"""Calls that unpack or convert positions."""


def picks(node: Node) -> bool:
    """Return whether a call returns positions of elements of its first operand."""
    if not isinstance(node.target, OpOverload):
        return False
    return node.target._schema.name.removeprefix("aten::") in _PICKS


def picked_from(node: Node) -> Node | None:
    """Return the call that made the positions in ``node``; None if it has no positions.

    ``node`` may unpack or convert them.
    """
    maker: Any = node
    while isinstance(maker, Node) and maker.target in _PASSED_ON:
        maker = maker.args[0]
    return maker if isinstance(maker, Node) and picks(maker) else None


def why_tied(node: Node, got: torch.Tensor, eager: torch.Tensor, source: Any) -> str:
    """Return a remark if ``got`` and ``eager`` are positions of equal elements, or "".

    ``node`` makes positions in ``source``. Elements are equal within the tolerance of
    their type: they have errors themselves.
    """
    if got.dtype not in (torch.int32, torch.int64):
        return ""
    if not isinstance(source, torch.Tensor) or not source.numel():
        return ""
    ours = _picked(node, source, got.long())
    theirs = _picked(node, source, eager.long())
    if ours is None or theirs is None:
        return ""
    difference = (ours.double() - theirs.double()).abs()
    tolerance = TOLERANCES.get(str(source.dtype).removeprefix("torch."), 0.0)
    accepted = tolerance * float(source.double().abs().max())
    if not bool(((ours == theirs) | (difference <= accepted)).all()):
        return ""
    count = int((got != eager).sum())
    return f"a tie in {node.target}: {pluralize(count, 'position')} of equal elements"


def _picked(
    node: Node, source: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor | None:
    """Return the elements of ``source`` at the positions that ``node`` returned.

    Returns None if a position is out of range.
    """
    dim = bound_arguments(node).get("dim")
    if dim is None:
        source = source.reshape(-1)
        dim = 0
        positions = positions.reshape(-1)
    elif positions.dim() < source.dim():
        positions = positions.unsqueeze(dim)
    if positions.numel():
        least = int(positions.min())
        largest = int(positions.max())
        if least < 0 or largest >= source.shape[dim]:
            return None
    return source.gather(dim, positions)
