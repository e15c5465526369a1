"""Attention whose mask is known: what torch computes for rows that see nothing is left out where there are none."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Node

from ..constant_values import ConstantValues
from ..schema import bound_arguments

aten = torch.ops.aten


def _softmax(self: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    return torch.softmax(self, dim, dtype)


SEEN_ROWS: Mapping[OpOverload, Any] = MappingProxyType({aten._safe_softmax.default: _softmax})
"""The softmax of torch's decompositions of attention gives zeros for rows that are hidden whole. Of these there are
none, and so what looks for them, four calls on all scores, computes nothing."""


def is_attention(op: Any) -> bool:
    """Whether ``op`` is scaled dot-product attention, or one of the operators that torch makes of it."""
    return isinstance(op, OpOverload) and "scaled_dot_product" in op._schema.name


def sees_every_row(node: Node, constants: ConstantValues | None) -> bool:
    """Whether each position of this attention sees at least one other, or itself, as far as that is known.

    A causal mask lets each see the first one. A mask that is added hides what it makes infinitely small; half of the
    smallest number counts as that, since the sum may overflow.
    """
    mask = bound_arguments(node).get("attn_mask")
    if not isinstance(mask, Node):
        return True
    value = constants.of(mask) if constants is not None else None
    if value is None:
        return False
    seen = value if value.dtype is torch.bool else value > torch.finfo(value.dtype).min / 2
    return bool(seen.any(-1).all())
