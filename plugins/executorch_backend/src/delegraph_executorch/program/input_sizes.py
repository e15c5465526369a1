"""Check the dynamic sizes of a method's inputs: bounds, and relations between sizes.

ExecuTorch's tables have only an upper bound for each size. delegraph adds a record that
no other runtime reads: each size is ``factor * symbol + offset``, and each symbol has
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


class DynamicSize(NamedTuple):
    """The size of one dimension of an input: ``factor * symbol + offset``.

    ``input`` is the position among the flat inputs, ``symbol`` the number of a symbol.
    """

    input: int
    dim: int
    symbol: int
    factor: int
    offset: int

    def describe(self, names: Sequence[str], size: int) -> str:
        """Describe the size of this dimension in a call."""
        return f"input {names[self.input]} has size {size} in dimension {self.dim}"


class InputSizes(NamedTuple):
    """The dynamic sizes of inputs, and the lower and upper bound of each symbol.

    Sizes that are plain symbols come first. An upper bound may be None.
    """

    sizes: Sequence[DynamicSize]
    bounds: Sequence[tuple[int, int | None]]

    def to_json(self) -> dict[str, Any]:
        """Return the sizes and bounds as the file stores them, in JSON."""
        return {
            "places": list(map(list, self.sizes)),
            "bounds": list(map(list, self.bounds)),
        }

    def check(self, shapes: Sequence[Sequence[int]], names: Sequence[str]) -> None:
        """Raise InputError if the program was not exported for inputs of these shapes.

        ``names`` are those of the flat inputs. The first size with a symbol fixes the
        symbol's value. Later sizes with this symbol must agree with the value.
        """
        known: dict[int, tuple[DynamicSize, int]] = {}
        for dynamic in self.sizes:
            size = shapes[dynamic.input][dynamic.dim]
            factor = dynamic.factor
            offset = dynamic.offset
            first, value = known.setdefault(
                dynamic.symbol, (dynamic, (size - offset) // factor)
            )
            expected = self._describe_expected_sizes(dynamic, size, value)
            if expected == "":
                continue
            text = f"{dynamic.describe(names, size)}; the program was exported for {expected}"
            # if the size contradicts only an earlier one, name the earlier one
            is_multiple = (size - offset) % factor == 0
            contradicts_first = size != factor * value + offset
            if is_multiple and contradicts_first:
                other = first.describe(names, shapes[first.input][first.dim])
                text = f"{text}, as {other}"
            raise InputError("input-invalid", text, hint=_HINT)

    def _describe_expected_sizes(
        self, dynamic: DynamicSize, size: int, value: int
    ) -> str:
        """Describe the sizes that a dimension may have; "" if ``size`` is right.

        ``value`` is the value of the dimension's symbol in this call.
        """
        factor = dynamic.factor
        offset = dynamic.offset
        low, high = self.bounds[dynamic.symbol]
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
    """Read the dynamic sizes of inputs from a file.

    ``ranks`` are those of the flat inputs; None for an input that is no tensor. Return
    None if the file has no dynamic sizes, or if they do not fit the inputs.
    """
    if container is None:
        return None
    try:
        content: Any = json.loads(container.inputs)["sizes"]
        sizes = [DynamicSize(*listed) for listed in content["places"]]
        bounds = [(low, high) for low, high in content["bounds"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    for dynamic in sizes:
        if not all(type(number) is int for number in dynamic):
            return None
        if not _fits(dynamic, ranks, symbol_count=len(bounds)):
            return None
    for low, high in bounds:
        if type(low) is not int or (high is not None and type(high) is not int):
            return None
    return InputSizes(sizes, bounds)


def _fits(dynamic: DynamicSize, ranks: Sequence[int | None], symbol_count: int) -> bool:
    """Return whether a size of the record is valid for the inputs with ``ranks``.

    An input without a rank is no tensor.
    """
    if not 0 <= dynamic.input < len(ranks):
        return False
    rank = ranks[dynamic.input]
    return (
        rank is not None
        and 0 <= dynamic.dim < rank
        and 0 <= dynamic.symbol < symbol_count
        and dynamic.factor > 0
    )
