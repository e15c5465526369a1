"""Emit the nodes of a graph: a method, a branch, or the body of a loop.

To emit a node is to append the instructions that compute it, and to create its values.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from delegraph.errors import Unsupported
from delegraph_programs import ConstantValues, source_of
from torch.fx import GraphModule, Node

from ..memory.storage import DeviceId
from .assembler import Assembler
from .complex_formulas import MAKE_COMPLEX
from .context import Context, Delegates
from .in_place import InPlace
from .method_values import (
    Computed,
    TensorValue,
    constant_tensor,
    planned_tensor,
    scalar_value,
)
from .size_bounds import Ranges, upper_bounds

Item = Computed | int | float | bool | str | None
"""An emitted value: a tensor, a number that the program computes, or a constant."""
Result = Item | list[Item]
_NUMBERS: dict[type, type] = {
    torch.SymInt: int,
    torch.SymFloat: float,
    torch.SymBool: bool,
}


class GraphEmitter:
    """Emits the nodes of one graph as instructions.

    - ``path``: prefix of the names of delegates in this graph, such as "true_graph_0.".
    - ``emitted``: node -> its values.
    - ``decomposing``: operators that are being decomposed. Their decompositions must not
      contain them again.
    - ``preset_results``: (node, number of its output) -> the value that the node must
      write to. Branches of a ``cond`` write to the results of the ``cond``.
    - ``device_sources``: (host copy of a tensor, device) -> the tensor on the device.
    - ``folded``: node -> its value, if it is computed now and stored as a constant. All
      graphs of a method share it. A method that folds calls is emitted twice, so that
      the inputs of folded calls are left out.
    - ``inputs_on_device``, ``results_on_device``: inputs and results of the method that
      stay in device memory.
    - ``in_place``: calls that write to a buffer.
    """

    def __init__(
        self,
        module: GraphModule,
        assembler: Assembler,
        delegates: Delegates,
        context: Context,
        ranges: Ranges,
        path: str = "",
    ) -> None:
        self.module = module
        self.assembler = assembler
        self.delegates = delegates
        self.context = context
        self.ranges = ranges
        self.path = path
        self.emitted: dict[Node, Result] = {}
        self.decomposing: frozenset[Any] = frozenset()
        self.preset_results: dict[tuple[Node, int], Computed] = {}
        self.device_sources: dict[tuple[TensorValue, DeviceId], TensorValue] = {}
        self.folded: dict[Node, Result] = {}
        self.inputs_on_device: frozenset[TensorValue] = frozenset()
        self.results_on_device: frozenset[Node] = frozenset()
        self.in_place = InPlace()

    def nested_emitter(
        self, module: GraphModule, inputs: Sequence[Item], name: str = ""
    ) -> GraphEmitter:
        """Return an emitter for another graph of the same method.

        ``inputs`` are the values of its placeholders. ``name`` is its attribute name.
        """
        made = GraphEmitter(
            module,
            self.assembler,
            self.delegates,
            self.context,
            self.ranges,
            f"{self.path}{name}.",
        )
        made.decomposing = self.decomposing
        made.folded = self.folded
        made.emitted.update(
            zip(module.graph.find_nodes(op="placeholder"), inputs, strict=True)
        )
        return made

    def emit(self) -> None:
        """Append the instructions of all nodes, except the inputs of folded calls."""
        unneeded = self._nodes_for_folded_calls()
        for node in self.module.graph.nodes:
            if node.op in ("placeholder", "output") or node in unneeded:
                continue
            # nodes of a decomposition have no handle: they keep that of the whole
            handle = node.meta.get("debug_handle", self.assembler.handle)
            self.assembler.handle = handle
            if node in self.folded:
                self.emitted[node] = self.folded[node]
            else:
                self.emitted[node] = self._emit_or_fold(node)

    @property
    def output_arguments(self) -> list[Any]:
        """Return the nodes and constants that the graph returns."""
        return as_list(self.module.graph.output_node().args[0])

    def output_values(self) -> list[Item]:
        """Return the values that the emitted graph returns."""
        return [self.item(argument) for argument in self.output_arguments]

    def item(self, argument: Any) -> Item:
        """Return the value of an argument that is no list: a node or a constant."""
        if not isinstance(argument, Node):
            return argument  # type: ignore[no-any-return]
        found = self.emitted[argument]
        assert not isinstance(found, list), (
            f"{argument.name} is used as one value and is several"
        )
        return found

    def _emit_node(self, node: Node) -> Result:
        """Append the instructions of a node, and return its values."""
        if node.op == "get_attr":
            return self._attribute(node)
        if node.target is operator.getitem:
            return self._element(node)
        emit = self.context.emitter_of(node)
        if emit is None:
            raise unsupported(node, f"a program file cannot hold {node.target}")
        return emit(self, node)  # type: ignore[no-any-return]

    def _emit_or_fold(self, node: Node) -> Result:
        """Emit a node, or store its result as a constant if no kernel computes it.

        The size of the result does not matter: a larger file is better than none. Calls
        that make complex numbers are always folded, since no kernel computes them.
        """
        if node.target in MAKE_COMPLEX:
            folded = self._fold(node)
            if folded is not None:
                return folded
        try:
            return self._emit_node(node)
        except Unsupported:
            folded = self._fold(node)
            if folded is None:
                raise
            return folded

    def _fold(self, node: Node) -> Result | None:
        """Compute a call that has only constants as arguments; add it to ``folded``.

        Return None if an argument is no constant, or if the result does not have the
        shapes and types that export recorded.
        """
        found = ConstantValues(self._constant, largest=None).results(node)
        if found is None or not _is_as_recorded(found, node.meta["val"]):
            return None
        items: list[Item] = [constant_tensor(v.contiguous()) for v in as_list(found)]
        is_list = isinstance(found, (tuple, list))
        self.folded[node] = items if is_list else items[0]
        return self.folded[node]

    def _constant(self, node: Node) -> torch.Tensor | None:
        """Return the content of a placeholder or attribute, if it is constant.

        A tensor in a data file is not constant: users may replace the file.
        """
        item = self.emitted.get(node)
        if isinstance(item, TensorValue) and not item.file:
            return item.constant
        return None

    def _nodes_for_folded_calls(self) -> set[Node]:
        """Return the nodes that are read only to compute folded calls.

        Nothing needs their instructions. They have no side effects: folded calls are
        computed from constants by pure operators.
        """
        unneeded: set[Node] = set()
        if not self.folded:
            return unneeded
        # users come after a node, so their need is known
        for node in reversed(self.module.graph.nodes):
            is_needed = any(
                user not in unneeded and user not in self.folded for user in node.users
            )
            if node.users and not is_needed:
                unneeded.add(node)
        return unneeded.difference(self.folded)

    def _attribute(self, node: Node) -> Result:
        """Return the value of a ``get_attr`` node; None for a subgraph or delegate."""
        attribute = getattr(self.module, str(node.target))
        if isinstance(attribute, torch.Tensor):
            return constant_tensor(attribute)
        return None

    def _element(self, node: Node) -> Result:
        """Return the value of a ``getitem`` node."""
        source, index = node.args
        assert isinstance(source, Node) and isinstance(index, int)
        several = self.emitted[source]
        assert isinstance(several, list), f"{source.name} has no elements"
        return several[index]

    def subgraph_emitter(self, argument: Any, inputs: Sequence[Item]) -> GraphEmitter:
        """Return an emitter for the subgraph that a ``get_attr`` node reads.

        ``inputs`` are the values of the subgraph's placeholders.
        """
        name = argument.target
        return self.nested_emitter(getattr(self.module, name), inputs, name)

    def new_results(self, node: Node) -> list[Item]:
        """Return a value for each result of a node: the preset one, or a new one."""
        return [
            self.preset_results.get((node, k)) or self.new_value(v, node)
            for k, v in enumerate(as_list(node.meta["val"]))
        ]

    def new_value(self, val: Any, node: Node) -> Item:
        """Return a new value for a result of ``node``.

        ``val`` is the result as export recorded it: a fake tensor or a symbolic number.
        None stands for a result that the node does not compute.
        """
        if val is None:
            return None
        if not isinstance(val, torch.Tensor):
            return scalar_value(_NUMBERS.get(type(val), type(val)))
        self._check_dense(val, node)
        sizes, varies = upper_bounds(val.shape, self.ranges, node)
        made = planned_tensor(val.dtype, sizes, varies)
        made.storage.memory_id = self.context.memory_of(node)
        return made

    def _check_dense(self, val: torch.Tensor, node: Node) -> None:
        """Raise Unsupported for a tensor of another layout, such as a sparse one."""
        if val.layout is not torch.strided:
            text = (
                f"{node.name} has the layout {val.layout}; a program file holds dense"
                " tensors only"
            )
            raise unsupported(node, text, "call to_dense() in the model")

    def position(self, item: Item) -> int:
        """Return the position of a value in the method's table of values."""
        values = self.assembler.values
        if isinstance(item, Computed):
            return values.position(item)
        return values.constant(item)

    def tensor(self, argument: Any) -> TensorValue:
        """Return the value of an argument that is a tensor."""
        item = self.item(argument)
        assert isinstance(item, TensorValue), f"{argument} is no tensor"
        return item


def _is_as_recorded(found: Any, val: Any) -> bool:
    """Return whether results have the shapes and types that export recorded."""
    computed = as_list(found)
    recorded = as_list(val)
    if len(computed) != len(recorded):
        return False
    for one, other in zip(computed, recorded, strict=True):
        if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
            return False
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
    return True


class Replacement(NamedTuple):
    """A graph that computes a node's result, and the nodes that are its inputs."""

    module: GraphModule
    inputs: list[Node]


def as_list(value: Any) -> list[Any]:
    """Return the elements of a list or tuple; another value is the only element."""
    return list(value) if isinstance(value, (tuple, list)) else [value]


def unsupported(node: Node, text: str, hint: str | None = None) -> Unsupported:
    """Return the error for a node that a program file cannot hold."""
    return Unsupported("unsupported", text, node, source_of(node), hint)
