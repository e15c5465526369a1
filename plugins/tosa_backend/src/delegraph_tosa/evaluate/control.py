"""Kernels of control flow (specification: Control Flow Operators)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from delegraph.errors import Unsupported

from ..ir import operators as ops
from ..ir.graph import Array
from .kernels import computes
from .program import inner_program

_LEFT: ContextVar[Iterator[int] | None] = ContextVar("_LEFT", default=None)


@contextmanager
def bounded_iterations(most: int) -> Iterator[None]:
    """Limit the iterations of loops inside a block; branches count as one.

    Raises Unsupported beyond the limit. Branches are counted since graphs that call
    each other twice, 64 deep, end no sooner than a loop without end.
    """
    token = _LEFT.set(iter(range(most, 0, -1)))
    try:
        yield
    finally:
        _LEFT.reset(token)


def _iterate(operator: ops.COND_IF | ops.WHILE_LOOP) -> None:
    """Count an iteration. Raises Unsupported if there were too many."""
    left = _LEFT.get()
    if left is not None and next(left, None) is None:
        text = (
            f"{operator.name}: the program runs more iterations of loops and branches"
            " than are allowed"
        )
        hint = "max_iterations sets how many there may be"
        raise Unsupported("unsupported", text, source=operator.source, hint=hint)


@computes(ops.COND_IF, as_stored=True)
def cond_if(op: ops.COND_IF, condition: Array, *inputs: Array) -> tuple[Array, ...]:
    _iterate(op)
    branch = op.then_graph if condition.item() else op.else_graph
    return tuple(inner_program(branch)(inputs))


@computes(ops.WHILE_LOOP, as_stored=True)
def while_loop(op: ops.WHILE_LOOP, *state: Array) -> tuple[Array, ...]:
    condition = inner_program(op.cond_graph)
    body = inner_program(op.body_graph)
    while True:
        (goes_on,) = condition(state)
        if not goes_on.item():
            return state
        _iterate(op)
        state = tuple(body(state))
