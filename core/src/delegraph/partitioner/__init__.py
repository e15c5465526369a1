"""Partitioners: they choose the nodes that a backend gets."""

from .canonical import AllNodePartitioner, PatternPartitioner, matches
from .capability import CapabilityPartitioner, NodeLists, WhyNot
from .checks import (
    DontPartition,
    DontPartitionModule,
    DontPartitionName,
    is_shape_dynamic,
)
from .contract import (
    DelegationSpec,
    Partitioner,
    PartitionResult,
    Reason,
    Refusal,
    Support,
)
from .tagging import tag_constant_data, tag_mutated_buffer
from .wrapping import WrappingPartitioner

__all__ = [
    "AllNodePartitioner",
    "CapabilityPartitioner",
    "DelegationSpec",
    "DontPartition",
    "DontPartitionModule",
    "DontPartitionName",
    "NodeLists",
    "PartitionResult",
    "Partitioner",
    "PatternPartitioner",
    "Reason",
    "Refusal",
    "Support",
    "WhyNot",
    "WrappingPartitioner",
    "is_shape_dynamic",
    "matches",
    "tag_constant_data",
    "tag_mutated_buffer",
]
