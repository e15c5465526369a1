"""Evaluates constants: literals, loaded weights, and expressions of them."""

from __future__ import annotations

from collections import Counter

import numpy as np
from delegraph.errors import InternalError

from ..ir.graph import Array, Folded, Operator, Value
from ..ir.types import ARRAY_DTYPES
from .kernels import compute, expect_computable, result_types

KEPT_BYTES = 64 * 1024
"""Largest size of a folded constant that is kept: scales and shapes are reused."""


def materialize(value: Value) -> Array:
    """Return a constant's elements as an array of the value's shape and type.

    The array may be a view of the model's memory and need not be contiguous: do not
    write to it. A folded constant is computed again at each call unless it is small.
    Raises Unsupported if it contains an operator without kernel.
    """
    constant = value.constant
    array = _folded(constant) if isinstance(constant, Folded) else _leaf(value)
    if array.shape != value.shape or array.dtype != ARRAY_DTYPES.get(value.dtype):
        raise InternalError(
            "internal",
            f"constant {value!r} has elements of {array.dtype} {list(array.shape)}",
        )
    return array


def _leaf(value: Value) -> Array:
    """Return the elements of a constant that is not folded."""
    if value.constant is None or isinstance(value.constant, Folded):
        raise InternalError("internal", f"{value!r} is not a constant")
    return value.constant.materialize()


def _folded(constant: Folded) -> Array:
    """Return the elements of a folded constant.

    Operands are computed before users, each operator once. Values without further users
    are dropped.
    """
    if constant.elements is not None:
        return constant.elements
    order = _expression(constant.operator)
    users: Counter[Operator] = Counter()
    for producers in order.values():
        users.update(producers)
    results: dict[Operator, tuple[Array, ...]] = {}
    with np.errstate(all="ignore"):
        for operator, producers in order.items():
            operands = _operands(operator, results)
            results[operator] = compute(operator, operands, result_types(operator))
            # the next operator may need the memory
            del operands
            _release(producers, results, users)
    array = results[constant.operator][constant.index]
    _keep(constant, array)
    return array


def _expression(root: Operator) -> dict[Operator, list[Operator]]:
    """Return the operators that compute the result of ``root``, producers first.

    Each is mapped to the producers of its operands. The search uses a stack, because
    recursion would be too deep for long chains.
    """
    order: dict[Operator, list[Operator]] = {}
    # an operator comes twice: first without producers, then after them, with them
    stack: list[tuple[Operator, list[Operator] | None]] = [(root, None)]
    while stack:
        operator, producers = stack.pop()
        if producers is not None:  # all of them are in ``order`` now
            order[operator] = producers
        elif operator not in order:
            expect_computable(operator)
            folded = _folded_operands(operator)
            producers = [c.operator for c in folded if c.elements is None]
            stack.append((operator, producers))
            stack += [(producer, None) for producer in producers]
    return order


def _folded_operands(operator: Operator) -> list[Folded]:
    """Return the operands that are results of other operators on constants."""
    return [v.constant for v in operator.inputs if isinstance(v.constant, Folded)]


def _operands(
    operator: Operator, results: dict[Operator, tuple[Array, ...]]
) -> list[Array]:
    """Return the operands of an operator, and keep those that ``_keep`` accepts.

    ``results`` has the results of all operators that were computed so far.
    """
    for constant in _folded_operands(operator):
        if constant.elements is None:
            _keep(constant, results[constant.operator][constant.index])
    return [_operand(value, results) for value in operator.inputs]


def _operand(value: Value, results: dict[Operator, tuple[Array, ...]]) -> Array:
    """Return the elements of an operand."""
    constant = value.constant
    if isinstance(constant, Folded) and constant.elements is None:
        return results[constant.operator][constant.index]
    return materialize(value)


def _release(
    producers: list[Operator],
    results: dict[Operator, tuple[Array, ...]],
    users: Counter[Operator],
) -> None:
    """Drop results that no further operator uses."""
    for producer in producers:
        users[producer] -= 1
        if users[producer] == 0:
            del results[producer]


def _keep(constant: Folded, array: Array) -> None:
    """Keep a small result for other users of the constant."""
    if array.nbytes <= KEPT_BYTES:
        constant.elements = array.copy()  # a small view must not keep a weight alive
