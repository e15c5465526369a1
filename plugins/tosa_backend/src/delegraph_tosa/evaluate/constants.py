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
    if value.constant is None or isinstance(value.constant, Folded):
        raise InternalError("internal", f"{value!r} is not a constant")
    return value.constant.materialize()


def _folded(constant: Folded) -> Array:
    """Operands before users, each operator once.

    Values without further users are dropped.
    """
    if constant.elements is not None:
        return constant.elements
    order = _expression(constant.operator)
    users = Counter(below for operands in order.values() for below in operands)
    results: dict[Operator, tuple[Array, ...]] = {}
    with np.errstate(all="ignore"):
        for operator, below in order.items():
            results[operator] = compute(
                operator, _operands(operator, results), result_types(operator)
            )
            _release(below, results, users)
    _keep(constant, results[constant.operator][constant.index])
    return results[constant.operator][constant.index]


def _expression(root: Operator) -> dict[Operator, list[Operator]]:
    """Operators to compute, operands first -> the operators they use.

    A stack, since chains can be long.
    """
    order: dict[Operator, list[Operator]] = {}
    stack: list[tuple[Operator, list[Operator] | None]] = [(root, None)]
    while stack:
        operator, below = stack.pop()
        if below is not None:
            order[operator] = below
        elif operator not in order:
            expect_computable(operator)
            below = [
                c.operator for c in _folded_operands(operator) if c.elements is None
            ]
            stack.append((operator, below))
            stack += [(b, None) for b in below]
    return order


def _folded_operands(operator: Operator) -> list[Folded]:
    return [v.constant for v in operator.inputs if isinstance(v.constant, Folded)]


def _operands(
    operator: Operator, results: dict[Operator, tuple[Array, ...]]
) -> list[Array]:
    for constant in _folded_operands(operator):
        if constant.elements is None:
            _keep(constant, results[constant.operator][constant.index])
    return [_operand(value, results) for value in operator.inputs]


def _operand(value: Value, results: dict[Operator, tuple[Array, ...]]) -> Array:
    constant = value.constant
    if isinstance(constant, Folded) and constant.elements is None:
        return results[constant.operator][constant.index]
    return materialize(value)


def _release(
    below: list[Operator],
    results: dict[Operator, tuple[Array, ...]],
    users: Counter[Operator],
) -> None:
    for operator in below:
        users[operator] -= 1
        if not users[operator]:
            del results[operator]


def _keep(constant: Folded, array: Array) -> None:
    if array.nbytes <= KEPT_BYTES:
        constant.elements = array.copy()  # a small view must not keep a weight alive
