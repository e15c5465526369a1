"""Simplifies the decomposition of attention if every query is known to see a key.

The scores of a query are a row. If the mask hides a whole row, eager returns zeros.
"""

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


PLAIN_SOFTMAX: Mapping[OpOverload, Any] = MappingProxyType(
    {aten._safe_softmax.default: _softmax}
)
"""Decompositions for attention without hidden rows.

torch's own decomposition makes four calls on all scores to find hidden rows.
"""


def sees_every_row(node: Node, constants: ConstantValues | None) -> bool:
    """Return whether every query of the attention ``node`` is known to see a key.

    That is so without a mask, and with a causal one, which lets each position see the
    first key. Otherwise the mask must be one of ``constants``; None if there are none.
    A bool mask is True for visible keys. A float mask is added to the scores. It hides
    a key with half of the dtype's smallest number or less, since the sum may overflow
    to minus infinity.
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
