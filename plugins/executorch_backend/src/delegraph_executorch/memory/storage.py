"""Memory that one tensor has, or that a tensor and views of it share."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple


class Home(enum.Enum):
    """Who provides memory: the plan, the file, the plan for the whole life of the
    method, or the caller.
    """

    PLANNED = "planned"
    CONSTANT = "constant"
    STATE = "state"
    GIVEN = "given"


class Place(NamedTuple):
    """A device other than the host: its kind, as the file numbers it, and which one of
    that kind.
    """

    kind: int
    number: int


@dataclass(eq=False)
class Storage:
    """Bytes of memory; two tensors share them exactly if they have the same object.
    ``place``: whose, None: the host's.

    ``memory_id`` counts the memories of the host; those of devices are numbered when
    the plan is made. ``offset``: the first byte, where that is known before the plan.
    """

    nbytes: int
    home: Home
    memory_id: int = 1
    place: Place | None = None
    offset: int | None = None

    @property
    def is_planned(self) -> bool:
        return self.home in (Home.PLANNED, Home.STATE)
