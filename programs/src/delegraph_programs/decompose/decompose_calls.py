"""Decomposes calls of a program in place, without tracing the whole program."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from torch.export import ExportedProgram
from torch.fx import Node

from ..exported_program import rebuild
from ..higher_order_subgraphs import rewrite_subgraphs
from ..tracing_lock import TRACING
from .decomposition_tables import to_core
from .inline import Inlining
from .trace import LINEAR, Tracer


def decompose_calls(
    program: ExportedProgram,
    keeps: Callable[[Node], bool],
    whole: Collection[Any] = LINEAR,
) -> ExportedProgram:
    """Decompose the calls for which ``keeps`` is false, step by step to core ATen.

    Changes the graph of ``program``, which comes from ``normalize``; returns the
    program with the new graph. ``keeps`` is called for each call that has a
    decomposition, also for calls inside of another decomposition. ``whole``: composite
    operators about which ``keeps`` is called, too; torch decomposes all others by
    itself while it traces. Equal calls are traced once.
    """
    with TRACING:
        return _CallDecomposer(keeps, frozenset(whole)).decompose(program)


class _CallDecomposer:
    """Decomposes the calls of a program; see ``decompose_calls``."""

    def __init__(self, keeps: Callable[[Node], bool], whole: frozenset[Any]) -> None:
        self._keeps = keeps
        self._whole = whole
        self._tracer = Tracer()

    def decompose(self, program: ExportedProgram) -> ExportedProgram:
        """Decompose the calls of ``program`` and of its subgraphs."""
        rewrite_subgraphs(program, self.decompose)
        self._tracer.begin(program)
        for node in list(program.graph.nodes):
            if node.op == "call_function":
                self._decompose_call(node)
        return rebuild(program)

    def _decompose_call(self, node: Node) -> None:
        """Replace ``node`` by its decomposition, and its parts by theirs."""
        decompose = to_core(node.target)
        if decompose is None or self._keeps(node):
            return
        decomposition = self._tracer.decompose(node, decompose, self._whole)
        if decomposition is None:
            return
        inlining = Inlining(node, decomposition)
        for call in inlining.calls:
            self._decompose_call(call)
        inlining.commit()
