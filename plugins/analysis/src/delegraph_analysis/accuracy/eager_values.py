"""Compute the values of a graph call by call, in eager PyTorch and in float64."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from delegraph.host import eager_target, run_in_eager
from delegraph_programs import constant_tensor, is_random, output_values, placeholders
from delegraph_programs.exported_program import STATE_WRITES
from torch._ops import HigherOrderOperator, OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate
from torch.utils import _pytree as pytree

from .ties import picks


class Pair(NamedTuple):
    """A value in eager PyTorch, and the same value with float64 instead of its type."""

    eager: Any
    exact: Any


class EagerValues:
    """The values of a program's graph, until their last use.

    ``known`` contains the inputs at the beginning. A branch or a loop body has no
    constants of its own, so its graph module is enough.
    """

    def __init__(self, program: ExportedProgram | GraphModule) -> None:
        self._program: ExportedProgram | None = None
        self._specs: Mapping[Node, Any] = {}
        if isinstance(program, GraphModule):
            self.module = program
        else:
            self.module = program.graph_module
            self._program = program
            self._specs = dict(placeholders(program))
        self.known: dict[Node, Pair] = {}
        self.operands: dict[Node, list[Node]] = {}
        """Calls, in order, with their operands."""
        self._apart: set[Node] = set()
        """Calls with a value in eager that is not the object of the program's run."""
        self._dying: dict[Node, list[Node]] = {}
        """Node -> the values that it uses last."""
        last_user: dict[Node, Node] = {}
        for node in self.module.graph.nodes:
            used = node.all_input_nodes
            if node.op == "call_function":
                self.operands[node] = used
            last_user.update(dict.fromkeys(used, node))
        # the source of positions is kept: it shows ties
        kept = {call.args[0] for call in self.operands if picks(call)}
        for value, user in last_user.items():
            if value not in kept:
                self._dying.setdefault(user, []).append(value)

    def pair(self, node: Node) -> Pair:
        """Return the value of a node.

        Constants are widened at each use: weights in float64 need twice the memory.
        """
        if node in self.known:
            return self.known[node]
        if node.op == "placeholder":
            assert self._program is not None, (
                "all inputs of a branch or a body are known"
            )
            return _paired(constant_tensor(self._program, self._specs[node]))
        attribute: Any = self.module
        for part in str(node.target).split("."):
            attribute = getattr(attribute, part)
        if isinstance(attribute, GraphModule):
            attribute = run_in_eager(attribute)
        return _paired(attribute)

    def compute(self, node: Node, made: Any = None) -> Pair:
        """Return the value of a call.

        If torch lacks the operator in float64, the value of eager is also the exact
        one. ``made`` is the host's value. It is used if the host's operands are the
        values of eager.
        """
        operands = {n: self.pair(n) for n in self.operands[node]}
        is_operator = isinstance(node.target, OpOverload)
        # bodies of higher-order operators may contain delegates
        has_bodies = not is_operator and isinstance(node.target, HigherOrderOperator)
        eager = made
        if made is None or has_bodies or not self._apart.isdisjoint(operands):
            eager = _call(node, operands, "eager")
        if has_bodies or is_random(node):
            return Pair(eager, widened(eager))
        if not is_operator:  # it unpacks results, or computes with sizes
            return Pair(eager, _call(node, operands, "exact"))
        try:
            exact = _call(node, operands, "exact", widen=True)
        except (
            RuntimeError,
            TypeError,
            ValueError,
            IndexError,
            AssertionError,
        ):
            # torch has no kernel (NotImplementedError is a RuntimeError)
            exact = None
        return Pair(eager, exact if _is_alike(eager, exact) else widened(eager))

    def keep(self, node: Node, pair: Pair, made: Any = None) -> None:
        """Record the value of a call, and drop values after their last use.

        ``made`` is the value of the program's run.
        """
        self.known[node] = pair
        if pair.eager is not made:
            self._apart.add(node)
        for used in self._dying.get(node, ()):
            self.known.pop(used, None)

    def returned(
        self, mutations: Collection[OutputKind] = STATE_WRITES
    ) -> list[Node | Any]:
        """Return the values that the graph returns to its caller.

        New values of buffers, which are ``mutations``, are left out.
        """
        assert self._program is not None
        specs = zip(
            self._program.graph_signature.output_specs,
            output_values(self._program),
            strict=True,
        )
        return [value for spec, value in specs if spec.kind not in mutations]


def _call(
    node: Node,
    operands: Mapping[Node, Pair],
    side: Literal["eager", "exact"],
    widen: bool = False,
) -> Any:
    """Return the result of a call with these values; ``widen`` widens type arguments."""
    target = eager_target(node)
    position = Pair._fields.index(side)

    def value_of(argument: Any) -> Any:
        if isinstance(argument, Node):
            return operands[argument][position]
        if isinstance(argument, (list, tuple, dict, slice)):
            return map_aggregate(argument, value_of)
        if widen and isinstance(argument, torch.dtype):
            return _wide_dtype(argument)
        return argument

    args = [value_of(argument) for argument in node.args]
    kwargs = {name: value_of(argument) for name, argument in node.kwargs.items()}
    return target(*args, **kwargs)


def widened(value: Any) -> Any:
    """Return a value with float64 for floats and complex128 for complex numbers."""
    # nearly all values are tensors, and pytree is slow
    if isinstance(value, torch.Tensor):
        return _wide_tensor(value)
    return pytree.tree_map_only(torch.Tensor, _wide_tensor, value)


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values are tensors with the same bits, also of NaN and zeros."""
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return False
    if one.shape != other.shape or one.dtype is not other.dtype:
        return False
    if one.device != other.device:
        return False
    if one.layout is not torch.strided or other.layout is not torch.strided:
        return False
    return torch.equal(_bits(one), _bits(other))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1).contiguous().view(torch.uint8)


def _paired(value: Any) -> Pair:
    return Pair(value, widened(value))


def _wide_tensor(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to(_wide_dtype(tensor.dtype))


@cache
def _wide_dtype(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


def _is_alike(eager: Any, exact: Any) -> bool:
    """Return whether the shapes are equal, and the types except for their width."""
    if isinstance(eager, torch.Tensor):
        if not isinstance(exact, torch.Tensor) or eager.shape != exact.shape:
            return False
        return _wide_dtype(eager.dtype) is exact.dtype
    eager_leaves = pytree.tree_leaves(eager)
    exact_leaves = pytree.tree_leaves(exact)
    if eager_leaves and eager_leaves[0] is eager:  # a leaf
        return type(eager) is type(exact)
    if len(eager_leaves) != len(exact_leaves):
        return False
    return all(map(_is_alike, eager_leaves, exact_leaves))
