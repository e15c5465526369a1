"""Operators that return their input: copies, detach, dropout in inference.

Also a check without a result.
"""

from __future__ import annotations

from typing import Any

import torch

from ...ir.graph import Value
from ..builder import Tosa
from ..registry import lowers

aten = torch.ops.aten


@lowers(
    aten.alias.default,
    aten.alias_copy.default,
    aten.clone.default,
    aten.contiguous.default,
    aten.detach.default,
    aten.detach_copy.default,
    aten.lift_fresh_copy.default,
    aten.positive.default,
)
def same(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]"""
    # a memory format has no effect, since TOSA has no strides
    return self


@lowers(aten.dropout.default, aten.feature_dropout.default)
def dropout(t: Tosa, input: Value, p: float, train: bool) -> Value:
    """[*S] -> [*S]"""
    t.refuse_unless(
        not train or p == 0,
        f"dropout of {p} in training draws random numbers, which TOSA cannot",
    )
    return input


@lowers(aten._assert_tensor_metadata.default)
def _assert_tensor_metadata(
    t: Tosa, a: Value, size: Any, stride: Any, dtype: Any
) -> None:
    """No result: torch.export has already checked the metadata."""
