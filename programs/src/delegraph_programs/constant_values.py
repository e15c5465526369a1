"""The values of calls whose operands are all constants, and so do not depend on the
program's inputs.
"""

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
from .node_sets import reachable
from .operator_schema import overloads
from .tensor_memory import why_no_bytes

LARGEST = 16 * 2**20
"""The most bytes of a value that is computed while lowering, and of each value on the
way to it.
"""
aten = torch.ops.aten
_BY_SHAPE = overloads(
    "zeros_like.default ones_like.default full_like.default new_zeros.default"
    " new_ones.default new_full.default"
)
"""Operators that read the shape of their first operand, and none of its elements."""


def constant_calls(program: ExportedProgram) -> set[Node]:
    """Calls that depend on constants alone.

    They are pure, give the same result every time, and their results and operands have
    at most ``LARGEST`` bytes.
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
    """The operands whose elements a call reads. The first operand of ``_BY_SHAPE`` is
    none of them.
    """
    operands = node.all_input_nodes
    return operands[1:] if node.target in _BY_SHAPE else operands


def ancestors(*nodes: Node, known: Collection[Node] = ()) -> set[Node]:
    """``nodes`` and all nodes from whose elements they are computed.

    Nodes in ``known`` are left out, and so is what only they are computed from. An
    operand of which a call reads only the shape is left out as well
    (``elements_read``).
    """
    return reachable(
        (n for n in nodes if n not in known),
        lambda node: [n for n in elements_read(node) if n not in known],
    )


def constants_of(program: ExportedProgram) -> Callable[[Node], torch.Tensor | None]:
    """A function that returns the tensor of a placeholder that is a parameter, buffer
    or constant of ``program``.

    The function returns None for every other node, and for buffers that the program
    writes.
    """
    specs = dict(placeholders(program))
    constant = constant_placeholders(program)
    return lambda node: (
        constant_tensor(program, specs[node]) if node in constant else None
    )


class ConstantValues:
    """The values of calls on constants. Each is computed when it is first needed, and
    kept in ``by_node``.

    ``tensor_of``, which ``constants_of(program)`` makes, returns the tensor of a
    constant, and None for any other node that is no call. ``largest``: the most bytes
    of a value, and of each value from which it is computed; None for any number.
    """

    def __init__(
        self,
        tensor_of: Callable[[Node], torch.Tensor | None],
        largest: int | None = LARGEST,
    ) -> None:
        """Nothing is computed yet. ``tensor_of``: node -> its tensor, None if it is no
        constant; ``largest``: bytes.
        """
        self._tensor_of = tensor_of
        self._largest = largest
        self.by_node: dict[Node, Any] = {}

    def of(self, node: Node) -> torch.Tensor | None:
        """The tensor that ``node`` holds or computes from constants, or None.

        None if ``node`` depends on inputs or on a weight without data (a fake tensor),
        or if one of the calls fails, is not repeatable, or has a result that is too
        large. None also if ``node`` returns several results, or a tensor whose shape or
        dtype is not the recorded one.
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
        """What a call on constants returns, also if that is several tensors; None if it
        is not known, as in ``of``.
        """
        needed = self._missing(node)
        if not all(self._can_be_known(n) for n in needed):
            return None
        try:
            with torch.no_grad():
                for step in needed:
                    self.by_node[step] = self._compute(step)
        except (RuntimeError, ValueError, IndexError, TypeError):
            # the call fails when the program runs, too
            return None
        return self.by_node[node]

    def _can_be_known(self, node: Node) -> bool:
        """Whether the value of ``node`` can be computed, if those of its operands can."""
        return (
            _is_repeatable(node, self._largest)
            if node.op == "call_function"
            else self._tensor_of(node) is not None
        )

    def _missing(self, node: Node) -> list[Node]:
        """``node`` and the nodes that must be computed before it, in graph order."""
        return sorted(ancestors(node, known=self.by_node))

    def _compute(self, node: Node) -> Any:
        """The value of ``node``, whose operands are in ``by_node``. Raises ValueError
        if a weight has no data.
        """
        if node.op != "call_function":
            tensor = self._tensor_of(node)
            assert tensor is not None
            if isinstance(tensor, FakeTensor) or why_no_bytes(tensor):
                raise ValueError(f"the elements of {node.name} are not there")
            return tensor.detach()
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), self.by_node.get)
        shape_of = _operand_read_by_shape(node)
        # it is not computed: a tensor that nobody has written stands in for it
        if shape_of is not None:
            args = (
                torch.empty_strided(
                    shape_of.shape, shape_of.stride(), dtype=shape_of.dtype
                ),
                *args[1:],
            )
        return node.target(*args, **kwargs)  # type: ignore[operator]


def _is_repeatable(node: Node, largest: int | None) -> bool:
    """Whether a call is pure and gives the same result every time.

    Its result, and an operand whose shape alone it reads, must have at most ``largest``
    bytes (None: any number).
    """
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return True
    op: Any = node.target
    # ``empty`` and its like return memory that nobody has written
    if (
        not isinstance(op, OpOverload)
        or op.namespace != "aten"
        or op._schema.is_mutable
        or "empty" in op._schema.name
    ):
        return False
    if torch.Tag.nondeterministic_seeded in op.tags or node.is_impure():
        return False
    shape_of = _operand_read_by_shape(node)
    if shape_of is not None and not _is_storable(shape_of, largest):
        return False
    return all(
        _is_storable(val, largest) for val in pytree.tree_leaves(node.meta.get("val"))
    )


def _operand_read_by_shape(node: Node) -> Any:
    """The recorded value of the operand of which a call reads only the shape; None if
    it has no such operand.
    """
    return node.args[0].meta["val"] if node.target in _BY_SHAPE else None  # type: ignore[union-attr]


def _is_storable(val: Any, largest: int | None) -> bool:
    """Whether a recorded value is a number, or a dense CPU tensor of fixed size with at
    most ``largest`` bytes.

    None in the place of ``largest`` stands for any number of bytes.
    """
    if isinstance(val, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return True
    if (
        not isinstance(val, torch.Tensor)
        or val.layout is not torch.strided
        or val.device.type != "cpu"
    ):
        return False
    if not all(type(size) is int for size in val.shape):
        return False
    return largest is None or val.numel() * val.element_size() <= largest
