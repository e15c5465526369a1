"""Give each convolution, linear layer and batch norm constants of its own.

ExecuTorch's passes for XNNPACK compute new constants, and name each after the old one:
``layer.weight`` becomes ``layer_weight_...``. If two layers share a weight, both new
constants get one name, and one is lost. The same holds for names that differ only in a
dot, and for batch norms without a weight. So each layer gets constants with names of its
own. This costs nothing, since blobs store equal constants once.
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
    """Let no two layers of a partition in edge dialect share a constant's name.

    Changes ``edge`` and returns it.
    """
    calls = [node for node in edge.graph.nodes if _name(node) in _LAYERS]
    if not any(_name(node) in (_NORM, "aten.convolution.default") for node in calls):
        # Nothing to do: the passes compute constants only for convolutions, for batch
        # norms, and for layers before a batch norm.
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
            elif constants.has(operand):
                node.replace_input_with(operand, constants.claim(operand))
    constants.finish()
    return edge


def _separate_dequantize(layer: Node, dequantize: Node, constants: _Constants) -> None:
    """Give ``layer`` a dequantize of its own, if its integers belong to another layer."""
    integers: Any = dequantize.args[0]
    if not constants.has(integers):
        return
    own_integers = constants.claim(integers)
    if own_integers is integers:
        return
    graph = layer.graph
    with graph.inserting_before(layer):
        copy = graph.node_copy(dequantize)
    copy.meta = dict(dequantize.meta)
    copy.replace_input_with(integers, own_integers)
    layer.replace_input_with(dequantize, copy)
    if not dequantize.users:
        graph.erase_node(dequantize)


def _add_missing(norm: Node, constants: _Constants) -> None:
    """Add ones as a missing weight of a batch norm, and zeros as a missing bias."""
    variance: Any = norm.args[_VARIANCE]
    if not constants.has(variance):
        return
    for position, fill in ((_WEIGHT, torch.ones_like), (_BIAS, torch.zeros_like)):
        if norm.args[position] is None:
            tensor = fill(constants.tensor(variance))
            norm.update_arg(position, constants.add(variance, tensor))


class _Constants:
    """The constants of a program, and the names that belong to a layer already."""

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
        if target in self._edge.state_dict:
            tensor: torch.Tensor = self._edge.state_dict[target]
        else:
            tensor = self._edge.constants[target]
        return tensor

    def claim(self, node: Node) -> Node:
        """Return the placeholder that a layer must use instead of ``node``.

        It is ``node`` for the first layer, and a copy with a new name for others.
        """
        # ExecuTorch's passes also replace dots when they name new constants.
        name = str(self._spec_of[node.name].target).replace(".", "_")
        if name in self._claimed:
            return self.add(node, self.tensor(node))
        self._claimed.add(name)
        return node

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
        # other constants are not in the state dict
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
    """Return the operator of a call, such as ``aten.convolution.default``.

    Return "" for other nodes.
    """
    if node.op != "call_function":
        return ""
    return getattr(node.target, "__name__", "")
