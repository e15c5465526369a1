"""Who decides which nodes a backend gets."""

from .capability import CapabilityPartitioner, Support
from .contract import DelegationSpec, Partitioner, PartitionResult, Refusal

__all__ = ["CapabilityPartitioner", "DelegationSpec", "PartitionResult", "Partitioner", "Refusal", "Support"]
