"""Partitioners: they choose the nodes that a backend gets."""

from .capability_partitioner import (
    CapabilityPartitioner,
    Grouped,
    Grouping,
    Limits,
    WhyNot,
)
from .interface import (
    DelegationSpec,
    Partitioner,
    PartitionResult,
    Reason,
    Refusal,
    Support,
)

__all__ = [
    "CapabilityPartitioner",
    "DelegationSpec",
    "Grouped",
    "Grouping",
    "Limits",
    "PartitionResult",
    "Partitioner",
    "Reason",
    "Refusal",
    "Support",
    "WhyNot",
]
