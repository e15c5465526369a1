"""Which sizes that are known at run time only can be computed from the shapes of a
graph's inputs, and how.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .graph import Entries, Operator, Value
from .sizes import Symbol, atom, is_dynamic, products, symbols, weight


class Witness(NamedTuple):
    """How a symbol is computed: axis ``axis`` of ``input`` has the size ``factor *
    symbol + rest``.
    """

    input: Value
    axis: int
    factor: int
    rest: int


def witnesses(inputs: Iterable[Value]) -> dict[Symbol, Witness]:
    """A witness for each symbol that follows from the sizes of ``inputs``: the size
    with the fewest atoms that has it.

    ``factor`` and ``rest`` may have other symbols, which have witnesses too.
    """
    sizes = [
        (size, value, axis)
        for value in inputs
        for axis, size in enumerate(value.shape)
        if is_dynamic(size)
    ]
    found: dict[Symbol, Witness] = {}
    known = -1
    while known < len(found):
        known = len(found)
        for size, value, axis in sorted(sizes, key=lambda one: weight(one[0])):
            unknown = {*symbols(size)} - found.keys()
            if len(unknown) == 1:
                _solve(found, unknown.pop(), size, value, axis)
    return found


def _solve(
    found: dict[Symbol, Witness], one: Symbol, size: int, value: Value, axis: int
) -> None:
    """Add a witness for the symbol ``one`` if ``size``, whose other symbols have
    witnesses, is factor * one + rest.
    """
    terms = [
        (product, factor)
        for product, factor in products(size)
        if one in symbols(product)
    ]
    product, factor = terms[0]
    other = product // atom(one)
    if len(terms) == 1 and other * atom(one) == product and one not in symbols(other):
        found[one] = Witness(value, axis, other * factor, size - product * factor)


def sizes_of(operators: Iterable[Operator]) -> list[int]:
    """The sizes in SHAPE operands of ``operators`` that are known at run time only
    (``Entries``).
    """
    shapes = [
        v.producer.entries or ()
        for op in operators
        for v in op.inputs
        if isinstance(v.producer, Entries)
    ]
    return [size for shape in shapes for size in shape]


def untold(inputs: Iterable[Value], sizes: Iterable[int]) -> set[Symbol]:
    """The symbols in ``sizes`` that cannot be computed from the shapes of ``inputs``."""
    needed = {one for size in sizes for one in symbols(size)}
    return needed - witnesses(inputs).keys() if needed else needed


def why_untold(inputs: Iterable[Value], sizes: Iterable[int]) -> str | None:
    """Why ``sizes`` cannot be computed from the shapes of ``inputs``; None if they can."""
    missing = untold(inputs, sizes)
    return f"no input tells the size {min(map(str, missing))}" if missing else None
