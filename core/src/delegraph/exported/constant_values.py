"""The values of calls on constants alone: what follows from the program itself, whatever inputs it gets."""

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
"""The most bytes of a value that is computed while lowering, and of each value on the way to it."""
aten = torch.ops.aten
_BY_SHAPE = overloads(
    "zeros_like.default ones_like.default full_like.default new_zeros.default new_ones.default new_full.default"
)
"""Operators that read the shape of their first operand, and none of its elements."""


def constant_calls(program: ExportedProgram) -> set[Node]:
    """Calls whose results follow from the program alone.

    They are pure, give the same every time, and have a known size.
    """
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
    """The operands whose elements a call reads, and not just their shapes."""
    return node.all_input_nodes[1:] if node.target in _BY_SHAPE else node.all_input_nodes


def ancestors(*nodes: Node, known: Collection[Node] = ()) -> set[Node]:
    """``nodes`` and all nodes that they are computed from, without those in ``known`` and what only those need."""
    return reachable(
        (n for n in nodes if n not in known), lambda node: [n for n in elements_read(node) if n not in known]
    )


def constants_of(program: ExportedProgram) -> Callable[[Node], torch.Tensor | None]:
    """A function that returns the tensor of a constant placeholder.

    None for inputs, and for tensors that are written.
    """
    specs, constant = dict(placeholders(program)), constant_placeholders(program)
    return lambda node: constant_tensor(program, specs[node]) if node in constant else None


class ConstantValues:
    """The values of constant calls. Each is computed when it is first asked for, and kept in ``by_node``.

    ``given`` returns the tensor of a node that is no call, or None if that is no constant (``constants_of(program)``).
    ``largest`` limits the bytes of a value, and of each value on the way to it; None is no limit.
    """

    def __init__(self, given: Callable[[Node], torch.Tensor | None], largest: int | None = LARGEST) -> None:
        self._given, self._largest = given, largest
        self.by_node: dict[Node, Any] = {}

    def of(self, node: Node) -> torch.Tensor | None:
        """The value of a constant, or of a call of constants; None if it is not known.

        It is not known of any other node, of a call with several results, one that is too large or one that fails, and
        of a weight of which only shape and type are there (a fake tensor). A value of another shape or type than the
        program recorded is not used either.
        """
        value, expected = self.results(node), node.meta["val"]
        fits = isinstance(value, torch.Tensor) and value.shape == expected.shape and value.dtype is expected.dtype
        return value if fits else None

    def results(self, node: Node) -> Any:
        """What a constant call returns, which may be several tensors; None as in ``of``."""
        needed = self._missing(node)
        if not all(self._can_be_known(n) for n in needed):
            return None
        try:
            with torch.no_grad():
                for each in needed:
                    self.by_node[each] = self._compute(each)
        except (RuntimeError, ValueError, IndexError, TypeError):  # the call fails when the program runs, too
            return None
        return self.by_node[node]

    def _can_be_known(self, node: Node) -> bool:
        """Whether the value of ``node`` can be computed, once those of its operands are."""
        return _is_repeatable(node, self._largest) if node.op == "call_function" else self._given(node) is not None

    def _missing(self, node: Node) -> list[Node]:
        """The nodes that have to be computed for ``node``, in order, ``node`` last."""
        return sorted(ancestors(node, known=self.by_node))

    def _compute(self, node: Node) -> Any:
        """The value of one node whose operands are computed."""
        if node.op != "call_function":
            tensor = self._given(node)
            assert tensor is not None
            if isinstance(tensor, FakeTensor) or why_no_bytes(tensor):
                raise ValueError(f"the elements of {node.name} are not there")
            return tensor.detach()
        # operands of which the call reads only the shape need not be computed: an empty tensor will do
        shaped: dict[Any, Any] = {}
        for val in _shapes_read(node):
            shaped[node.args[0]] = torch.empty_strided(val.shape, val.stride(), dtype=val.dtype)
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: shaped.get(n, self.by_node.get(n)))
        return node.target(*args, **kwargs)  # type: ignore[operator]


def _is_repeatable(node: Node, largest: int | None) -> bool:
    """Whether a call is pure, gives the same result every time, and no value that it reads or makes is too large."""
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
    """The recorded value of an operand of which the call reads only the shape, if it has such an operand."""
    if node.target in _BY_SHAPE:
        yield node.args[0].meta["val"]  # type: ignore[union-attr]


def _is_storable(val: Any, largest: int | None) -> bool:
    """Whether a recorded value is a plain tensor on the CPU, of known size, with ``largest`` bytes at most."""
    if not isinstance(val, torch.Tensor) or val.layout is not torch.strided or val.device.type != "cpu":
        return False
    if not all(type(size) is int for size in val.shape):
        return False
    return largest is None or val.numel() * val.element_size() <= largest
