"""Replaces the symbols of a control flow graph by the sizes of its operands.

In a file, each unknown size of each graph has a symbol of its own. For example, the
input x of a loop's body has the size ``x.0``. If the loop passes a tensor of size
``2*n`` as x, ``x.0`` is replaced by ``2*n``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from .dynamic_sizes import (
    Atom,
    Quotient,
    Size,
    Symbol,
    largest,
    size_of_atom,
    smallest,
    symbols,
)
from .types import Type


def bound(inputs: Iterable[Type], operands: Iterable[Type]) -> dict[Symbol, int]:
    """Map symbols of a graph's inputs to the sizes of ``operands``."""
    sizes: dict[Symbol, int] = {}
    for inner, outer in zip(inputs, operands, strict=False):
        for inner_size, outer_size in zip(inner.shape, outer.shape, strict=False):
            symbol = _only_symbol(inner_size)
            if symbol is not None and inner_size != outer_size:
                sizes[symbol] = outer_size
    return sizes


def _only_symbol(size: int) -> Symbol | None:
    """Return the only symbol of the size ``n``; None for ``2*n`` or ``n + 1``."""
    symbol = next(symbols(size), None)
    if symbol is None or size != size_of_atom(symbol):
        return None
    return symbol


def substituted(type: Type, sizes: Mapping[Symbol, int]) -> Type:
    """Return ``type`` with each symbol in ``sizes`` replaced, all at once."""
    if not sizes or not type.is_dynamic:
        return type
    return type._replace(shape=tuple([_size(size, sizes) for size in type.shape]))


def _size(size: int, sizes: Mapping[Symbol, int]) -> int:
    """Return ``size`` with symbols replaced."""
    if not isinstance(size, Size):
        return size
    total = 0
    for monomial, factor in size.terms.items():
        total = total + factor * math.prod([_atom(atom, sizes) for atom in monomial])
    return total


def _atom(atom: Atom, sizes: Mapping[Symbol, int]) -> int:
    """Return an atom of a size, with symbols replaced."""
    if isinstance(atom, Symbol):
        return sizes.get(atom, size_of_atom(atom))
    if isinstance(atom, Quotient):
        return _size(atom.dividend, sizes) // _size(atom.divisor, sizes)
    extreme = largest if atom.larger else smallest
    return extreme(_size(atom.left, sizes), _size(atom.right, sizes))
