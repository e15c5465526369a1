"""The values of calls on constants alone: what follows from a program itself, whatever it is called with."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

from ..exported_program import constant_placeholders, constant_tensor, placeholders
from ..io.weights import why_no_bytes

LARGEST = 16 * 2**20
"""Bytes of one value that is computed, and of each on the way to it."""
aten = torch.ops.aten
_BY_SHAPE = frozenset(
    {aten.zeros_like.default, aten.ones_like.default, aten.full_like.default, aten.new_zeros.default}
    | {aten.new_ones.default, aten.new_full.default}
)
"""Operators that read the shape of their first operand, and none of its elements."""


def constant_calls(program: ExportedProgram) -> set[Node]:
    """Calls whose results follow from the program alone: pure, the same every time, on the CPU, of known size."""
    given, calls = constant_placeholders(program), set[Node]()
    for node in program.graph.nodes:
        if (
            node.op == "call_function"
            and all(i in given or i in calls for i in elements_read(node))
            and _is_repeatable(node)
        ):
            calls.add(node)
    return calls


def elements_read(node: Node) -> list[Node]:
    """The operands whose elements a call reads."""
    return node.all_input_nodes[1:] if node.target in _BY_SHAPE else node.all_input_nodes


def ancestors(*nodes: Node, known: Collection[Node] = ()) -> set[Node]:
    """``nodes`` and everything that they are computed from, as far as it is not ``known``."""
    needed: set[Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in needed and node not in known:
            needed.add(node)
            waiting += elements_read(node)
    return needed


class ConstantValues:
    """The values of constant calls of a program, each computed once, when it is asked for, and kept in ``by_node``."""

    def __init__(self, program: ExportedProgram) -> None:
        self._program, self._specs = program, dict(placeholders(program))
        self._given = constant_placeholders(program)
        self.by_node: dict[Node, Any] = {}

    def of(self, node: Node) -> torch.Tensor | None:
        """The value of a constant or a constant call; None for others, and where weights are fake."""
        needed = self._missing(node)
        if not all(n in self._given if n.op == "placeholder" else _is_repeatable(n) for n in needed):
            return None
        try:
            with torch.no_grad():
                for each in needed:
                    self.by_node[each] = self._compute(each)
        except (RuntimeError, ValueError, IndexError, TypeError):  # it raises the same when the program runs
            return None
        value: torch.Tensor = self.by_node[node]
        expected = node.meta["val"]
        return value if value.shape == expected.shape and value.dtype is expected.dtype else None

    def _missing(self, node: Node) -> list[Node]:
        """The calls and placeholders that ``node`` needs and that are not computed yet, then itself."""
        return sorted(ancestors(node, known=self.by_node))

    def _compute(self, node: Node) -> Any:
        if node.op == "placeholder":
            tensor = constant_tensor(self._program, self._specs[node])
            if isinstance(tensor, FakeTensor) or why_no_bytes(tensor):
                raise ValueError(f"the elements of {node.name} are not there")
            return tensor.detach()
        shaped: dict[Any, Any] = {}
        for val in _shapes_read(node):
            shaped[node.args[0]] = torch.empty_strided(val.shape, val.stride(), dtype=val.dtype)
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: shaped.get(n, self.by_node.get(n)))
        return node.target(*args, **kwargs)  # type: ignore[operator]


def _is_repeatable(node: Node) -> bool:
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return True
    op: Any = node.target
    if not isinstance(op, OpOverload) or op.namespace != "aten" or op._schema.is_mutable or "empty" in op._schema.name:
        return False
    if torch.Tag.nondeterministic_seeded in op.tags or node.is_impure():
        return False
    return all(_is_storable(val) for val in (*pytree.tree_leaves(node.meta.get("val")), *_shapes_read(node)))


def _shapes_read(node: Node) -> Iterator[Any]:
    if node.target in _BY_SHAPE:
        yield node.args[0].meta["val"]  # type: ignore[union-attr]


def _is_storable(val: Any) -> bool:
    """A plain tensor on the CPU whose size is known, and is not too large."""
    if not isinstance(val, torch.Tensor) or val.layout is not torch.strided or val.device.type != "cpu":
        return False
    return all(type(size) is int for size in val.shape) and val.numel() * val.element_size() <= LARGEST
