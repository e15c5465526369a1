"""Decomposes calls of a program in place, without tracing the whole program."""

from __future__ import annotations

from collections.abc import Callable

from torch.export import ExportedProgram
from torch.fx import Node

from ..exported_program import build_program, name_outputs, output_values, root_call
from ..subgraphs import rewrite_subgraphs
from ..tracing_lock import TRACING
from .decomposition_tables import to_core
from .inline import Inlining
from .trace import Tracer


def decompose_calls(
    program: ExportedProgram, keeps: Callable[[Node], bool]
) -> ExportedProgram:
    """Decompose the calls for which ``keeps`` is false, step by step to core ATen.

    ``program`` comes from ``normalize``: its graph is changed. ``keeps`` is called for
    each call that has a decomposition, also inside another decomposition. Equal calls
    are traced once. Returns the program with the new graph.
    """
    with TRACING:
        return _decompose(program, keeps, Tracer())


def _decompose(
    program: ExportedProgram, keeps: Callable[[Node], bool], tracer: Tracer
) -> ExportedProgram:
    """Decompose the calls of ``program`` and of its subgraphs."""
    rewrite_subgraphs(program, lambda subgraph: _decompose(subgraph, keeps, tracer))
    tracer.begin(program)
    for node in list(program.graph.nodes):
        if node.op == "call_function":
            _decompose_call(node, keeps, tracer)
    signature = program.graph_signature
    outputs = name_outputs(signature.output_specs, output_values(program))
    module = program.graph_module
    inputs = signature.input_specs
    call = root_call(program)
    return build_program(module, program.graph, inputs, outputs, program, call)


def _decompose_call(node: Node, keeps: Callable[[Node], bool], tracer: Tracer) -> None:
    """Replace ``node`` by its decomposition, and its parts by theirs."""
    how = to_core(node.target)
    if how is None or keeps(node):
        return
    decomposition = tracer.decompose(node, how)
    if decomposition is None:
        return
    inlining = Inlining(node, decomposition)
    for call in inlining.calls:
        _decompose_call(call, keeps, tracer)
    inlining.commit()
