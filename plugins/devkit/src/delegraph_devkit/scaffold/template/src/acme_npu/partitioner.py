"""Which operators the device gets: all that it can compute, in as few parts as possible."""

from __future__ import annotations

from delegraph.partitioner import CapabilityPartitioner

from .backend import AcmeNpuBackend
from .instructions import why_not


class AcmeNpuPartitioner(CapabilityPartitioner):
    """Takes no options. Those that plugin.py declares become parameters here, and go on as compile specs."""

    def __init__(self) -> None:
        super().__init__(why_not, AcmeNpuBackend.__name__)
