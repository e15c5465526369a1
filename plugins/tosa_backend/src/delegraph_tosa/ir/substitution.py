"""Sizes of a graph of control flow in terms of the sizes of its operands.

In a file, each unknown size of each graph has a symbol of its own. For example, ``x.0``
of a graph is ``2*n`` of the tensor that the control flow operator passes as x.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from .dynamic_sizes import (
    Atom,
    Quotient,
    Size,
    Symbol,
    atom,
    largest,
    smallest,
    symbols,
)
from .types import Type


def bound(inputs: Iterable[Type], operands: Iterable[Type]) -> dict[Symbol, int]:
    """Map symbols of a graph's inputs to the sizes of ``operands``."""
    types = zip(inputs, operands, strict=False)
    pairs = [
        pair
        for mine, theirs in types
        for pair in zip(mine.shape, theirs.shape, strict=False)
    ]
    return {
        one: size
        for mine, size in pairs
        if mine != size and (one := _plain(mine)) is not None
    }


def _plain(size: int) -> Symbol | None:
    """Return the symbol that ``size`` consists of, as ``n`` but not ``2*n`` or ``n+1``.

    None for any other size.
    """
    one = next(symbols(size), None)
    return one if one is not None and size == atom(one) else None


def substituted(type: Type, sizes: Mapping[Symbol, int]) -> Type:
    """Return ``type`` with each symbol in ``sizes`` replaced, all at once."""
    if not sizes or not type.is_dynamic:
        return type
    return type._replace(shape=tuple([_size(size, sizes) for size in type.shape]))


def _size(size: int, sizes: Mapping[Symbol, int]) -> int:
    """Return ``size`` with symbols replaced."""
    if not isinstance(size, Size):
        return size
    return sum(
        [
            factor * math.prod([_atom(one, sizes) for one in product])
            for product, factor in size.terms.items()
        ]
    )


def _atom(one: Atom, sizes: Mapping[Symbol, int]) -> int:
    """Return an atom of a size, with symbols replaced."""
    if isinstance(one, Symbol):
        return sizes.get(one, atom(one))
    if isinstance(one, Quotient):
        return _size(one.dividend, sizes) // _size(one.divisor, sizes)
    extreme = largest if one.larger else smallest
    return extreme(_size(one.left, sizes), _size(one.right, sizes))
