"""Simplifies attention with a known mask that hides no row completely."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Node

from ..compute_constant_calls import ConstantValues
from ..operator_schema import bound_arguments

aten = torch.ops.aten


def _softmax(self: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return a plain softmax, with the arguments of ``_safe_softmax``."""
    return torch.softmax(self, dim, dtype)


SEEN_ROWS: Mapping[OpOverload, Any] = MappingProxyType(
    {aten._safe_softmax.default: _softmax}
)
"""The softmax of attention if no row of scores is hidden completely.

torch's decomposition gives zeros for hidden rows. To find them, it makes four calls on
all scores.
"""


def is_attention(op: Any) -> bool:
    """Return whether ``op`` is scaled dot-product attention, in any of torch's forms."""
    return isinstance(op, OpOverload) and "scaled_dot_product" in op._schema.name


def sees_every_row(node: Node, constants: ConstantValues | None) -> bool:
    """Return whether every query of the attention ``node`` is known to see a key.

    That is so without a mask, and with a causal one, which lets each position see the
    first key. A float mask hides a key if its value there is at most half of the
    dtype's smallest number: a score plus such a number may overflow to minus infinity.
    ``constants`` has the values of masks; if it is None, no mask is known.
    """
    mask = bound_arguments(node).get("attn_mask")
    if not isinstance(mask, Node):
        return True
    value = constants.of(mask) if constants is not None else None
    if value is None:
        return False
    visible = value
    if value.dtype is not torch.bool:
        visible = value > torch.finfo(value.dtype).min / 2
    return bool(visible.any(-1).all())
