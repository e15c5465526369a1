"""Finds dynamic sizes that the shapes of a graph's inputs determine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .dynamic_sizes import Symbol, atom, is_dynamic, products, symbols, weight
from .graph import Entries, Operator, Value


class SizeSource(NamedTuple):
    """The source of a symbol: an axis of size ``factor * symbol + rest``."""

    input: Value
    axis: int
    factor: int
    rest: int


def size_sources(inputs: Iterable[Value]) -> dict[Symbol, SizeSource]:
    """Return the source of each symbol that the sizes of ``inputs`` determine.

    It is the size with the fewest atoms. ``factor`` and ``rest`` may have other
    symbols, which have size_sources too.
    """
    sizes = [
        (size, value, axis)
        for value in inputs
        for axis, size in enumerate(value.shape)
        if is_dynamic(size)
    ]
    found: dict[Symbol, SizeSource] = {}
    known = -1
    while known < len(found):
        known = len(found)
        for size, value, axis in sorted(sizes, key=lambda one: weight(one[0])):
            unknown = {*symbols(size)} - found.keys()
            if len(unknown) == 1:
                _solve(found, unknown.pop(), size, value, axis)
    return found


def _solve(
    found: dict[Symbol, SizeSource], one: Symbol, size: int, value: Value, axis: int
) -> None:
    """Add a source for ``one`` if ``size`` is factor * one + rest.

    The other symbols have sources.
    """
    terms = [
        (product, factor)
        for product, factor in products(size)
        if one in symbols(product)
    ]
    product, factor = terms[0]
    other = product // atom(one)
    if len(terms) == 1 and other * atom(one) == product and one not in symbols(other):
        found[one] = SizeSource(value, axis, other * factor, size - product * factor)


def sizes_of(operators: Iterable[Operator]) -> list[int]:
    """Return the dynamic sizes in SHAPE operands of ``operators``."""
    shapes = [
        v.producer.entries or ()
        for op in operators
        for v in op.inputs
        if isinstance(v.producer, Entries)
    ]
    return [size for shape in shapes for size in shape]


def unknown_symbols(inputs: Iterable[Value], sizes: Iterable[int]) -> set[Symbol]:
    """Return the symbols in ``sizes`` that the shapes of ``inputs`` lack."""
    needed = {one for size in sizes for one in symbols(size)}
    return needed - size_sources(inputs).keys() if needed else needed


def why_unknown_sizes(inputs: Iterable[Value], sizes: Iterable[int]) -> str | None:
    """Return why ``sizes`` cannot be computed from the shapes of ``inputs``.

    None if they can.
    """
    missing = unknown_symbols(inputs, sizes)
    return f"no input has the size {min(map(str, missing))}" if missing else None
