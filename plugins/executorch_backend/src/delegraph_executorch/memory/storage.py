"""Describe the memory that a tensor has, or that a tensor shares with its views."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple


class Home(enum.Enum):
    """The provider of a tensor's memory.

    PLANNED: the memory plan. CONSTANT: the file. STATE: the memory plan, and the content
    is kept between runs. GIVEN: the caller.
    """

    PLANNED = "planned"
    CONSTANT = "constant"
    STATE = "state"
    GIVEN = "given"


class DeviceId(NamedTuple):
    """A device other than the host, such as cuda:0.

    ``kind``: the file's number for the type of device. ``number``: the index after the
    colon.
    """

    kind: int
    number: int


@dataclass(eq=False)
class Storage:
    """Bytes of memory. A tensor and its views have the same ``Storage`` object.

    ``device``: the device with the memory; None is the host. ``memory_id``: the number
    of the memory; memories of devices are numbered when the method is planned.
    ``offset``: the first byte, if it is fixed before the plan is made.
    """

    nbytes: int
    home: Home
    memory_id: int = 1
    device: DeviceId | None = None
    offset: int | None = None

    @property
    def is_planned(self) -> bool:
        """Whether the memory plan provides the memory."""
        return self.home in (Home.PLANNED, Home.STATE)
