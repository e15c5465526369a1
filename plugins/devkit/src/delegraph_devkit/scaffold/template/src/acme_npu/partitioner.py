"""Chooses the operators for the device: all that it supports, in as few parts as possible."""

from __future__ import annotations

from delegraph.partitioner import CapabilityPartitioner

from .backend import AcmeNpuBackend
from .instructions import why_not


class AcmeNpuPartitioner(CapabilityPartitioner):
    """Has no options. Options that plugin.py declares become parameters; pass them on as compile specs."""

    def __init__(self) -> None:
        super().__init__(why_not, AcmeNpuBackend.__name__)
