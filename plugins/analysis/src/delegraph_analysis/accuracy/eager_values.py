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
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate
from torch.utils import _pytree as pytree

from .ties import picks


class Pair(NamedTuple):
    """A value in eager PyTorch, and the same value with float64 instead of its type."""

    eager: Any
    exact: Any


class EagerValues:
    """Computes the values of a program's graph, and drops each after its last use.

    Put the values of the inputs into ``known`` first. Then ``compute`` and ``record``
    each call, in the order of the graph.
    """

    def __init__(self, program: ExportedProgram | GraphModule) -> None:
        """Prepare for the graph of ``program``; nothing is computed.

        A branch or a loop body is a GraphModule: it has no constants of its own.
        """
        self._program: ExportedProgram | None = None
        self._specs: Mapping[Node, Any] = {}
        """Placeholder -> its InputSpec; empty for a branch or a body."""
        if isinstance(program, GraphModule):
            self.module = program
        else:
            self.module = program.graph_module
            self._program = program
            self._specs = dict(placeholders(program))
        self.known: dict[Node, Pair] = {}
        """Inputs and calls -> their values, until the last use."""
        self.operands: dict[Node, list[Node]] = {
            node: node.all_input_nodes
            for node in self.module.graph.nodes
            if node.op == "call_function"
        }
        """Calls, in order, with their operands."""
        self._differing: set[Node] = set()
        """Calls with different objects as value in eager and in the program's run."""
        self._last_uses = _last_uses(self.module.graph)

    def pair(self, node: Node) -> Pair:
        """Return the value of an input, a constant or a recorded call.

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
        """Return the value of a call, without recording it.

        If torch lacks the operator in float64, the value of eager is also the exact
        one. ``made``: the value of a host operator in the program's run. The host runs
        the same kernels as eager. So if all operands are the same objects in both,
        ``made`` is also the value of eager, and saves the call.
        """
        operands = {n: self.pair(n) for n in self.operands[node]}
        is_operator = isinstance(node.target, OpOverload)
        # bodies of higher-order operators may contain delegates
        has_bodies = not is_operator and isinstance(node.target, HigherOrderOperator)
        eager = made
        if made is None or has_bodies or not self._differing.isdisjoint(operands):
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

    def record(self, node: Node, pair: Pair, made: Any = None) -> None:
        """Record the value of a call, and drop the values that it uses last.

        ``made`` is the value of the program's run; None if the program does not run.
        """
        self.known[node] = pair
        if pair.eager is not made:
            self._differing.add(node)
        for operand in self._last_uses.get(node, ()):
            self.known.pop(operand, None)

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


def _last_uses(graph: Graph) -> dict[Node, list[Node]]:
    """Return for each node the operands that no later node uses.

    Left out are operands from which calls pick positions, as ``topk`` does. ``ties``
    reads them later, to find out whether two positions have equal elements.
    """
    last_user: dict[Node, Node] = {}
    picked_from: set[Any] = set()
    for node in graph.nodes:
        last_user.update(dict.fromkeys(node.all_input_nodes, node))
        if node.op == "call_function" and picks(node):
            picked_from.add(node.args[0])
    last_uses: dict[Node, list[Node]] = {}
    for operand, user in last_user.items():
        if operand not in picked_from:
            last_uses.setdefault(user, []).append(operand)
    return last_uses


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
