"""Gives each convolution, linear layer and batch norm constants of its own, before
XNNPACK's passes see them.

ExecuTorch's passes for XNNPACK compute new constants, and name them after those of a
layer. Two layers that share a weight would get one of the two new constants, and so
would two weights whose names differ in a dot alone, and all batch norms without a
weight. The blobs keep constants by their contents, so that copies cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from delegraph_programs.exported_program import CONSTANT_KINDS
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    TensorArgument,
)
from torch.fx import Node

_NORM = "aten._native_batch_norm_legit_no_training.default"
_LAYERS = {
    "aten.convolution.default": (1, 2),
    "aten.linear.default": (1, 2),
    "aten.addmm.default": (2, 0),
    "aten.mm.default": (1,),
    _NORM: (1, 2),
}
"""Operator -> the positions of the constants after which passes name new ones."""
_WEIGHT = 1
_BIAS = 2
_VARIANCE = 4
"""Positions among the arguments of a batch norm."""


def separate_constants(edge: ExportedProgram) -> ExportedProgram:
    """Let no two layers of ``edge``, a partition in edge dialect, share a constant;
    changes and returns it.
    """
    calls = [node for node in edge.graph.nodes if _name(node) in _LAYERS]
    if not any(_name(node) in (_NORM, "aten.convolution.default") for node in calls):
        # the passes only compute constants of these, and of what comes before a batch
        # norm
        return edge
    constants = _Constants(edge)
    for node in calls:
        if _name(node) == _NORM:
            _add_missing(node, constants)
        for position in _LAYERS[_name(node)]:
            operand: Any = node.args[position] if position < len(node.args) else None
            if not isinstance(operand, Node):
                continue
            if operand.op == "call_function" and _name(operand).split(".")[
                1
            ].startswith("dequantize"):
                _own_dequantize(node, operand, constants)
            elif constants.has(operand) and not constants.claim(operand):
                node.replace_input_with(operand, constants.copy_of(operand))
    constants.finish()
    return edge


def _own_dequantize(layer: Node, dequantize: Node, constants: _Constants) -> None:
    """Let ``layer`` have the dequantize of its weight for itself, and that have the
    integers for itself.
    """
    integers: Any = dequantize.args[0]
    if not constants.has(integers) or constants.claim(integers):
        return
    graph = layer.graph
    with graph.inserting_before(layer):
        twin = graph.node_copy(dequantize)
    twin.meta = dict(dequantize.meta)
    twin.replace_input_with(integers, constants.copy_of(integers))
    layer.replace_input_with(dequantize, twin)
    if not dequantize.users:
        graph.erase_node(dequantize)


def _add_missing(norm: Node, constants: _Constants) -> None:
    """Give a batch norm without weight or bias ones and zeros."""
    variance: Any = norm.args[_VARIANCE]
    if not constants.has(variance):
        return
    for position, fill in ((_WEIGHT, torch.ones_like), (_BIAS, torch.zeros_like)):
        if norm.args[position] is None:
            norm.update_arg(
                position, constants.add(variance, fill(constants.tensor(variance)))
            )


class _Constants:
    """The constants of a program, and which of them a layer has claimed."""

    def __init__(self, edge: ExportedProgram) -> None:
        self._edge = edge
        self._specs = list(edge.graph_signature.input_specs)
        self._spec_of = {
            spec.arg.name: spec for spec in self._specs if spec.kind in CONSTANT_KINDS
        }
        self._claimed: set[str] = set()
        self._new_names = self._free_names()

    def has(self, node: Node) -> bool:
        """Whether ``node`` is the placeholder of a constant."""
        return node.op == "placeholder" and node.name in self._spec_of

    def tensor(self, node: Node) -> torch.Tensor:
        """The tensor of a constant."""
        target = str(self._spec_of[node.name].target)
        tensors = (
            self._edge.state_dict
            if target in self._edge.state_dict
            else self._edge.constants
        )
        tensor: torch.Tensor = tensors[target]
        return tensor

    def claim(self, node: Node) -> bool:
        """Whether a constant was free for a layer to claim: passes name new ones by its
        target, without the dots.
        """
        name = str(self._spec_of[node.name].target).replace(".", "_")
        is_free = name not in self._claimed
        self._claimed.add(name)
        return is_free

    def copy_of(self, node: Node) -> Node:
        """A placeholder for the same tensor under a new name."""
        return self.add(node, self.tensor(node))

    def add(self, beside: Node, tensor: torch.Tensor) -> Node:
        """A placeholder for ``tensor``, which is like that of the constant ``beside``."""
        spec = self._spec_of[beside.name]
        name = next(self._new_names)
        with beside.graph.inserting_before(beside):
            node = beside.graph.placeholder(name)
        node.meta = dict(beside.meta)
        new = InputSpec(spec.kind, TensorArgument(node.name), name, spec.persistent)
        self._specs.insert(self._specs.index(spec), new)
        self._spec_of[node.name] = new
        in_state = spec.kind is InputKind.PARAMETER or (
            spec.kind is InputKind.BUFFER and spec.persistent
        )
        tensors = self._edge.state_dict if in_state else self._edge.constants
        is_parameter = spec.kind is InputKind.PARAMETER and not isinstance(
            tensor, torch.nn.Parameter
        )
        tensors[name] = (
            torch.nn.Parameter(tensor, requires_grad=False) if is_parameter else tensor
        )
        return node

    def finish(self) -> None:
        """Give the program a signature with the new constants."""
        outputs = self._edge.graph_signature.output_specs
        self._edge._graph_signature = ExportGraphSignature(self._specs, outputs)

    def _free_names(self) -> Iterator[str]:
        taken = {str(spec.target) for spec in self._specs} | {
            node.name for node in self._edge.graph.nodes
        }
        number = 0
        while True:
            number += 1
            if (name := f"own_constant_{number}") not in taken:
                yield name


def _name(node: Node) -> str:
    """The name of a call's operator in edge dialect, such as
    ``aten.convolution.default``; "" for anything else.
    """
    return getattr(node.target, "__name__", "") if node.op == "call_function" else ""
