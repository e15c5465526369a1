"""Parts of a program that is in edge dialect already: what ExecuTorch's partitioner
saw, its ``preprocess`` gets.

ExecuTorch's conversion to edge dialect traces a program anew, several times. Its own
lowering converts a program once, and so do we: a partition is cut out of what was
converted for the partitioner.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from delegraph_programs import (
    argument_of,
    copy_node,
    output_values,
    placeholder_of,
    placeholders,
)
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind
from torch.fx import Graph, Node

from .edge import calls_of, finished, pieces_of

WHOLE = "local:delegraph_executorch_whole"
"""Key of a tagged call's meta: the ``Converted`` program that it is a part of."""


class Converted:
    """A program in edge dialect beside the one that it was made of, whose calls are
    known by name and recorded value.

    A call that was renamed or changed since, such as by a decomposition, is then not
    taken for another one.
    """

    def __init__(self, program: ExportedProgram, edge: ExportedProgram) -> None:
        self.edge = edge
        self._pieces = pieces_of(edge)
        self._dropped = {n.name for n in calls_of(program)} - self._pieces.keys()
        self._position = {node: k for k, node in enumerate(edge.graph.nodes)}
        self._specs = dict(placeholders(edge))
        self._given = {node.name: node for node in self._specs}
        self._vals = {n.name: n.meta.get("val") for n in program.graph.nodes}

    def part(self, program: ExportedProgram) -> ExportedProgram | None:
        """A partition's program in edge dialect; None if it cannot be cut out, so that
        it has to be converted.
        """
        written = any(
            s.kind is not OutputKind.USER_OUTPUT
            for s in program.graph_signature.output_specs
        )
        returned = {v.name for v in output_values(program) if isinstance(v, Node)}
        if (
            written
            or returned & self._dropped
            or not all(map(self._knows, calls_of(program)))
        ):
            return None
        graph = Graph(owning_module=self.edge.graph_module)
        pieces = {
            piece for n in calls_of(program) for piece in self._pieces.get(n.name, ())
        }
        needed = dict.fromkeys(
            i for piece in pieces for i in piece.all_input_nodes if i not in pieces
        )
        borders = self._borders(program, needed)
        if borders is None:
            return None
        lifted = sorted(
            (i for i in needed if i not in borders), key=self._position.__getitem__
        )
        env: dict[Node, Node] = {}
        inputs: list[InputSpec] = []
        given = [
            value
            for value, (_, spec) in zip(borders, placeholders(program), strict=True)
            if _is_given(spec)
        ]
        for value in (*lifted, *borders):
            env[value] = new = placeholder_of(graph, value)
            new.meta.pop("delegation_tag", None)
            # a constant that the host hands over with each call is an input of the part
            spec = (
                InputSpec(InputKind.USER_INPUT, argument_of(new), None)
                if value in given
                else self._specs[value]
            )
            inputs.append(
                InputSpec(spec.kind, argument_of(new), spec.target, spec.persistent)
            )
        for piece in sorted(pieces, key=self._position.__getitem__):
            env[piece] = new = copy_node(graph, piece, env.__getitem__)
            new.meta.pop("delegation_tag", None)
        results = [
            env[self._pieces[v.name][-1]] if isinstance(v, Node) else v
            for v in output_values(program)
        ]
        part = finished(
            graph, inputs, program.graph_signature.output_specs, results, self.edge
        )
        part._verifiers = self.edge._verifiers
        return part

    def _knows(self, node: Node) -> bool:
        is_call = node.op != "placeholder"
        there = node.name in (self._pieces if is_call else self._given) or (
            is_call and node.name in self._dropped
        )
        return there and self._vals[node.name] is node.meta.get("val")

    def _borders(
        self, program: ExportedProgram, needed: Collection[Node]
    ) -> list[Node] | None:
        """What stands in edge dialect for each placeholder of ``program``; None if that
        is not certain.

        A call whose parts nobody took is whole again by now, and so one value may have
        another name than it had.
        """
        found: dict[Node, Node | None] = {}
        for node, spec in placeholders(program):
            computed = (
                self._pieces.get(node.name, [None])[-1]
                if spec.kind is InputKind.USER_INPUT
                else None
            )
            value = self._given.get(node.name, computed)
            found[node] = (
                value if self._vals.get(node.name) is node.meta.get("val") else None
            )
        unknown = [node for node, value in found.items() if value is None]
        computed_elsewhere = [
            i for i in needed if i not in found.values() and self._is_input(i)
        ]
        if len(unknown) == 1 == len(computed_elsewhere) and _alike(
            unknown[0], computed_elsewhere[0]
        ):
            found[unknown[0]] = computed_elsewhere[0]
        elif unknown or computed_elsewhere:
            return None
        return [value for value in found.values() if value is not None]

    def _is_input(self, value: Node) -> bool:
        """Whether a part that needs ``value`` gets it with each call."""
        return (
            value not in self._specs or self._specs[value].kind is InputKind.USER_INPUT
        )


def _is_given(spec: InputSpec) -> bool:
    return spec.kind is InputKind.USER_INPUT


def _alike(one: Node, other: Node) -> bool:
    a = one.meta.get("val")
    b = other.meta.get("val")
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    return (a.dtype, a.shape) == (b.dtype, b.shape)


def remember(
    program: ExportedProgram, edge: ExportedProgram, tagged: Sequence[Node]
) -> None:
    """Leave with each call that was tagged what ``cut`` needs."""
    converted = Converted(program, edge)
    for node in tagged:
        node.meta[WHOLE] = converted


def cut(program: ExportedProgram) -> ExportedProgram | None:
    """A partition's program in edge dialect, if it was converted as a part of a whole."""
    known: list[Any] = [n.meta.pop(WHOLE, None) for n in calls_of(program)]
    first = known[0] if known else None
    if first is None or any(one is not first for one in known):
        return None
    part: ExportedProgram | None = first.part(program)
    return part
