"""Alias of ``delegraph.partitioner``."""

from .partitioner import CapabilityPartitioner, Support

__all__ = ["CapabilityPartitioner", "Support"]
