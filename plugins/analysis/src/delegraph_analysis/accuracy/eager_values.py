"""The values of a graph in eager PyTorch, and with float64 in place of its types,
computed call by call.
"""

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
    """A value in eager, with the types of the program, and with float64 in their place."""

    eager: Any
    exact: Any


class EagerValues:
    """The values of a program's graph, as long as they are needed; ``known`` has the
    inputs to begin with.

    Of a branch or a loop body, which has no constants of its own, the graph module is
    enough.
    """

    def __init__(self, program: ExportedProgram | GraphModule) -> None:
        self.module = (
            program if isinstance(program, GraphModule) else program.graph_module
        )
        self.known: dict[Node, Pair] = {}
        operands = {n: n.all_input_nodes for n in self.module.graph.nodes}
        self.operands = {
            n: used for n, used in operands.items() if n.op == "call_function"
        }
        """Calls, in order, with the values that they take."""
        self._apart: set[Node] = set()
        """Calls whose value in eager is not the very one of the program."""
        self._program = None if isinstance(program, GraphModule) else program
        self._specs = {} if self._program is None else dict(placeholders(self._program))
        self._dying: dict[Node, list[Node]] = {}
        # ties show in the operand that was picked from
        kept = {call.args[0] for call in self.operands if picks(call)}
        last = {used: user for user, listed in operands.items() for used in listed}
        for used, user in last.items():
            if used not in kept:
                self._dying.setdefault(user, []).append(used)

    def pair(self, node: Node) -> Pair:
        """The value of a node.

        Constants are widened anew for each use: weights in float64 are twice their
        size.
        """
        if node in self.known:
            return self.known[node]
        if node.op == "placeholder":
            assert self._program is not None, (
                "all inputs of a branch or a body are known"
            )
            return _paired(constant_tensor(self._program, self._specs[node]))
        fetched: Any = self.module
        for part in str(node.target).split("."):
            fetched = getattr(fetched, part)
        return _paired(
            run_in_eager(fetched) if isinstance(fetched, GraphModule) else fetched
        )

    def compute(self, node: Node, made: Any = None) -> Pair:
        """The value that a call makes; where torch lacks the operator in float64, that
        of eager stands for both.

        ``made``: the value that the host made of the program's own values, which is
        eager's as long as those are.
        """
        operands = {n: self.pair(n) for n in self.operands[node]}
        is_operator = isinstance(node.target, OpOverload)
        # in which delegates may be
        has_bodies = not is_operator and isinstance(node.target, HigherOrderOperator)
        is_eager = (
            made is not None and not has_bodies and self._apart.isdisjoint(operands)
        )
        eager = made if is_eager else _call(node, operands, "eager")
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
            # there is no such kernel (NotImplementedError is a RuntimeError)
            exact = None
        return Pair(eager, exact if _is_alike(eager, exact) else widened(eager))

    def keep(self, node: Node, pair: Pair, made: Any = None) -> None:
        """Record the value of a call, and drop the values of which this was the last
        use. ``made``: the program's.
        """
        self.known[node] = pair
        if pair.eager is not made:
            self._apart.add(node)
        for used in self._dying.get(node, ()):
            self.known.pop(used, None)

    def returned(
        self, mutations: Collection[OutputKind] = STATE_WRITES
    ) -> list[Node | Any]:
        """What the graph returns to its caller: not the new values of buffers, which
        are ``mutations``.
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
    """The call with these values; with ``widen``, operators that are told a type are
    told the wide one.
    """
    target = eager_target(node)
    position = Pair._fields.index(side)

    def value_of(argument: Any) -> Any:
        if isinstance(argument, Node):
            return operands[argument][position]
        if isinstance(argument, (list, tuple, dict, slice)):
            return map_aggregate(argument, value_of)
        return (
            _wide_dtype(argument)
            if widen and isinstance(argument, torch.dtype)
            else argument
        )

    # most arguments are values, and most calls have no named ones
    args = [
        operands[a][position] if isinstance(a, Node) else value_of(a) for a in node.args
    ]
    named = node.kwargs
    return (
        target(*args, **{k: value_of(v) for k, v in named.items()})
        if named
        else target(*args)
    )


def widened(value: Any) -> Any:
    """With float64 in place of shorter floats, complex128 in place of shorter complex
    numbers.
    """
    # pytree takes its time, and nearly all values are
    if isinstance(value, torch.Tensor):
        return _wide_tensor(value)
    return pytree.tree_map_only(torch.Tensor, _wide_tensor, value)


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are tensors of the same bits, those of NaN and of zeros
    included.
    """
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return False
    if (
        one.shape != other.shape
        or one.dtype is not other.dtype
        or one.device != other.device
    ):
        return False
    dense = one.layout is torch.strided is other.layout
    return dense and torch.equal(
        *(t.detach().reshape(-1).contiguous().view(torch.uint8) for t in (one, other))
    )


def _paired(value: Any) -> Pair:
    return Pair(value, widened(value))


def _wide_tensor(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to(_wide_dtype(tensor.dtype))


@cache
def _wide_dtype(dtype: torch.dtype) -> torch.dtype:
    return (
        torch.complex128
        if dtype.is_complex
        else torch.float64
        if dtype.is_floating_point
        else dtype
    )


def _is_alike(eager: Any, exact: Any) -> bool:
    """Whether the shapes are the same, and the types but for their width."""
    if isinstance(eager, torch.Tensor):
        alike = isinstance(exact, torch.Tensor) and eager.shape == exact.shape
        return alike and _wide_dtype(eager.dtype) is exact.dtype
    ours, theirs = (pytree.tree_flatten(v)[0] for v in (eager, exact))
    if ours and ours[0] is eager:  # a leaf
        return type(eager) is type(exact)
    return len(ours) == len(theirs) and all(map(_is_alike, ours, theirs))
