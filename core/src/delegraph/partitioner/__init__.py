"""Who decides which nodes a backend gets."""

from .capability import CapabilityPartitioner, Support
from .contract import DelegationSpec, Partitioner, PartitionResult, Refusal
from .tagging import tag_constant_data, tag_mutated_buffer

__all__ = [
    "CapabilityPartitioner",
    "DelegationSpec",
    "PartitionResult",
    "Partitioner",
    "Refusal",
    "Support",
    "tag_constant_data",
    "tag_mutated_buffer",
]
