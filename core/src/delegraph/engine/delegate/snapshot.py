"""What a plugin was given, to see afterwards what it changed."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from ...io.weights import State, is_written, state_of
from ..graph_equality import same_arguments

Row = tuple[Any, ...]


class Snapshot:
    """The graph of a program, the subgraphs of its calls and its tensors, as they are when the snapshot is taken.

    Takes time linear in the graphs, and a fixed time for each tensor: elements are neither copied nor hashed. What an
    ``earlier`` snapshot knows of a tensor holds for this one, too.
    """

    def __init__(self, program: ExportedProgram, earlier: Snapshot | None = None) -> None:
        self._program, self._graph = program, _rows(program.graph)
        modules = program.graph_module.named_modules()
        self._subgraphs = [(name, m, _rows(m.graph)) for name, m in modules if name and isinstance(m, GraphModule)]
        self._tensors = _tensors(program)
        known: dict[int, State] = earlier._states if earlier else {}
        self._states: dict[int, State] = {id(t): known.get(id(t)) or state_of(t) for t in self._tensors.values()}

    def is_rewritten(self) -> bool:
        """Whether the program's own graph, literal arguments included, or its table of tensors has changed."""
        now = _tensors(self._program)
        kept = now.keys() == self._tensors.keys() and all(now[name] is t for name, t in self._tensors.items())
        return not kept or not _is_unchanged(self._program.graph, self._graph)

    def edited_subgraphs(self) -> list[str]:
        """Names of the changed graphs of branches and loops, which the programs of others contain too."""
        return [name for name, module, before in self._subgraphs if not _is_unchanged(module.graph, before)]

    def written_tensors(self) -> list[str]:
        """Names of the tensors that were written since, of those that were there."""
        return [name for name, t in self._tensors.items() if is_written(t, self._states[id(t)])]


def _tensors(program: ExportedProgram) -> dict[str, torch.Tensor]:
    named = [*program.state_dict.items(), *program.constants.items()]
    return {name: t for name, t in named if isinstance(t, torch.Tensor)}


def _rows(graph: Graph) -> list[Row]:
    return [(n, n.op, n.target, _fetched(n), n.args, n.kwargs) for n in graph.nodes]


def _fetched(node: Node) -> Any:
    """What a ``get_attr`` fetches: another object under the same name is another program."""
    return id(getattr(node.graph.owning_module, str(node.target), None)) if node.op == "get_attr" else None


def _is_unchanged(graph: Graph, before: list[Row]) -> bool:
    now = _rows(graph)
    return len(now) == len(before) and all(map(_is_same, now, before))


def _is_same(now: Row, before: Row) -> bool:
    untouched = now[4] is before[4] and now[5] is before[5]  # nearly always, and much faster to see
    return now[:4] == before[:4] and (untouched or same_arguments(now[4:], before[4:]))
