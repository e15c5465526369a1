"""Cut a partition out of the program that was converted for the partitioner.

ExecuTorch's conversion to edge dialect traces a program several times. A partition for
``preprocess`` is therefore not converted again, but cut out of the converted program.
The calls of edge dialect that a call became are its pieces.
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

from .edge import calls_of, finish_program, pieces_of

CONVERTED = "local:delegraph_executorch_converted"
"""Key of a tagged call's meta: the ``Converted`` program that contains it."""


class Converted:
    """A program that was converted, and ``edge``, its form in edge dialect.

    Calls are identified by name and recorded value. So a call that was renamed or
    changed later, such as by a decomposition, is not mistaken for another one.

    ``_pieces``: name of a call -> the calls of ``edge`` that it became. ``_dropped``:
    names of calls without pieces. ``_recorded``: name of a node -> its ``val``.
    """

    def __init__(self, program: ExportedProgram, edge: ExportedProgram) -> None:
        self.edge = edge
        self._pieces = pieces_of(edge)
        self._dropped = {n.name for n in calls_of(program)} - self._pieces.keys()
        self._position = {node: k for k, node in enumerate(edge.graph.nodes)}
        self._specs = dict(placeholders(edge))
        self._placeholders = {node.name: node for node in self._specs}
        self._recorded = {n.name: n.meta.get("val") for n in program.graph.nodes}

    def part(self, program: ExportedProgram) -> ExportedProgram | None:
        """Return a partition's program in edge dialect, cut out of ``edge``.

        ``program`` is the partition's program in core ATen. Return None if the partition
        writes a tensor, or if ``edge`` lacks one of its values.
        """
        calls = calls_of(program)
        output_specs = program.graph_signature.output_specs
        if any(spec.kind is not OutputKind.USER_OUTPUT for spec in output_specs):
            return None
        returned = {v.name for v in output_values(program) if isinstance(v, Node)}
        if returned & self._dropped or not all(map(self._is_unchanged, calls)):
            return None
        pieces: list[Node] = []
        for node in calls:
            pieces += self._pieces.get(node.name, ())
        pieces.sort(key=self._position.__getitem__)
        needed = _inputs_of(pieces)
        outer = self._edge_values_of_placeholders(program, needed)
        if outer is None:
            return None
        graph = Graph(owning_module=self.edge.graph_module)
        copies: dict[Node, Node] = {}
        inputs: list[InputSpec] = []
        # Constants that the conversion made have no placeholder in ``program``.
        new_constants = [value for value in needed if value not in outer]
        new_constants.sort(key=self._position.__getitem__)
        for value in new_constants:
            copies[value] = placeholder_of(graph, value)
            inputs.append(self._constant_spec(value, copies[value]))
        for value, (_, spec) in zip(outer, placeholders(program), strict=True):
            copies[value] = placeholder_of(graph, value)
            if spec.kind is InputKind.USER_INPUT:
                argument = argument_of(copies[value])
                inputs.append(InputSpec(InputKind.USER_INPUT, argument, None))
            else:
                inputs.append(self._constant_spec(value, copies[value]))
        for piece in pieces:
            copies[piece] = copy_node(graph, piece, copies.__getitem__)
        for copy in copies.values():
            copy.meta.pop("delegation_tag", None)
        results: list[Any] = []
        for value in output_values(program):
            if isinstance(value, Node):
                # the last piece of a call computes its result
                results.append(copies[self._pieces[value.name][-1]])
            else:
                results.append(value)
        part = finish_program(graph, inputs, output_specs, results, self.edge)
        part._verifiers = self.edge._verifiers
        return part

    def _constant_spec(self, value: Node, copy: Node) -> InputSpec:
        """Return the input specification of ``copy``, a copy of the constant ``value``."""
        spec = self._specs[value]
        return InputSpec(spec.kind, argument_of(copy), spec.target, spec.persistent)

    def _is_unchanged(self, node: Node) -> bool:
        """Return whether a call is the same as when the program was converted."""
        is_known = node.name in self._pieces or node.name in self._dropped
        return is_known and self._recorded[node.name] is node.meta.get("val")

    def _edge_values_of_placeholders(
        self, program: ExportedProgram, needed: Collection[Node]
    ) -> list[Node] | None:
        """Return the node of ``edge`` for each placeholder of a partition's program.

        ``needed`` are the nodes of ``edge`` that the partition reads from outside. Since
        the conversion, lowering may have renamed one value. Then one placeholder and one
        input in ``needed`` are left over, and belong together. Return None if others are
        left over, or if these two differ in type.
        """
        found: dict[Node, Node | None] = {}
        for node, spec in placeholders(program):
            value = self._placeholders.get(node.name)
            if value is None and spec.kind is InputKind.USER_INPUT:
                # The placeholder is the result of a call outside of the partition. The
                # last piece of that call computes the result.
                value = self._pieces.get(node.name, [None])[-1]
            if self._recorded.get(node.name) is not node.meta.get("val"):
                value = None
            found[node] = value
        unknown = [node for node, value in found.items() if value is None]
        unmatched = [
            value
            for value in needed
            if value not in found.values() and self._is_input(value)
        ]
        if unknown or unmatched:
            if len(unknown) != 1 or len(unmatched) != 1:
                return None
            if not _has_same_type(unknown[0], unmatched[0]):
                return None
            found[unknown[0]] = unmatched[0]
        return [value for value in found.values() if value is not None]

    def _is_input(self, value: Node) -> bool:
        """Return whether ``value`` is an input or the result of a call, not a constant."""
        return (
            value not in self._specs or self._specs[value].kind is InputKind.USER_INPUT
        )


def _inputs_of(pieces: Sequence[Node]) -> dict[Node, None]:
    """Return the nodes that ``pieces`` read from outside, as an ordered set."""
    found: dict[Node, None] = {}
    for piece in pieces:
        found |= dict.fromkeys(piece.all_input_nodes)
    for piece in pieces:
        found.pop(piece, None)
    return found


def _has_same_type(one: Node, other: Node) -> bool:
    """Return whether both nodes are tensors of the same dtype and shape."""
    a = one.meta.get("val")
    b = other.meta.get("val")
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    return a.dtype == b.dtype and a.shape == b.shape


def remember_conversion(
    program: ExportedProgram, edge: ExportedProgram, tagged: Sequence[Node]
) -> None:
    """Attach the converted program to each tagged call, for ``cut_partition``."""
    converted = Converted(program, edge)
    for node in tagged:
        node.meta[CONVERTED] = converted


def cut_partition(program: ExportedProgram) -> ExportedProgram | None:
    """Return a partition's program in edge dialect, if a converted program contains it."""
    found: list[Any] = [n.meta.pop(CONVERTED, None) for n in calls_of(program)]
    first = found[0] if found else None
    if first is None or any(converted is not first for converted in found):
        return None
    part: ExportedProgram | None = first.part(program)
    return part
