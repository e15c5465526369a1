"""Sizes of tensors: known, or an upper bound of what they may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from delegraph.errors import Unsupported
from delegraph.source import source_of
from torch.fx import Node
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

LARGEST = 1 << 31
"""Sizes are stored as int32; a bound beyond it is none."""
Ranges = Mapping[sympy.Symbol, ValueRanges[sympy.Expr]]


def upper_bounds(shape: Sequence[Any], ranges: Ranges, node: Node) -> tuple[tuple[int, ...], bool]:
    """(sizes, whether one of them is only a bound). Raises Unsupported for a size that nothing bounds."""
    sizes = tuple(_upper_bound(size, ranges, node) for size in shape)
    return sizes, any(not isinstance(s, int) and not _constant(s) for s in shape)


def lower_bound(size: int | torch.SymInt, ranges: Ranges) -> int:
    """The least that a size may be."""
    if isinstance(size, int):
        return size
    known = {s: ranges.get(s) or size.node.shape_env.var_to_range[s] for s in size.node.expr.free_symbols}
    lower = bound_sympy(size.node.expr, known).lower
    return int(lower) if lower.is_Integer else 0


def _constant(size: torch.SymInt) -> bool:
    return not size.node.expr.free_symbols


def _upper_bound(size: int | torch.SymInt, ranges: Ranges, node: Node) -> int:
    if isinstance(size, int):
        return size
    expression = size.node.expr
    if not expression.free_symbols:
        return int(expression)
    known = {s: ranges.get(s) or size.node.shape_env.var_to_range[s] for s in expression.free_symbols}
    upper = bound_sympy(expression, known).upper
    if not upper.is_Integer or upper > LARGEST:
        text = f"{node.name} has the size {expression}, which nothing bounds: its memory cannot be planned"
        hint = 'give it a bound: torch.export.Dim("batch", max=...), or torch._check(n <= ...) in the model'
        raise Unsupported("unsupported", text, node, source_of(node), hint)
    return int(upper)
