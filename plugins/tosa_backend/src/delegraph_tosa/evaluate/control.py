"""Kernels of control flow (specification: Control Flow Operators): bodies are graphs of their own."""

from __future__ import annotations

from ..ir import operators as ops
from ..ir.graph import Array
from .kernels import computes
from .program import Program


@computes(ops.COND_IF, as_stored=True)
def cond_if(op: ops.COND_IF, condition: Array, *inputs: Array) -> tuple[Array, ...]:
    return tuple(Program(op.then_graph if condition.item() else op.else_graph)(inputs))


@computes(ops.WHILE_LOOP, as_stored=True)
def while_loop(op: ops.WHILE_LOOP, *state: Array) -> tuple[Array, ...]:
    goes_on, body = Program(op.cond_graph), Program(op.body_graph)
    while goes_on(state)[0].item():
        state = tuple(body(state))
    return state
