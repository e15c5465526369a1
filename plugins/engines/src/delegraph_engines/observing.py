"""``Observing``: calls that also return values inside of a delegate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from delegraph.runtime import Delegate, Inside


class Observing:
    """An ``ObservedDelegate``: it separates outputs from values inside of a delegate.

    ``delegate`` returns its outputs, and after them such values. ``identifiers``: the
    delegate debug identifier of each value, in order.
    """

    def __init__(self, delegate: Delegate, identifiers: Iterable[Any]) -> None:
        self._delegate = delegate
        self._identifiers = list(identifiers)

    def __call__(
        self, *args: torch.Tensor | int | float | bool
    ) -> tuple[tuple[Any, ...], Inside]:
        values = self._delegate(*args)
        outputs = len(values) - len(self._identifiers)
        inside = zip(self._identifiers, values[outputs:], strict=True)
        return values[:outputs], {identifier: [value] for identifier, value in inside}
