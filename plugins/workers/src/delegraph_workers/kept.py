"""Keep objects of a worker for another process: delegates, methods, functions.

Each object has a number, which is used once. The other process releases numbers with
its next job.
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
    """Return the object with a number of ``process``.

    Raises DelegraphError if this process is another one.
    """
    if process != os.getpid():
        raise DelegraphError(
            "process-ended",
            "the process that had this object has ended",
        )
    return _kept[number]


def let_go(numbers: Iterable[int]) -> None:
    """Release the objects with these numbers."""
    for number in numbers:
        _kept.pop(number, None)
