"""Describe the memory that a tensor has, or that a tensor shares with its views."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple


class Home(enum.Enum):
    """Tell who provides the memory of a tensor.

    PLANNED: the memory plan. CONSTANT: the file. STATE: the memory plan, for the whole
    life of the method. GIVEN: the caller.
    """

    PLANNED = "planned"
    CONSTANT = "constant"
    STATE = "state"
    GIVEN = "given"


class Place(NamedTuple):
    """A device other than the host: its kind, as the file numbers it, and its index."""

    kind: int
    number: int


@dataclass(eq=False)
class Storage:
    """Bytes of memory. Two tensors share memory exactly if they have the same object.

    ``place`` is the device that has the memory, or None for the host. ``memory_id``
    numbers the memories of the host; devices get theirs when the plan is made.
    ``offset`` is the first byte, if it is known before the plan.
    """

    nbytes: int
    home: Home
    memory_id: int = 1
    place: Place | None = None
    offset: int | None = None

    @property
    def is_planned(self) -> bool:
        return self.home in (Home.PLANNED, Home.STATE)
