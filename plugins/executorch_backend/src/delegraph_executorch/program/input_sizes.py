"""Check the dynamic sizes of a method's inputs: bounds, and relations between sizes.

ExecuTorch's tables have only an upper bound for each size. The container, which no
runtime reads, has more: each size is ``factor * symbol + offset``, and each symbol has
bounds. Imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from delegraph.errors import InputError

from .pte_tables import ContainerMetadata

_HINT = (
    "call it with sizes that it was exported for, or export it with other"
    " dynamic_shapes"
)


class Place(NamedTuple):
    """A dimension of a flat input, with the size ``factor * symbol + offset``.

    Symbols are numbered.
    """

    input: int
    dim: int
    symbol: int
    factor: int
    offset: int

    def text(self, names: Sequence[str], size: int) -> str:
        """Describe the size in a call."""
        return f"input {names[self.input]} has size {size} in dimension {self.dim}"


class InputSizes(NamedTuple):
    """The places of dynamic sizes, and the bounds of each symbol.

    Places with a plain symbol come first. An upper bound may be None.
    """

    places: Sequence[Place]
    bounds: Sequence[tuple[int, int | None]]

    def to_json(self) -> dict[str, Any]:
        """Return the form for the file."""
        return {
            "places": list(map(list, self.places)),
            "bounds": list(map(list, self.bounds)),
        }

    def check(self, shapes: Sequence[Sequence[int]], names: Sequence[str]) -> None:
        """Raise InputError if the program was not exported for inputs of these shapes."""
        known: dict[int, tuple[Place, int]] = {}
        for place in self.places:
            size = shapes[place.input][place.dim]
            first, value = known.setdefault(
                place.symbol, (place, (size - place.offset) // place.factor)
            )
            wanted = self._wanted(place, size, value)
            if not wanted:
                continue
            text = f"{place.text(names, size)}; the program was exported for {wanted}"
            is_multiple = (size - place.offset) % place.factor == 0
            differs = size != place.factor * value + place.offset
            if first is not place and is_multiple and differs:
                other = first.text(names, shapes[first.input][first.dim])
                text = f"{text}, as {other}"
            raise InputError("input-invalid", text, hint=_HINT)

    def _wanted(self, place: Place, size: int, value: int) -> str:
        """Return the sizes that a place may have; "" if the size is right.

        ``value`` is that of its symbol at the first place.
        """
        factor = place.factor
        offset = place.offset
        low, high = self.bounds[place.symbol]
        if (size - offset) % factor:
            plus = f" plus {offset}" if offset else ""
            return f"multiples of {factor}{plus} there"
        if size != factor * value + offset:
            return f"size {factor * value + offset} there"
        if value >= low and (high is None or value <= high):
            return ""
        least = factor * low + offset
        if high is None:
            return f"sizes of at least {least} there"
        most = factor * high + offset
        if least == most:
            return f"size {least} there"
        return f"sizes from {least} to {most} there"


def input_sizes(
    container: ContainerMetadata | None, ranks: Sequence[int | None]
) -> InputSizes | None:
    """Read the dynamic sizes of inputs with these ranks (None: no tensor).

    None if the file has none, or if they do not fit the inputs.
    """
    if container is None:
        return None
    try:
        content: Any = json.loads(container.inputs)["sizes"]
        places = [Place(*listed) for listed in content["places"]]
        bounds = [(low, high) for low, high in content["bounds"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    for place in places:
        if not all(type(number) is int for number in place):
            return None
        if not _fits(place, ranks, len(bounds)):
            return None
    for low, high in bounds:
        if type(low) is not int or (high is not None and type(high) is not int):
            return None
    return InputSizes(places, bounds)


def _fits(place: Place, ranks: Sequence[int | None], symbols: int) -> bool:
    rank = ranks[place.input] if 0 <= place.input < len(ranks) else None
    return (
        rank is not None
        and 0 <= place.dim < rank
        and 0 <= place.symbol < symbols
        and place.factor > 0
    )
