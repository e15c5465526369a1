"""The operator with which models of transformers call their experts.

``import_late`` imports this module if transformers has registered the operator.
"""

from __future__ import annotations

import torch

from ...ir.graph import Value
from ..builder import Tosa
from ..registry import lowers
from .experts import grouped_product


@lowers(torch.ops.transformers.grouped_mm_fallback.default)
def grouped_mm_fallback(t: Tosa, input: Value, weight: Value, offs: Value) -> Value:
    """input [S,K], weight [E,K,N], offs [E] -> [S,N]"""
    return grouped_product(t, input, weight, offs)
