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

_REMAINING: ContextVar[Iterator[int] | None] = ContextVar("_REMAINING", default=None)
"""An iterator that ends when no further iteration is allowed; None for no limit."""


@contextmanager
def bounded_iterations(most: int) -> Iterator[None]:
    """Limit the iterations of loops in a ``with`` block; a branch counts as one.

    Raises Unsupported beyond the limit. Branches count, because 64 nested graphs
    that each run the next one twice would run 2**64 of them.
    """
    token = _REMAINING.set(iter(range(most)))
    try:
        yield
    finally:
        _REMAINING.reset(token)


def _count_iteration(operator: ops.COND_IF | ops.WHILE_LOOP) -> None:
    """Count an iteration. Raises Unsupported if there were too many."""
    remaining = _REMAINING.get()
    if remaining is not None and next(remaining, None) is None:
        text = (
            f"{operator.name}: the program runs more iterations of loops and branches"
            " than are allowed"
        )
        hint = "max_iterations sets how many there may be"
        raise Unsupported("unsupported", text, source=operator.source, hint=hint)


@computes(ops.COND_IF, as_stored=True)
def cond_if(op: ops.COND_IF, condition: Array, *inputs: Array) -> tuple[Array, ...]:
    _count_iteration(op)
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
        _count_iteration(op)
        state = tuple(body(state))
