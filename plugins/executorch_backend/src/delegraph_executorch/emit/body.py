"""Emitting the nodes of a graph: a method's own, or that of a branch or of the body of
a loop.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from delegraph.errors import Unsupported
from delegraph_programs import ConstantValues, source_of
from torch.fx import GraphModule, Node

from ..memory.storage import Place
from .assembler import Assembler
from .complex_formulas import MAKERS
from .context import Context, Delegates
from .in_place import InPlace
from .sizes import Ranges, upper_bounds
from .values import Computed, TensorValue, constant_tensor, planned_tensor, scalar_value

Item = Computed | int | float | bool | str | None
"""What stands for a value: a tensor, a number that is computed, or a constant."""
Result = Item | list[Item]
_NUMBERS: dict[type, type] = {
    torch.SymInt: int,
    torch.SymFloat: float,
    torch.SymBool: bool,
}


class Body:
    """The nodes of one graph on their way to instructions; ``of`` says what a node
    became.

    ``decomposing`` are operators that this is a part of the decomposition of, in which
    they must not come again. ``targets`` are results that others wait for: what a node
    computes goes there, not into memory of its own. ``origins``: a tensor that was
    copied to the host, and the device that it comes from -> the tensor there.
    ``folded``: what calls return that need nothing but constants, and that no kernel
    computes; all bodies of a method share it. Emission that adds to it has left
    instructions that nobody needs, so the method is emitted again. ``inputs_on_device``
    and ``results_on_device``: inputs that callers bring in the memory of the device
    that takes them, and results that stay on the device that computes them.
    ``in_place``: calls that write into a buffer.
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
        self.of: dict[Node, Result] = {}
        self.decomposing: frozenset[Any] = frozenset()
        self.targets: dict[tuple[Node, int], Computed] = {}
        self.origins: dict[tuple[TensorValue, Place], TensorValue] = {}
        self.folded: dict[Node, Result] = {}
        self.inputs_on_device: frozenset[TensorValue] = frozenset()
        self.results_on_device: frozenset[Node] = frozenset()
        self.in_place = InPlace()

    def nested(
        self, module: GraphModule, inputs: Sequence[Item], name: str = ""
    ) -> Body:
        """The body of a subgraph, the attribute ``name`` of this one, with its
        placeholders bound.
        """
        made = Body(
            module,
            self.assembler,
            self.delegates,
            self.context,
            self.ranges,
            f"{self.path}{name}.",
        )
        made.decomposing = self.decomposing
        made.folded = self.folded
        made.of.update(
            zip(module.graph.find_nodes(op="placeholder"), inputs, strict=True)
        )
        return made

    def emit(self) -> None:
        """Append the instructions of all nodes but the output, and but those that only
        folded calls need.
        """
        unneeded = self._unneeded()
        for node in self.module.graph.nodes:
            if node.op not in ("placeholder", "output") and node not in unneeded:
                self.assembler.handle = node.meta.get(
                    "debug_handle", self.assembler.handle
                )
                self.of[node] = (
                    self.folded[node]
                    if node in self.folded
                    else self._emit_or_fold(node)
                )

    @property
    def results(self) -> list[Any]:
        """The output's arguments."""
        returned = self.module.graph.output_node().args[0]
        return list(returned) if isinstance(returned, (tuple, list)) else [returned]

    def item(self, argument: Any) -> Item:
        """What an argument that is no list became."""
        if not isinstance(argument, Node):
            return argument  # type: ignore[no-any-return]
        found = self.of[argument]
        assert not isinstance(found, list), (
            f"{argument.name} is used as one value and is several"
        )
        return found

    def _emit_node(self, node: Node) -> Result:
        if node.op == "get_attr":
            return self._attribute(node)
        if node.target is operator.getitem:
            return self._element(node)
        emit = self.context.emitter_of(node)
        if emit is None:
            raise unsupported(
                node, f"{node.target} is no operator that a program file can hold"
            )
        return emit(self, node)  # type: ignore[no-any-return]

    def _emit_or_fold(self, node: Node) -> Result:
        """A call that cannot be emitted is a constant of the file if it needs nothing
        but constants.

        However large it is: a larger file is better than none. The same holds for calls
        that make complex numbers, which no kernel does directly.
        """
        if node.target in MAKERS and (folded := self._fold(node)) is not None:
            return folded
        try:
            return self._emit_node(node)
        except Unsupported:
            folded = self._fold(node)
            if folded is None:
                raise
            return folded

    def _fold(self, node: Node) -> Result | None:
        """What a call of constants returns, as constants of the file; None if it needs
        anything else.
        """
        found = ConstantValues(self._constant, largest=None).results(node)
        if found is None or not _is_as_recorded(found, node.meta["val"]):
            return None
        several = isinstance(found, (tuple, list))
        items: list[Item] = [
            constant_tensor(v.contiguous()) for v in (found if several else [found])
        ]
        self.folded[node] = items if several else items[0]
        return self.folded[node]

    def _constant(self, node: Node) -> torch.Tensor | None:
        """The content of a placeholder or an attribute, unless it is in a data file,
        which may change.
        """
        item = self.of.get(node)
        return (
            item.constant if isinstance(item, TensorValue) and not item.file else None
        )

    def _unneeded(self) -> set[Node]:
        """Calls that nobody but folded calls uses; those are pure, since folded calls
        are.
        """
        unneeded: set[Node] = set()
        for node in reversed(self.module.graph.nodes) if self.folded else ():
            if node.users and all(
                u in unneeded or u in self.folded for u in node.users
            ):
                unneeded.add(node)
        return unneeded.difference(self.folded)

    def _attribute(self, node: Node) -> Result:
        attribute = getattr(self.module, str(node.target))
        return (
            constant_tensor(attribute) if isinstance(attribute, torch.Tensor) else None
        )

    def _element(self, node: Node) -> Result:
        source, index = node.args
        assert isinstance(source, Node) and isinstance(index, int)
        several = self.of[source]
        assert isinstance(several, list), f"{source.name} has no elements"
        return several[index]

    def subgraph(self, argument: Any, inputs: Sequence[Item]) -> Body:
        """The body of the module that a ``get_attr`` argument names."""
        return self.nested(
            getattr(self.module, argument.target), inputs, argument.target
        )

    def new_results(self, node: Node) -> list[Item]:
        """A value for each result of a node, by what it is in the program."""
        val = node.meta["val"]
        listed = val if isinstance(val, (tuple, list)) else [val]
        return [
            self.targets.get((node, k)) or self.new_value(v, node)
            for k, v in enumerate(listed)
        ]

    def new_value(self, val: Any, node: Node) -> Item:
        """A new value for what ``val`` describes; results that are not there are None."""
        if isinstance(val, torch.Tensor):
            self._check_dense(val, node)
            sizes, varies = upper_bounds(val.shape, self.ranges, node)
            made = planned_tensor(val.dtype, sizes, varies)
            made.storage.memory_id = self.context.memory_of(node)
            return made
        return (
            scalar_value(_NUMBERS.get(type(val), type(val)))
            if val is not None
            else None
        )

    def _check_dense(self, val: torch.Tensor, node: Node) -> None:
        if val.layout is not torch.strided:
            raise unsupported(
                node,
                f"{node.name} is a tensor of the layout {val.layout}; a program file"
                " holds dense ones",
            )

    def position(self, item: Item) -> int:
        """The position of a value in the file."""
        values = self.assembler.values
        return (
            values.position(item)
            if isinstance(item, Computed)
            else values.constant(item)
        )

    def tensor(self, argument: Any) -> TensorValue:
        """What an argument became that is a tensor."""
        item = self.item(argument)
        assert isinstance(item, TensorValue), f"{argument} is no tensor"
        return item


def _is_as_recorded(found: Any, val: Any) -> bool:
    """Whether results are the tensors that export recorded: shapes and element types."""
    both = [list(v) if isinstance(v, (tuple, list)) else [v] for v in (found, val)]
    if len(both[0]) != len(both[1]) or not all(
        isinstance(v, torch.Tensor) for side in both for v in side
    ):
        return False
    return all(
        f.shape == v.shape and f.dtype == v.dtype for f, v in zip(*both, strict=True)
    )


def unsupported(node: Node, text: str, hint: str | None = None) -> Unsupported:
    """The error for a node that a program file cannot hold."""
    return Unsupported("unsupported", text, node, source_of(node), hint)
