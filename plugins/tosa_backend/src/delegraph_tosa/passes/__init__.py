"""Passes that make a lowered graph small: layout, constants, duplicates.

Each returns a new graph, made in one sweep. Values and operators are immutable and
shared between the old and the new graph. A changed operator is a new one, with the
source of the old one; an operator that replaces several has the sources of all.
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
    outputs_before = graph.outputs
    graph = _with_small_bodies(graph, spec)
    for run in PASSES:
        graph = run(graph, spec)
    if spec.version < (1, 0):
        from .single_windows import stride_single_windows

        graph = stride_single_windows(graph, spec)
    if spec.devices:
        from .joined_rescales import join_rescales
        from .joined_slices import join_slices
        from .patch_convolutions import convolve_patches
        from .split_rows import split_heads, split_rows
        from .transposes_by_convolution import transpose_by_convolution
        from .unit_axes import drop_unit_axes

        # compute_shapes once more: a joined slice may begin at a size that is known at
        # run time only
        for run in (
            join_rescales,
            split_heads,
            split_rows,
            join_slices,
            drop_unit_axes,
            transpose_by_convolution,
            convolve_patches,
            compute_shapes,
            drop_dead,
        ):
            graph = run(graph, spec)
    graph = separate_outputs(
        graph,
        spec,
        [value.producer and value.producer.source for value in outputs_before],
    )
    return name_outputs(graph, [value.name for value in outputs_before])


def _with_small_bodies(graph: Graph, spec: TosaSpec) -> Graph:
    """Return ``graph`` with all passes applied to its control flow graphs."""
    new_bodies = {body: run_passes(body, spec) for body in graph.bodies()}
    return with_bodies(graph, new_bodies) if new_bodies else graph
