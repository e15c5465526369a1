"""Finds dynamic sizes that the shapes of a graph's inputs determine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .dynamic_sizes import (
    Symbol,
    is_dynamic,
    parts_of,
    products,
    size_of_atom,
    symbols,
)
from .graph import Entries, Operator, Value


class SizeSource(NamedTuple):
    """The source of a symbol: an axis of size ``factor * symbol + rest``."""

    input: Value
    axis: int
    factor: int
    rest: int


def size_sources(inputs: Iterable[Value]) -> dict[Symbol, SizeSource]:
    """Return the source of each symbol that the sizes of ``inputs`` determine.

    The simplest size is preferred. ``factor`` and ``rest`` may have other symbols,
    which have sources, too. For example, sizes n and ``n*m + 1`` determine n, and then
    m: its factor is n, and its rest is 1.
    """
    axes: list[tuple[int, Value, int]] = []
    for value in inputs:
        for axis, size in enumerate(value.shape):
            if is_dynamic(size):
                axes.append((size, value, axis))
    simplest_first = sorted(axes, key=lambda entry: parts_of(entry[0]))
    found: dict[Symbol, SizeSource] = {}
    count_before = -1
    while count_before < len(found):
        count_before = len(found)
        for size, value, axis in simplest_first:
            unknown = {*symbols(size)} - found.keys()
            if len(unknown) == 1:
                _solve(found, unknown.pop(), size, value, axis)
    return found


def _solve(
    found: dict[Symbol, SizeSource], symbol: Symbol, size: int, value: Value, axis: int
) -> None:
    """Add a source for ``symbol`` to ``found`` if ``size`` is factor * symbol + rest.

    ``size`` is the size of ``axis`` of ``value``. All its other symbols have sources.
    """
    terms = [term for term in products(size) if symbol in symbols(term.product)]
    if len(terms) != 1:
        return
    product, factor = terms[0]
    unknown = size_of_atom(symbol)
    others = product // unknown
    if others * unknown == product and symbol not in symbols(others):
        rest = size - product * factor
        found[symbol] = SizeSource(value, axis, others * factor, rest)


def sizes_of(operators: Iterable[Operator]) -> list[int]:
    """Return the entries of all dynamic SHAPE operands of ``operators``."""
    sizes: list[int] = []
    for operator in operators:
        for value in operator.inputs:
            if isinstance(value.producer, Entries):
                sizes += value.producer.entries or ()
    return sizes


def unknown_symbols(inputs: Iterable[Value], sizes: Iterable[int]) -> set[Symbol]:
    """Return the symbols in ``sizes`` that shapes of ``inputs`` do not determine."""
    needed: set[Symbol] = set()
    for size in sizes:
        needed.update(symbols(size))
    if not needed:
        return needed
    return needed - size_sources(inputs).keys()


def why_unknown_sizes(inputs: Iterable[Value], sizes: Iterable[int]) -> str | None:
    """Return why ``sizes`` cannot be computed from the shapes of ``inputs``.

    None if they can.
    """
    missing = unknown_symbols(inputs, sizes)
    if not missing:
        return None
    return f"no input has the size {min(map(str, missing))}"
