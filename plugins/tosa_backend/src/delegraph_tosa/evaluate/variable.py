"""Kernels of variables, which keep their value from call to call.

The caller of a program holds the variables. Otherwise, each call starts from the
initial values. A graph of control flow uses the variables of the program.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from delegraph.errors import InputError

from ..ir import operators as ops
from ..ir.graph import Array
from .kernels import Result, computes

_VARIABLES: ContextVar[dict[str, Array] | None] = ContextVar("_VARIABLES", default=None)


@contextmanager
def variables(held: dict[str, Array] | None = None) -> Iterator[dict[str, Array]]:
    """Give the variables of the program that this thread runs.

    If it runs none, starts a run with ``held``, or with no variables.
    """
    current = _VARIABLES.get()
    if current is not None:
        yield current
        return
    held = {} if held is None else held
    token = _VARIABLES.set(held)
    try:
        yield held
    finally:
        _VARIABLES.reset(token)


@computes(ops.VARIABLE, as_stored=True)
def variable(op: ops.VARIABLE, initial: Array) -> Result:
    with variables() as held:
        held.setdefault(op.variable, initial)
    return ()


@computes(ops.VARIABLE_WRITE, as_stored=True)
def variable_write(op: ops.VARIABLE_WRITE, x: Array) -> Result:
    with variables() as held:
        held[op.variable] = x
    return ()


@computes(ops.VARIABLE_READ, as_stored=True)
def variable_read(op: ops.VARIABLE_READ) -> Result:
    with variables() as held:
        if op.variable not in held:
            raise InputError(
                "input-invalid",
                f"variable {op.variable!r} is read before it is declared",
            )
        return held[op.variable]
