"""Give each convolution, linear layer and batch norm constants of its own.

ExecuTorch's passes for XNNPACK compute new constants and name them after a layer's
constants. Layers that share a weight would get only one of two new constants. The same
holds for names that differ only in a dot, and for batch norms without a weight. Copies
cost nothing, since blobs store equal constants once.
"""

from __future__ import annotations

import itertools
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
"""Operator -> the positions of the constants that passes name new ones after."""
_WEIGHT = 1
_BIAS = 2
_VARIANCE = 4
"""Positions in the arguments of a batch norm."""


def separate_constants(edge: ExportedProgram) -> ExportedProgram:
    """Let no two layers of a partition in edge dialect share a constant.

    Changes ``edge`` and returns it.
    """
    calls = [node for node in edge.graph.nodes if _name(node) in _LAYERS]
    if not any(_name(node) in (_NORM, "aten.convolution.default") for node in calls):
        # The passes compute constants only for these, and for layers before a batch
        # norm.
        return edge
    constants = _Constants(edge)
    for node in calls:
        if _name(node) == _NORM:
            _add_missing(node, constants)
        for position in _LAYERS[_name(node)]:
            operand: Any = node.args[position] if position < len(node.args) else None
            if not isinstance(operand, Node):
                continue
            if ".dequantize" in _name(operand):
                _separate_dequantize(node, operand, constants)
            elif constants.has(operand) and not constants.claim(operand):
                node.replace_input_with(operand, constants.add_copy(operand))
    constants.finish()
    return edge


def _separate_dequantize(layer: Node, dequantize: Node, constants: _Constants) -> None:
    """Give ``layer`` a dequantize of its own, with integers of its own."""
    integers: Any = dequantize.args[0]
    if not constants.has(integers) or constants.claim(integers):
        return
    graph = layer.graph
    with graph.inserting_before(layer):
        twin = graph.node_copy(dequantize)
    twin.meta = dict(dequantize.meta)
    twin.replace_input_with(integers, constants.add_copy(integers))
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
    """The constants of a program, and the names that layers have claimed."""

    def __init__(self, edge: ExportedProgram) -> None:
        self._edge = edge
        self._specs = list(edge.graph_signature.input_specs)
        self._spec_of = {
            spec.arg.name: spec for spec in self._specs if spec.kind in CONSTANT_KINDS
        }
        self._claimed: set[str] = set()
        self._new_names = self._free_names()

    def has(self, node: Node) -> bool:
        """Return whether ``node`` is the placeholder of a constant."""
        return node.op == "placeholder" and node.name in self._spec_of

    def tensor(self, node: Node) -> torch.Tensor:
        """Return the tensor of a constant."""
        target = str(self._spec_of[node.name].target)
        tensors = (
            self._edge.state_dict
            if target in self._edge.state_dict
            else self._edge.constants
        )
        tensor: torch.Tensor = tensors[target]
        return tensor

    def claim(self, node: Node) -> bool:
        """Claim the name of a constant for a layer; return False if another layer did.

        Passes name new constants after its target, without the dots.
        """
        name = str(self._spec_of[node.name].target).replace(".", "_")
        is_free = name not in self._claimed
        self._claimed.add(name)
        return is_free

    def add_copy(self, node: Node) -> Node:
        """Add a placeholder for the same tensor with a new name, and return it."""
        return self.add(node, self.tensor(node))

    def add(self, like: Node, tensor: torch.Tensor) -> Node:
        """Add a constant of the same kind as ``like``, and return its placeholder."""
        spec = self._spec_of[like.name]
        name = next(self._new_names)
        with like.graph.inserting_before(like):
            node = like.graph.placeholder(name)
        node.meta = dict(like.meta)
        new = InputSpec(spec.kind, TensorArgument(node.name), name, spec.persistent)
        self._specs.insert(self._specs.index(spec), new)
        self._spec_of[node.name] = new
        is_parameter = spec.kind is InputKind.PARAMETER
        is_persistent_buffer = spec.kind is InputKind.BUFFER and spec.persistent
        in_state = is_parameter or is_persistent_buffer
        tensors = self._edge.state_dict if in_state else self._edge.constants
        if is_parameter and not isinstance(tensor, torch.nn.Parameter):
            tensor = torch.nn.Parameter(tensor, requires_grad=False)
        tensors[name] = tensor
        return node

    def finish(self) -> None:
        """Give the program a signature that includes the new constants."""
        outputs = self._edge.graph_signature.output_specs
        self._edge._graph_signature = ExportGraphSignature(self._specs, outputs)

    def _free_names(self) -> Iterator[str]:
        """Yield names that neither a constant nor a node has."""
        taken = {str(spec.target) for spec in self._specs}
        taken |= {node.name for node in self._edge.graph.nodes}
        for number in itertools.count(1):
            name = f"own_constant_{number}"
            if name not in taken:
                yield name


def _name(node: Node) -> str:
    """Return the operator of a call, such as ``aten.convolution.default``; else ""."""
    return getattr(node.target, "__name__", "") if node.op == "call_function" else ""
