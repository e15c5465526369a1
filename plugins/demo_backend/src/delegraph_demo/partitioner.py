"""Which nodes the demo backend gets: those that it can compile, in as few partitions as
possible.
"""

from __future__ import annotations

from delegraph.partitioner import CapabilityPartitioner

from .backend import BackendWithDelegateMappingDemo, why_not


class DelegateMappingDemoPartitioner(CapabilityPartitioner):
    """Takes no options. What it refuses ends up in the report with the reason that
    ``why_not`` gives.
    """

    def __init__(self) -> None:
        super().__init__(why_not, BackendWithDelegateMappingDemo.__name__)
