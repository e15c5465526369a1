"""Find upper bounds of tensor sizes, and relations between the sizes of inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import sympy
import torch
from delegraph.errors import Unsupported
from delegraph_programs import source_of, user_inputs
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from ..program.input_sizes import DynamicSize, InputSizes

LARGEST = 1 << 31
"""Sizes are stored as int32, so a larger bound counts as no bound."""
Ranges = Mapping[sympy.Symbol, ValueRanges[sympy.Expr]]
"""The range of each symbol, as ``ExportedProgram.range_constraints`` has it."""


class UpperBounds(NamedTuple):
    """Sizes, with upper bounds for dynamic ones, and whether one is dynamic."""

    sizes: tuple[int, ...]
    varies: bool


def upper_bounds(shape: Sequence[Any], ranges: Ranges, node: Node) -> UpperBounds:
    """Return the upper bounds of a shape; Unsupported for a size without a bound."""
    sizes = tuple(_upper_bound(size, ranges, node) for size in shape)
    varies = any(not isinstance(s, int) and not _is_constant(s) for s in shape)
    return UpperBounds(sizes, varies)


def size_relations(program: ExportedProgram) -> InputSizes:
    """Return how dynamic sizes of inputs depend on each other.

    Only sizes of the form ``factor * symbol + offset`` are included. A static size of a
    tensor with dynamic sizes counts as a symbol with one value: ExecuTorch's tables
    have only upper bounds for such a tensor.
    """
    # symbol, or (input, dimension) of a static size -> number of the symbol
    numbers: dict[Any, int] = {}
    bounds: list[tuple[int, int | None]] = []
    sizes = []
    for position, dim, size in _sizes_that_vary(program):
        symbol, factor, offset = _as_multiple(size)
        if symbol is None and size.free_symbols:
            continue
        key = symbol or (position, dim)
        if key not in numbers:
            numbers[key] = len(numbers)
            if symbol is None:
                bounds.append((int(size), int(size)))
            else:
                bounds.append(_bounds(program.range_constraints.get(symbol)))
        sizes.append(DynamicSize(position, dim, numbers[key], factor, offset))
    # plain symbols come first: ``s0`` before ``2*s0 + 1``
    return InputSizes(sorted(sizes, key=lambda s: (s.factor, s.offset)), bounds)


class _InputSize(NamedTuple):
    """The size of one dimension of an input."""

    position: int
    dim: int
    size: sympy.Expr


def _sizes_that_vary(program: ExportedProgram) -> Iterator[_InputSize]:
    """Yield all sizes of the inputs that have a dynamic size."""
    for position, node in enumerate(user_inputs(program)):
        val = node.meta.get("val")
        shape = val.shape if isinstance(val, torch.Tensor) else ()
        sizes = [
            s.node.expr if isinstance(s, torch.SymInt) else sympy.Integer(s)
            for s in shape
        ]
        if any(size.free_symbols for size in sizes):
            for dim, size in enumerate(sizes):
                yield _InputSize(position, dim, size)


class _Multiple(NamedTuple):
    """A size as ``factor * symbol + offset``."""

    symbol: sympy.Symbol | None
    factor: int
    offset: int


def _as_multiple(size: sympy.Expr) -> _Multiple:
    """Return ``2*s0 + 1`` as (s0, 2, 1); without a symbol if the size has no such form."""
    if len(size.free_symbols) == 1:
        [symbol] = size.free_symbols
        factor = size.diff(symbol)
        if factor.is_Integer and factor > 0:
            return _Multiple(symbol, int(factor), int(size.subs(symbol, 0)))
    return _Multiple(None, 1, 0)


def _bounds(range: ValueRanges[sympy.Expr] | None) -> tuple[int, int | None]:
    """Return the least and the greatest value of a symbol; None for no limit."""
    if range is None:
        return 0, None
    # torch.export assumes sizes of at least 2, but its programs accept 0 and 1.
    lower = int(range.lower) if range.lower > 2 else 0
    upper = range.upper
    has_upper = upper.is_Integer and upper <= LARGEST
    return lower, int(upper) if has_upper else None


def _is_constant(size: torch.SymInt) -> bool:
    return not size.node.expr.free_symbols


def _upper_bound(size: int | torch.SymInt, ranges: Ranges, node: Node) -> int:
    """Return the greatest value of a size of ``node``; Unsupported if there is none."""
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
            f"the size {expression} of {node.name} has no upper bound, so its memory"
            " cannot be planned"
        )
        hint = (
            'give it a bound: torch.export.Dim("batch", max=...), or torch._check(n <='
            " ...) in the model"
        )
        raise Unsupported("unsupported", text, node, source_of(node), hint)
    return int(upper)
