"""Where sizes that are known at run time only can be read: off the shapes of a graph's inputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .graph import Entries, Operator, Value
from .sizes import Symbol, atom, is_dynamic, products, symbols, weight


class Witness(NamedTuple):
    """Where a symbol is read: axis ``axis`` of ``input`` has the size ``factor * symbol + rest``."""

    input: Value
    axis: int
    factor: int
    rest: int


def witnesses(inputs: Iterable[Value]) -> dict[Symbol, Witness]:
    """A witness for each symbol that can be read off the sizes of ``inputs``: the plainest size that has it."""
    sizes = [(size, value, axis) for value in inputs for axis, size in enumerate(value.shape) if is_dynamic(size)]
    found: dict[Symbol, Witness] = {}
    known = -1
    while known < len(found):
        known = len(found)
        for size, value, axis in sorted(sizes, key=lambda one: weight(one[0])):
            unknown = {*symbols(size)} - found.keys()
            if len(unknown) == 1:
                _solve(found, unknown.pop(), size, value, axis)
    return found


def _solve(found: dict[Symbol, Witness], one: Symbol, size: int, value: Value, axis: int) -> None:
    """Note where ``one`` is read if ``size`` is a multiple of it and of what is known, plus what is known."""
    mine = [(product, factor) for product, factor in products(size) if one in symbols(product)]
    product, factor = mine[0]
    other = product // atom(one)
    if len(mine) == 1 and other * atom(one) == product and one not in symbols(other):
        found[one] = Witness(value, axis, other * factor, size - product * factor)


def sizes_of(operators: Iterable[Operator]) -> list[int]:
    """The sizes in the shapes that ``operators`` ask for."""
    entries = [v.producer.entries or () for op in operators for v in op.inputs if isinstance(v.producer, Entries)]
    return [size for listed in entries for size in listed]


def untold(inputs: Iterable[Value], sizes: Iterable[int]) -> set[Symbol]:
    """The symbols in ``sizes`` that do not follow from the shapes of ``inputs``."""
    wanted = {one for size in sizes for one in symbols(size)}
    return wanted - witnesses(inputs).keys() if wanted else wanted


def why_untold(inputs: Iterable[Value], sizes: Iterable[int]) -> str | None:
    """Why ``sizes`` do not follow from the shapes of ``inputs``; None if they do."""
    missing = untold(inputs, sizes)
    return f"no input tells the size {min(map(str, missing))}" if missing else None
