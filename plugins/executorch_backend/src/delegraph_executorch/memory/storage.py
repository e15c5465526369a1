"""Memory that one tensor has, or that a tensor and views of it share."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Home(enum.Enum):
    """Who provides memory: the plan, the file, the plan for the whole life of the method, or the caller."""

    PLANNED = "planned"
    CONSTANT = "constant"
    STATE = "state"
    GIVEN = "given"


@dataclass(eq=False)
class Storage:
    """Bytes of memory; two tensors share them exactly if they have the same object."""

    nbytes: int
    home: Home
    memory_id: int = 1

    @property
    def is_planned(self) -> bool:
        return self.home in (Home.PLANNED, Home.STATE)
