"""Calls on constants alone that a backend leaves to the host are computed now, and become constants of the program.

A backend that takes such calls gets them: it may compute them when it compiles, or on the device. What it refuses would
cut its partitions apart, or be computed again with every call of the program.
"""

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

from ..exported.call_names import is_operator
from ..exported_program import add_constant, constant_placeholders, constant_tensor, has_effect, placeholders
from ..io.weights import why_no_bytes
from ..report.rows import format_size, pluralize
from .partition import Plan

LARGEST = 16 * 2**20
"""Bytes of one value that is computed now, and of each on the way to it."""
TOGETHER = 64 * 2**20
"""Bytes of all values that are computed now for one plan."""
aten = torch.ops.aten
_BY_SHAPE = frozenset(
    {aten.zeros_like.default, aten.ones_like.default, aten.full_like.default, aten.new_zeros.default}
    | {aten.new_ones.default, aten.new_full.default}
)
"""Operators that read the shape of their first operand, and none of its elements."""


def compute_constants(plan: Plan) -> str:
    """Put constants in the place of calls that ``plan`` leaves to the host and that need nothing but constants.

    Returns what was done, for the report, and "" if there was nothing to do. The program then has to be planned again.
    """
    program, given = plan.program, constant_placeholders(plan.program)
    every = [n for n in program.graph.nodes if n.op == "call_function"]
    calls = [n for n in every if None in plan.tags.get(n, (None,))]
    if not calls or not any(given.issuperset(_needed(n)) for n in every):  # most programs
        return ""
    known = _constant_calls(program, given)
    left = known.intersection(calls)
    values, replaced = _Values(program), list[torch.Tensor]()
    for node in (n for n in calls if n in left and _is_end(n, left)):
        value = values.of(node)
        if value is not None and value.nbytes + sum(v.nbytes for v in replaced) <= TOGETHER:
            constant = add_constant(program, value, f"{node.name}_computed")
            values.by_node[constant] = value
            _replace(node, constant)
            replaced.append(value)
    if not replaced:
        return ""
    count = pluralize(_erase_unused(program, known), "operator")
    return f"{count} on constants alone computed while lowering, {format_size(sum(v.nbytes for v in replaced))}"


def _needed(node: Node) -> list[Node]:
    """The operands whose elements a call reads."""
    return node.all_input_nodes[1:] if node.target in _BY_SHAPE else node.all_input_nodes


def _is_end(node: Node, left: Collection[Node]) -> bool:
    """Whether anything uses the value besides calls that are replaced as well."""
    copies = node.target is aten.clone.default and node.all_input_nodes[0].op == "placeholder"
    return isinstance(node.meta["val"], torch.Tensor) and not copies and any(u not in left for u in node.users)


def _replace(node: Node, constant: Node) -> None:
    """Let users of ``node`` use ``constant``. A program returns a copy of it, since callers may write to results."""
    if any(u.op == "output" for u in node.users):
        with node.graph.inserting_before(node):
            copy = node.graph.call_function(aten.clone.default, (constant,))
        copy.meta.update(node.meta)
        node.replace_all_uses_with(copy, lambda user: user.op == "output")
    node.replace_all_uses_with(constant)


def _constant_calls(program: ExportedProgram, given: Collection[Node]) -> set[Node]:
    """Calls whose results follow from the program alone: pure, the same every time, on the CPU, of known size."""
    calls: set[Node] = set()
    for node in program.graph.nodes:
        if node.op == "call_function" and all(i in given or i in calls for i in _needed(node)) and _is_repeatable(node):
            calls.add(node)
    return calls


def _is_repeatable(node: Node) -> bool:
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


class _Values:
    """The values of constant calls of a program, each computed once, when it is asked for, and kept in ``by_node``."""

    def __init__(self, program: ExportedProgram) -> None:
        self._program, self._specs = program, dict(placeholders(program))
        self.by_node: dict[Node, Any] = {}

    def of(self, node: Node) -> torch.Tensor | None:
        """The value of a constant call; None if it cannot be computed here, as where weights are fake."""
        try:
            with torch.no_grad():
                for each in self._ancestors(node):
                    self.by_node[each] = self._compute(each)
        except (RuntimeError, ValueError, IndexError, TypeError):  # it raises the same when the program runs
            return None
        value: torch.Tensor = self.by_node[node]
        expected = node.meta["val"]
        return value if value.shape == expected.shape and value.dtype is expected.dtype else None

    def _ancestors(self, node: Node) -> list[Node]:
        """The calls and placeholders that ``node`` needs and that are not computed yet, then itself."""
        needed: set[Node] = set()
        waiting = [node]
        while waiting:
            one = waiting.pop()
            if one not in needed and one not in self.by_node:
                needed.add(one)
                waiting += _needed(one)
        return [n for n in self._program.graph.nodes if n in needed]

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


def _erase_unused(program: ExportedProgram, known: Collection[Node]) -> int:
    """Erase calls that nobody uses any more; returns how many operators on constants they were."""
    erased = 0
    for node in reversed(program.graph.nodes):
        if node.op == "call_function" and not node.users and not has_effect(node):
            erased += node in known and is_operator(node)
            program.graph.erase_node(node)
    return erased
