"""What a plugin was given, to see afterwards what it changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from ...io.weights import state_of
from ..graph_equality import same_arguments

Row = tuple[Any, ...]


class Snapshot:
    """The graph of a program, the bodies of its calls and its tensors, as they are when this is made.

    Takes time linear in the graphs, and a fixed time a tensor: elements are neither copied nor hashed.
    """

    def __init__(self, program: ExportedProgram) -> None:
        self._program, self._graph = program, _rows(program.graph)
        self._bodies = [(name, body, _rows(body.graph)) for name, body in _bodies(program.graph_module, set())]
        self._tensors = _tensors(program)
        self._states = {name: state_of(t) for name, t in self._tensors.items()}

    def is_rewritten(self) -> bool:
        """Whether the program's own graph, or its table of tensors, is another; literal arguments count."""
        now = _tensors(self._program)
        kept = now.keys() == self._tensors.keys() and all(now[name] is t for name, t in self._tensors.items())
        return not kept or not _unchanged(self._program.graph, self._graph)

    def edited_bodies(self) -> list[str]:
        """The bodies whose graphs are others: of branches and loops, which others share."""
        return [name for name, body, before in self._bodies if not _unchanged(body.graph, before)]

    def written_tensors(self) -> list[str]:
        """The tensors that were there and were written since."""
        return [name for name, t in self._tensors.items() if state_of(t) != self._states[name]]


def _tensors(program: ExportedProgram) -> dict[str, torch.Tensor]:
    named = [*program.state_dict.items(), *program.constants.items()]
    return {name: t for name, t in named if isinstance(t, torch.Tensor)}


def _bodies(module: GraphModule, known: set[GraphModule], prefix: str = "") -> Iterator[tuple[str, GraphModule]]:
    """The graph modules that ``module`` fetches, and those inside of them, each once."""
    for name in (str(n.target) for n in module.graph.nodes if n.op == "get_attr"):
        body = getattr(module, name, None)
        if isinstance(body, GraphModule) and body not in known:
            known.add(body)
            yield prefix + name, body
            yield from _bodies(body, known, f"{prefix}{name}.")


def _rows(graph: Graph) -> list[Row]:
    return [(n, n.op, n.target, _fetched(n), n.args, n.kwargs) for n in graph.nodes]


def _fetched(node: Node) -> Any:
    """What a ``get_attr`` fetches: another object under the same name is another program."""
    return id(getattr(node.graph.owning_module, str(node.target), None)) if node.op == "get_attr" else None


def _unchanged(graph: Graph, before: list[Row]) -> bool:
    now = _rows(graph)
    return len(now) == len(before) and all(map(_same, now, before))


def _same(now: Row, before: Row) -> bool:
    untouched = now[4] is before[4] and now[5] is before[5]
    return now[:4] == before[:4] and (untouched or same_arguments(now[4:], before[4:]))
