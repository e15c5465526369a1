"""Sizes of tensors: known, or an upper bound of what they may be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from delegraph.errors import Unsupported
from delegraph_programs import source_of, user_inputs
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from ..program.input_sizes import InputSizes, Place

LARGEST = 1 << 31
"""Sizes are stored as int32; a bound beyond it is none."""
Ranges = Mapping[sympy.Symbol, ValueRanges[sympy.Expr]]


def upper_bounds(
    shape: Sequence[Any], ranges: Ranges, node: Node
) -> tuple[tuple[int, ...], bool]:
    """(sizes, whether one of them is only a bound). Raises Unsupported for a size that
    nothing bounds.
    """
    sizes = tuple(_upper_bound(size, ranges, node) for size in shape)
    return sizes, any(not isinstance(s, int) and not _constant(s) for s in shape)


def size_relations(program: ExportedProgram) -> InputSizes:
    """How the sizes of inputs go together, as far as each is a multiple of one symbol,
    plus a number.

    A fixed size beside others that are not is a symbol of its own, with one value:
    ExecuTorch's table of such a tensor has upper bounds alone.
    """
    numbers: dict[Any, int] = {}
    bounds = []
    places = []
    for position, dim, size in _sizes_that_vary(program):
        symbol, factor, offset = _as_multiple(size)
        if symbol is None and size.free_symbols:
            continue  # of several symbols, or no multiple
        key = symbol or (position, dim)
        if key not in numbers:
            numbers[key] = len(numbers)
            bounds.append(
                (int(size), int(size))
                if symbol is None
                else _bounds(program.range_constraints.get(symbol))
            )
        places.append(Place(position, dim, numbers[key], factor, offset))
    return InputSizes(sorted(places, key=lambda p: (p.factor, p.offset)), bounds)


def _sizes_that_vary(program: ExportedProgram) -> Iterator[tuple[int, int, sympy.Expr]]:
    """(flat input, dimension, size) for all dimensions of the inputs of which one is
    not fixed.
    """
    for position, node in enumerate(user_inputs(program)):
        val = node.meta.get("val")
        shape = val.shape if isinstance(val, torch.Tensor) else ()
        sizes = [
            s.node.expr if isinstance(s, torch.SymInt) else sympy.Integer(s)
            for s in shape
        ]
        if any(size.free_symbols for size in sizes):
            yield from ((position, dim, size) for dim, size in enumerate(sizes))


def _as_multiple(size: sympy.Expr) -> tuple[sympy.Symbol | None, int, int]:
    """The symbol, factor and offset of a size; no symbol if it has none, or is not that
    of one.
    """
    [symbol] = size.free_symbols if len(size.free_symbols) == 1 else [None]
    factor = None if symbol is None else size.diff(symbol)
    if factor is None or not factor.is_Integer or factor <= 0:
        return None, 1, 0
    return symbol, int(factor), int(size.subs(symbol, 0))


def _bounds(range: ValueRanges[sympy.Expr] | None) -> tuple[int, int | None]:
    """What a size may be. torch traces for 2 and more, and lets 0 and 1 through as
    well.
    """
    if range is None:
        return 0, None
    upper = range.upper
    return int(range.lower) if range.lower > 2 else 0, (
        int(upper) if upper.is_Integer and upper <= LARGEST else None
    )


def _constant(size: torch.SymInt) -> bool:
    return not size.node.expr.free_symbols


def _upper_bound(size: int | torch.SymInt, ranges: Ranges, node: Node) -> int:
    if isinstance(size, int):
        return size
    expression = size.node.expr
    if not expression.free_symbols:
        return int(expression)
    known = {
        s: ranges.get(s) or size.node.shape_env.var_to_range[s]
        for s in expression.free_symbols
    }
    upper = bound_sympy(expression, known).upper
    if not upper.is_Integer or upper > LARGEST:
        text = (
            f"{node.name} has the size {expression}, which nothing bounds: its memory"
            " cannot be planned"
        )
        hint = (
            'give it a bound: torch.export.Dim("batch", max=...), or torch._check(n <='
            " ...) in the model"
        )
        raise Unsupported("unsupported", text, node, source_of(node), hint)
    return int(upper)
