"""The values of calls on constants alone: what follows from a program itself, whatever it is called with."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

from ..exported_program import constant_placeholders, constant_tensor, placeholders
from ..io.weights import why_no_bytes
from .node_sets import reachable
from .schema import overloads

LARGEST = 16 * 2**20
"""Bytes of one value that is computed while lowering, and of each on the way to it."""
aten = torch.ops.aten
_BY_SHAPE = overloads(
    "zeros_like.default ones_like.default full_like.default new_zeros.default new_ones.default new_full.default"
)
"""Operators that read the shape of their first operand, and none of its elements."""


def constant_calls(program: ExportedProgram) -> set[Node]:
    """Calls whose results follow from the program alone: pure, the same every time, on the CPU, of known size."""
    given, calls = constant_placeholders(program), set[Node]()
    for node in program.graph.nodes:
        if (
            node.op == "call_function"
            and all(i in given or i in calls for i in elements_read(node))
            and _is_repeatable(node, LARGEST)
        ):
            calls.add(node)
    return calls


def elements_read(node: Node) -> list[Node]:
    """The operands whose elements a call reads."""
    return node.all_input_nodes[1:] if node.target in _BY_SHAPE else node.all_input_nodes


def ancestors(*nodes: Node, known: Collection[Node] = ()) -> set[Node]:
    """``nodes`` and everything that they are computed from, as far as it is not ``known``."""
    return reachable(
        (n for n in nodes if n not in known), lambda node: [n for n in elements_read(node) if n not in known]
    )


def constants_of(program: ExportedProgram) -> Callable[[Node], torch.Tensor | None]:
    """The tensors that a program's placeholders stand for; None for inputs, and for what the program writes."""
    specs, constant = dict(placeholders(program)), constant_placeholders(program)
    return lambda node: constant_tensor(program, specs[node]) if node in constant else None


class ConstantValues:
    """The values of constant calls, each computed once, when it is asked for, and kept in ``by_node``.

    ``given`` says what a node stands for that calls nothing, None if that is no constant; of a program, it is
    ``constants_of(program)``. ``largest``: bytes of one value, and of each on the way to it; None for no limit.
    """

    def __init__(self, given: Callable[[Node], torch.Tensor | None], largest: int | None = LARGEST) -> None:
        self._given, self._largest = given, largest
        self.by_node: dict[Node, Any] = {}

    def of(self, node: Node) -> torch.Tensor | None:
        """The value of a constant or a constant call; None for others, for several, and where weights are fake."""
        value, expected = self.results(node), node.meta["val"]
        fits = isinstance(value, torch.Tensor) and value.shape == expected.shape and value.dtype is expected.dtype
        return value if fits else None

    def results(self, node: Node) -> Any:
        """What a constant call returns, which may be several tensors; None where ``of`` says None."""
        needed = self._missing(node)
        if not all(self._can_be_known(n) for n in needed):
            return None
        try:
            with torch.no_grad():
                for each in needed:
                    self.by_node[each] = self._compute(each)
        except (RuntimeError, ValueError, IndexError, TypeError):  # it raises the same when the program runs
            return None
        return self.by_node[node]

    def _can_be_known(self, node: Node) -> bool:
        return _is_repeatable(node, self._largest) if node.op == "call_function" else self._given(node) is not None

    def _missing(self, node: Node) -> list[Node]:
        """What ``node`` needs that is not computed yet, then itself."""
        return sorted(ancestors(node, known=self.by_node))

    def _compute(self, node: Node) -> Any:
        if node.op != "call_function":
            tensor = self._given(node)
            assert tensor is not None
            if isinstance(tensor, FakeTensor) or why_no_bytes(tensor):
                raise ValueError(f"the elements of {node.name} are not there")
            return tensor.detach()
        shaped: dict[Any, Any] = {}
        for val in _shapes_read(node):
            shaped[node.args[0]] = torch.empty_strided(val.shape, val.stride(), dtype=val.dtype)
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: shaped.get(n, self.by_node.get(n)))
        return node.target(*args, **kwargs)  # type: ignore[operator]


def _is_repeatable(node: Node, largest: int | None) -> bool:
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return True
    op: Any = node.target
    if not isinstance(op, OpOverload) or op.namespace != "aten" or op._schema.is_mutable or "empty" in op._schema.name:
        return False
    if torch.Tag.nondeterministic_seeded in op.tags or node.is_impure():
        return False
    vals = (*pytree.tree_leaves(node.meta.get("val")), *_shapes_read(node))
    return all(_is_storable(val, largest) for val in vals)


def _shapes_read(node: Node) -> Iterator[Any]:
    if node.target in _BY_SHAPE:
        yield node.args[0].meta["val"]  # type: ignore[union-attr]


def _is_storable(val: Any, largest: int | None) -> bool:
    """A plain tensor on the CPU whose size is known, and is not too large."""
    if not isinstance(val, torch.Tensor) or val.layout is not torch.strided or val.device.type != "cpu":
        return False
    if not all(type(size) is int for size in val.shape):
        return False
    return largest is None or val.numel() * val.element_size() <= largest
