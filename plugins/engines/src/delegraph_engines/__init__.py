"""Code that plugins for engines share: signatures, sealed files, flatbuffers, support."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .grouped_partitioner import GroupedPartitioner, NodeLists
    from .groups import fewest_partitions
    from .indices import mark_indices
    from .kernels import Kernel, computed_by
    from .named_weights import add_by_content, expect_data
    from .numbered_calls import NumberedCalls, calls_in
    from .observing import Observing
    from .processors import saturates
    from .properties import read_properties
    from .quiet import quietly
    from .releases import compare_releases
    from .sealed import seal, unseal
    from .signature import Signature
    from .support import why_subgraph
    from .tagging import tag_constant_data, tag_mutated_buffer
    from .text_settings import from_specs, to_specs
    from .trial_compilation import TrialCompilation
    from .wrapping_partitioner import WrappingPartitioner

__all__ = [
    "GroupedPartitioner",
    "Kernel",
    "NodeLists",
    "NumberedCalls",
    "Observing",
    "Signature",
    "TrialCompilation",
    "WrappingPartitioner",
    "add_by_content",
    "calls_in",
    "compare_releases",
    "computed_by",
    "expect_data",
    "fewest_partitions",
    "from_specs",
    "mark_indices",
    "quietly",
    "read_properties",
    "saturates",
    "seal",
    "tag_constant_data",
    "tag_mutated_buffer",
    "to_specs",
    "unseal",
    "why_subgraph",
]

_HOME = {
    "GroupedPartitioner": "grouped_partitioner",
    "NodeLists": "grouped_partitioner",
    "Kernel": "kernels",
    "NumberedCalls": "numbered_calls",
    "Observing": "observing",
    "Signature": "signature",
    "TrialCompilation": "trial_compilation",
    "WrappingPartitioner": "wrapping_partitioner",
    "add_by_content": "named_weights",
    "calls_in": "numbered_calls",
    "compare_releases": "releases",
    "computed_by": "kernels",
    "expect_data": "named_weights",
    "fewest_partitions": "groups",
    "from_specs": "text_settings",
    "mark_indices": "indices",
    "quietly": "quiet",
    "read_properties": "properties",
    "saturates": "processors",
    "seal": "sealed",
    "tag_constant_data": "tagging",
    "tag_mutated_buffer": "tagging",
    "to_specs": "text_settings",
    "unseal": "sealed",
    "why_subgraph": "support",
}
"""Public name -> its module. Readers of files need no torch, so names are lazy."""

if not TYPE_CHECKING:  # hidden from type checkers, which would accept any name

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used."""
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
