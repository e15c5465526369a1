"""Snapshots of programs, to find out what a plugin changed."""

from __future__ import annotations

from operator import is_
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from .equal_arguments import same_arguments
from .tensor_bytes import State, is_written, state_of


class Snapshot:
    """A record of a program's graph, subgraphs and tensors at one moment.

    Taking it costs time linear in the graphs, and a fixed time for each tensor:
    elements are neither copied nor hashed.
    """

    def __init__(
        self, program: ExportedProgram, earlier: Snapshot | None = None
    ) -> None:
        """Record the nodes, recorded values, subgraphs and tensors of ``program``.

        ``earlier``: a snapshot with states of the same tensors, which are taken over.
        """
        self._program = program
        self._graph = _Nodes(program.graph)
        self._values = [(n, n.meta.get("val")) for n in program.graph.nodes]
        modules = program.graph_module.named_modules()
        self._subgraphs = [
            (name, m, _Nodes(m.graph))
            for name, m in modules
            if name and isinstance(m, GraphModule)
        ]
        self._tensors = _tensors(program)
        # id of a tensor -> its state
        known: dict[int, State] = earlier._states if earlier else {}
        self._states: dict[int, State] = {
            id(t): known.get(id(t)) or state_of(t) for t in self._tensors.values()
        }

    def is_rewritten(self) -> bool:
        """Return whether the graph has changed, or tensors were added or replaced.

        Writes to the elements of tensors do not count.
        """
        now = _tensors(self._program)
        same_tensors = now.keys() == self._tensors.keys() and all(
            now[name] is t for name, t in self._tensors.items()
        )
        return not same_tensors or _Nodes(self._program.graph) != self._graph

    def put_values_back(self) -> Node | None:
        """Restore the recorded value of each node.

        Returns the first node with a value of another type, or None. A new value of the
        same type is no change: torch's passes may compute values again when they only
        look at a graph.
        """
        changed = None
        for node, val in self._values:
            now = node.meta.get("val")
            if now is not val:
                if changed is None and _type_of(now) != _type_of(val):
                    changed = node
                node.meta["val"] = val
        return changed

    def edited_subgraphs(self) -> list[str]:
        """Return the names of the subgraphs that have changed."""
        return [
            name
            for name, module, before in self._subgraphs
            if _Nodes(module.graph) != before
        ]

    def written_tensors(self) -> list[str]:
        """Return the names of the tensors that were written since the snapshot."""
        return [
            name
            for name, t in self._tensors.items()
            if is_written(t, self._states[id(t)])
        ]


def _type_of(val: Any) -> Any:
    """Return the type of a recorded value, for comparisons.

    Symbolic sizes count as equal, because their names change.
    """
    if isinstance(val, (list, tuple)):
        return [_type_of(v) for v in val]
    if not isinstance(val, torch.Tensor):
        return type(val)
    return val.dtype, [size if isinstance(size, int) else None for size in val.shape]


def _tensors(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """Return the parameters, buffers and constants of a program, by name."""
    items = [*program.state_dict.items(), *program.constants.items()]
    return {name: t for name, t in items if isinstance(t, torch.Tensor)}


class _Nodes:
    """The nodes of a graph, their targets and their arguments, for a quick comparison."""

    def __init__(self, graph: Graph) -> None:
        """Record the nodes of ``graph`` in order, with targets and arguments."""
        nodes = list(graph.nodes)
        # the attributes by identity: another object under the same name is a change
        fetched = [
            id(getattr(n.graph.owning_module, str(n.target), None))
            for n in nodes
            if n.op == "get_attr"
        ]
        self.calls = (nodes, [(n.op, n.target) for n in nodes], fetched)
        self.arguments = [n.args for n in nodes], [n.kwargs for n in nodes]

    def __eq__(self, other: object) -> bool:
        """Return whether nodes, targets and arguments are the same."""
        if not isinstance(other, _Nodes) or self.calls != other.calls:
            return False
        pairs = zip(self.arguments, other.arguments, strict=True)
        # identities first: nearly all arguments are the same objects, and comparing
        # their contents takes much longer
        return all(
            all(map(is_, before, now)) or same_arguments(before, now)
            for before, now in pairs
        )
