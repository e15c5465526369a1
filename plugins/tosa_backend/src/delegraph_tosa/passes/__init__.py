"""Passes that make a lowered graph small: layout, constants, duplicates.

A pass is a function that takes a graph and returns a new one. Values and operators are
immutable and shared between the old and the new graph. The ``source`` of an operator is
the node of the exported program that it was lowered from. A changed operator is a new
one with the source of the old one. If it replaces several operators, it has all their
sources.
"""

from __future__ import annotations

from ..ir.graph import Graph
from ..spec import TosaSpec
from .compute_shapes import compute_shapes
from .cse import merge_equal
from .dce import drop_dead
from .fold_affine import fold_affine
from .fold_pads import fold_pads
from .narrow_constants import narrow_constants
from .outputs import name_outputs, separate_outputs
from .rewriter import sources_of, with_bodies
from .sink_transposes import sink_transposes
from .transposed_products import transpose_products

__all__ = ["PASSES", "run_passes", "sources_of"]

PASSES = (
    # first: a TRANSPOSE between a convolution and its neighbours hides the patterns of
    # later passes
    sink_transposes,
    fold_pads,
    transpose_products,
    drop_dead,  # fold_affine counts uses, and an unused operator must not count
    fold_affine,
    compute_shapes,  # before merge_equal, which merges equal computations of sizes
    merge_equal,
    # after merge_equal: each user of a constant gets a RESCALE of its own, which NPUs
    # fuse
    narrow_constants,
    drop_dead,
)


def run_passes(graph: Graph, spec: TosaSpec) -> Graph:
    """Return an equivalent graph for ``spec`` with fewer operators.

    No two of its outputs are the same value. Inputs stay the same values; outputs keep
    their names.
    """
    sources = [value.producer and value.producer.source for value in graph.outputs]
    names = [value.name for value in graph.outputs]
    graph = _run_on_bodies(graph, spec)
    for run in PASSES:
        graph = run(graph, spec)
    if spec.version < (1, 0):
        from .single_windows import stride_single_windows

        graph = stride_single_windows(graph, spec)
    if spec.devices:
        from .device_passes import DEVICE_PASSES

        for run in DEVICE_PASSES:
            graph = run(graph, spec)
    graph = separate_outputs(graph, spec, sources)
    return name_outputs(graph, names)


def _run_on_bodies(graph: Graph, spec: TosaSpec) -> Graph:
    """Return ``graph`` with all passes applied to its control flow graphs."""
    new_bodies = {body: run_passes(body, spec) for body in graph.bodies()}
    if not new_bodies:
        return graph
    return with_bodies(graph, new_bodies)
