"""Attention whose mask is known: if no row is hidden completely, what torch computes for such rows can be left out."""

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
    """A plain softmax, with the arguments of ``_safe_softmax``."""
    return torch.softmax(self, dim, dtype)


SEEN_ROWS: Mapping[OpOverload, Any] = MappingProxyType({aten._safe_softmax.default: _softmax})
"""What to decompose the softmax of attention to if no row is hidden completely.

torch's gives zeros for hidden rows, and looks for these by four calls on all scores, which would find nothing.
"""


def is_attention(op: Any) -> bool:
    """Whether ``op`` is scaled dot-product attention, or one of the operators that torch makes of it."""
    return isinstance(op, OpOverload) and "scaled_dot_product" in op._schema.name


def sees_every_row(node: Node, constants: ConstantValues | None) -> bool:
    """Whether it is known that each position of this attention sees at least one position.

    A causal mask lets each one see the first. A mask that is added hides a score that it makes minus infinity; half of
    the smallest number counts as that, because the sum may overflow.
    """
    mask = bound_arguments(node).get("attn_mask")
    if not isinstance(mask, Node):
        return True
    value = constants.of(mask) if constants is not None else None
    if value is None:
        return False
    seen = value if value.dtype is torch.bool else value > torch.finfo(value.dtype).min / 2
    return bool(seen.any(-1).all())
