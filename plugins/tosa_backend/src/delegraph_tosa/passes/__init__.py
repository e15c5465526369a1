"""Passes that make a lowered graph small: layout, constants, duplicates. Each is one sweep and leaves its input alone.

Values and operators are immutable and shared between the graph before and after; what changes is made anew and keeps
the source of what it was made from. An operator that takes the place of several keeps all their sources.
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
from .rewriter import Sources, sources_of, with_bodies
from .sink_transposes import sink_transposes
from .transposed_products import transpose_products

__all__ = ["PASSES", "Sources", "run_passes", "sources_of"]

PASSES = (
    sink_transposes,  # first: layouts between a convolution and its neighbours hide what the next ones look for
    fold_pads,
    transpose_products,
    drop_dead,  # what nobody uses must not count as a use
    fold_affine,
    compute_shapes,  # before duplicates are looked for, of which there may be some among the sizes
    merge_equal,
    narrow_constants,  # after merge_equal: each user of a constant gets a RESCALE of its own, which NPUs fuse
    drop_dead,
)


def run_passes(graph: Graph, spec: TosaSpec) -> Graph:
    """An equivalent graph for ``spec`` with fewer operators, each output of which is a value of its own.

    Inputs stay the same values; outputs keep their names.
    """
    given = graph.outputs
    graph = _with_small_bodies(graph, spec)
    for run in PASSES:
        graph = run(graph, spec)
    if spec.version < (1, 0):
        from .single_windows import stride_single_windows

        graph = stride_single_windows(graph, spec)
    graph = separate_outputs(graph, spec, [value.producer and value.producer.source for value in given])
    return name_outputs(graph, [value.name for value in given])


def _with_small_bodies(graph: Graph, spec: TosaSpec) -> Graph:
    """The graph, whose operators of control flow refer to graphs that went through the passes."""
    small = {body: run_passes(body, spec) for body in graph.bodies()}
    return with_bodies(graph, small) if small else graph
