"""Sizes of tensors: known, or an upper bound of what they may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from delegraph.errors import Unsupported
from delegraph.exported_program import user_inputs
from delegraph.source import source_of
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from ..program.input_sizes import InputSizes, Place

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


def size_relations(program: ExportedProgram) -> InputSizes:
    """How the sizes of inputs go together, as far as each is a multiple of one symbol, plus a number."""
    numbers: dict[sympy.Symbol, int] = {}
    places = []
    for position, node in enumerate(user_inputs(program)):
        val = node.meta.get("val")
        for dim, size in enumerate(val.shape if isinstance(val, torch.Tensor) else ()):
            expression = size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)
            [symbol] = expression.free_symbols if len(expression.free_symbols) == 1 else [None]
            factor = None if symbol is None else expression.diff(symbol)
            if factor is not None and factor.is_Integer and factor > 0:
                number, offset = numbers.setdefault(symbol, len(numbers)), int(expression.subs(symbol, 0))
                places.append(Place(position, dim, number, int(factor), offset))
    ranges = [program.range_constraints.get(symbol) for symbol in numbers]
    return InputSizes(sorted(places, key=lambda p: (p.factor, p.offset)), list(map(_bounds, ranges)))


def _bounds(range: ValueRanges[sympy.Expr] | None) -> tuple[int, int | None]:
    """What a size may be. torch traces for 2 and more, and lets 0 and 1 through as well."""
    if range is None:
        return 0, None
    upper = range.upper
    return int(range.lower) if range.lower > 2 else 0, int(upper) if upper.is_Integer and upper <= LARGEST else None


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
