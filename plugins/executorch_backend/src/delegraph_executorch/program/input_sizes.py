"""What a file says of the sizes of a method's inputs that are not fixed: how they go
together, and within which bounds.

ExecuTorch's tables have an upper bound for each size. The rest stands beside the
structure of the inputs, which no runtime reads: each size is ``factor * symbol +
offset``, and each symbol has bounds. Imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from delegraph.errors import InputError

from .tables import ContainerMetadata

_HINT = (
    "call it with sizes that it was exported for, or export it with other"
    " dynamic_shapes"
)


class Place(NamedTuple):
    """Dimension ``dim`` of flat input ``input`` has the size ``factor * symbol +
    offset``; symbols are numbered.
    """

    input: int
    dim: int
    symbol: int
    factor: int
    offset: int

    def text(self, names: Sequence[str], size: int) -> str:
        """What a call has there."""
        return f"input {names[self.input]} has size {size} in dimension {self.dim}"


class InputSizes(NamedTuple):
    """All places, those first that are a symbol alone, and the bounds of each symbol;
    an upper bound may be None.
    """

    places: Sequence[Place]
    bounds: Sequence[tuple[int, int | None]]

    def to_json(self) -> dict[str, Any]:
        """As it stands in the file."""
        return {
            "places": list(map(list, self.places)),
            "bounds": list(map(list, self.bounds)),
        }

    def check(self, shapes: Sequence[Sequence[int]], names: Sequence[str]) -> None:
        """Raise InputError for a call with inputs of these shapes, called so, whose
        sizes the program is not for.
        """
        known: dict[int, tuple[Place, int]] = {}
        for place in self.places:
            size = shapes[place.input][place.dim]
            first, value = known.setdefault(
                place.symbol, (place, (size - place.offset) // place.factor)
            )
            beside = (
                f", as {first.text(names, shapes[first.input][first.dim])}"
                if first is not place
                else ""
            )
            wanted = self._wanted(place, size, value, beside)
            if wanted:
                text = (
                    f"{place.text(names, size)}; the program was exported for {wanted}"
                )
                raise InputError("input-invalid", text, hint=_HINT)

    def _wanted(self, place: Place, size: int, value: int, beside: str) -> str:
        """What the size of a place has to be, None if it is; ``value`` is that of its
        symbol at the first place.
        """
        factor = place.factor
        offset = place.offset
        low, high = self.bounds[place.symbol]
        if (size - offset) % factor:
            return (
                f"multiples of {factor}"
                + (f" plus {offset}" if offset else "")
                + " there"
            )
        if size != factor * value + offset:
            return f"size {factor * value + offset} there{beside}"
        if value < low or (high is not None and value > high):
            least = factor * low + offset
            most = None if high is None else factor * high + offset
            if least == most:
                return f"size {least} there"
            return (
                f"sizes of at least {least}"
                if most is None
                else f"sizes from {least} to {most}"
            ) + " there"
        return ""


def input_sizes(
    container: ContainerMetadata | None, ranks: Sequence[int | None]
) -> InputSizes | None:
    """What a file says of inputs of these ranks (None: no tensor); None if that is
    nothing, or does not fit them.
    """
    try:
        stated: Any = (
            json.loads(container.inputs)["sizes"] if container is not None else None
        )
        places = [Place(*listed) for listed in stated["places"]]
        bounds = [(low, high) for low, high in stated["bounds"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    numbers = [n for place in places for n in place] + [
        n for pair in bounds for n in pair if n is not None
    ]
    if not all(type(n) is int for n in numbers) or not all(
        _fits(place, ranks, len(bounds)) for place in places
    ):
        return None
    return (
        InputSizes(places, bounds)
        if all(low is not None for low, _ in bounds)
        else None
    )


def _fits(place: Place, ranks: Sequence[int | None], symbols: int) -> bool:
    rank = ranks[place.input] if 0 <= place.input < len(ranks) else None
    return (
        rank is not None
        and 0 <= place.dim < rank
        and 0 <= place.symbol < symbols
        and place.factor > 0
    )
