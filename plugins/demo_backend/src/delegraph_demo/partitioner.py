"""Chooses the calls that the demo backend compiles, in as few partitions as possible."""

from __future__ import annotations

from delegraph.partitioner import CapabilityPartitioner

from .backend import BackendWithDelegateMappingDemo, why_not


class DelegateMappingDemoPartitioner(CapabilityPartitioner):
    """Gives the backend the calls that it can compile.

    It has no options. The report lists refused calls with the reason of ``why_not``.
    """

    def __init__(self) -> None:
        super().__init__(why_not, BackendWithDelegateMappingDemo.__name__)
