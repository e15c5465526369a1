"""Computes calls whose operands are constants, and so do not depend on inputs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

from .exported_program import constant_placeholders, constant_tensor, placeholders
from .operator_schema import may_be_random, overloads
from .reachable_nodes import reachable
from .symbolic_sizes import SYMBOLS, are_static
from .tensor_bytes import why_no_bytes

LARGEST = 16 * 2**20
"""The size limit in bytes of a computed value, and of each intermediate value."""
aten = torch.ops.aten
_BY_SHAPE = overloads(
    "zeros_like.default ones_like.default full_like.default new_zeros.default"
    " new_ones.default new_full.default"
)
"""Operators that read the shape of their first operand, and none of its elements."""


def constant_calls(program: ExportedProgram) -> set[Node]:
    """Return the repeatable calls that depend on constants alone.

    See ``_is_repeatable``, with the limit ``LARGEST``.
    """
    constants = constant_placeholders(program)
    calls = set[Node]()
    for node in program.graph.nodes:
        if (
            node.op == "call_function"
            and all(i in constants or i in calls for i in elements_read(node))
            and _is_repeatable(node, LARGEST)
        ):
            calls.add(node)
    return calls


def elements_read(node: Node) -> list[Node]:
    """Return the operands of a call, without one of which only the shape is read."""
    operands = node.all_input_nodes
    return operands[1:] if node.target in _BY_SHAPE else operands


def ancestors(*nodes: Node, known: Collection[Node] = ()) -> set[Node]:
    """Return ``nodes`` and all nodes that contribute elements to them.

    Nodes in ``known`` are left out, together with the nodes that only they need. So are
    operands of which a call reads only the shape.
    """
    return reachable(
        (n for n in nodes if n not in known),
        lambda node: [n for n in elements_read(node) if n not in known],
    )


def constants_of(program: ExportedProgram) -> Callable[[Node], torch.Tensor | None]:
    """Return a function that returns the tensor of a placeholder, or None.

    The result is None unless the node is a parameter, buffer or constant of ``program``
    that never changes.
    """
    specs = dict(placeholders(program))
    constant = constant_placeholders(program)
    return lambda node: (
        constant_tensor(program, specs[node]) if node in constant else None
    )


class ConstantValues:
    """The values of calls on constants, computed on demand and kept in ``by_node``.

    ``tensor_of``: usually ``constants_of(program)``. For a node that is no call, it
    returns the tensor of a constant, or None. ``largest``: the size limit in bytes of a
    value and of its intermediate values; None means no limit.
    """

    def __init__(
        self,
        tensor_of: Callable[[Node], torch.Tensor | None],
        largest: int | None = LARGEST,
    ) -> None:
        """Start without computed values; the class describes the arguments."""
        self._tensor_of = tensor_of
        self._largest = largest
        self.by_node: dict[Node, Any] = {}

    def of(self, node: Node) -> torch.Tensor | None:
        """Return the tensor that ``node`` holds or computes from constants, or None.

        The result is None if ``node`` depends on inputs, or on a weight without data (a
        fake tensor). It is None if a call fails, is not repeatable, or is too large. It
        is also None if ``node`` has several results, or not the recorded shape and
        dtype.
        """
        value = self.results(node)
        expected = node.meta["val"]
        fits = (
            isinstance(value, torch.Tensor)
            and value.shape == expected.shape
            and value.dtype is expected.dtype
        )
        return value if fits else None

    def results(self, node: Node) -> Any:
        """Return the result or results of a call; None if it cannot be computed."""
        # nodes compare by their position in the graph
        needed = sorted(ancestors(node, known=self.by_node))
        if not all(self._can_be_known(n) for n in needed):
            return None
        try:
            with torch.no_grad():
                for step in needed:
                    self.by_node[step] = self._compute(step)
        except (RuntimeError, ValueError, IndexError, TypeError):
            # the same call fails when the program runs
            return None
        return self.by_node[node]

    def _can_be_known(self, node: Node) -> bool:
        """Return whether ``node`` is a constant, or a repeatable call."""
        if node.op == "call_function":
            return _is_repeatable(node, self._largest)
        return self._tensor_of(node) is not None

    def _compute(self, node: Node) -> Any:
        """Return the value of ``node``; its operands are already in ``by_node``.

        Raises ValueError if a weight has no data.
        """
        if node.op != "call_function":
            tensor = self._tensor_of(node)
            assert tensor is not None
            if isinstance(tensor, FakeTensor) or why_no_bytes(tensor):
                raise ValueError(f"the elements of {node.name} are not known")
            return tensor.detach()
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), self.by_node.get)
        shape_of = _operand_read_by_shape(node)
        # only the shape is read, so an uninitialized tensor replaces the operand
        if shape_of is not None:
            example = torch.empty_strided(
                shape_of.shape, shape_of.stride(), dtype=shape_of.dtype
            )
            args = (example, *args[1:])
        return node.target(*args, **kwargs)  # type: ignore[operator]


def _is_repeatable(node: Node, largest: int | None) -> bool:
    """Return whether a call is pure and gives the same result every time.

    Its result, and an operand of which only the shape is read, must have at most
    ``largest`` bytes (None: any number).
    """
    if node.target is operator.getitem:
        return True
    op: Any = node.target
    if not isinstance(op, OpOverload) or op.namespace != "aten" or node.is_impure():
        return False
    # ``empty`` and similar operators return uninitialized memory
    if op._schema.is_mutable or may_be_random(op) or "empty" in op._schema.name:
        return False
    shape_of = _operand_read_by_shape(node)
    if shape_of is not None and not _is_storable(shape_of, largest):
        return False
    results = pytree.tree_leaves(node.meta.get("val"))
    return all(_is_storable(result, largest) for result in results)


def _operand_read_by_shape(node: Node) -> Any:
    """Return the recorded value of an operand that is read by shape only, or None."""
    return node.args[0].meta["val"] if node.target in _BY_SHAPE else None  # type: ignore[union-attr]


def _is_storable(val: Any, largest: int | None) -> bool:
    """Return whether a value is a symbolic number, or a CPU tensor of fixed size.

    The tensor may have at most ``largest`` bytes; None sets no limit.
    """
    if isinstance(val, SYMBOLS):
        return True
    if not isinstance(val, torch.Tensor) or val.layout is not torch.strided:
        return False
    if val.device.type != "cpu" or not are_static(val.shape):
        return False
    return largest is None or val.numel() * val.element_size() <= largest
