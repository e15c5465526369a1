"""What a worker keeps for the process that asks, by number: delegates, methods of
files, functions of quantizers.

A number is used once. The other side says with its next job which ones nobody has any
more.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from typing import Any

from delegraph.errors import DelegraphError

_kept: dict[int, Any] = {}
_numbers = itertools.count()


def keep(thing: Any) -> int:
    """Keep a thing; returns its number."""
    _kept[number := next(_numbers)] = thing
    return number


def kept(number: int, process: int) -> Any:
    """The thing of a number that ``process`` gave.

    Raises DelegraphError if that was not this one.
    """
    if process != os.getpid():
        raise DelegraphError(
            "process-ended",
            "the process that had this object has ended",
        )
    return _kept[number]


def let_go(numbers: Iterable[int]) -> None:
    """Forget what has these numbers."""
    for number in numbers:
        _kept.pop(number, None)
