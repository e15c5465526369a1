"""Keep objects of a worker for another process: delegates, methods, functions.

The other process knows an object by its number, which is used once. With its next job,
it sends the numbers that it needs no more.
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
    """Keep an object; return its number."""
    number = next(_numbers)
    _kept[number] = thing
    return number


def kept(number: int, process: int) -> Any:
    """Return the object with a number that ``keep`` returned in ``process``.

    Raises DelegraphError if this process is another one.
    """
    if process != os.getpid():
        raise DelegraphError(
            "process-ended",
            "the worker process that held this object has ended",
        )
    return _kept[number]


def release(numbers: Iterable[int]) -> None:
    """Release the objects with these numbers."""
    for number in numbers:
        _kept.pop(number, None)
