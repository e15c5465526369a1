"""Partitioners: they choose the nodes that a backend gets."""

from .asking import Asking
from .canonical import AllNodePartitioner, PatternPartitioner, matches
from .capability import CapabilityPartitioner, NodeLists, WhyNot
from .checks import DontPartition, DontPartitionModule, DontPartitionName, is_shape_dynamic
from .contract import DelegationSpec, Partitioner, PartitionResult, Reason, Refusal, Support
from .tagging import tag_constant_data, tag_mutated_buffer
from .values import ValueCheck, dequantized_parts, is_dequantized, why_subgraph
from .wrapping import WrappingPartitioner

__all__ = [
    "AllNodePartitioner",
    "Asking",
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
    "ValueCheck",
    "WhyNot",
    "WrappingPartitioner",
    "dequantized_parts",
    "is_dequantized",
    "is_shape_dynamic",
    "matches",
    "tag_constant_data",
    "tag_mutated_buffer",
    "why_subgraph",
]
