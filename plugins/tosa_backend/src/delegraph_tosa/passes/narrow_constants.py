"""Keeps int8 constants of rescaled operands, and rescales them at run time."""

from __future__ import annotations

import math
from collections.abc import Collection

from ..ir.dynamic_sizes import range_of
from ..ir.graph import Folded, Graph, Operator, Value
from ..ir.operators import ADD, MUL, RESCALE, RESHAPE, SUB
from ..ir.types import DType, Type
from ..spec import TosaSpec
from .rewriter import Rewrite, origin, rebuilt, replaced, sweep

MEETING = frozenset({ADD, MUL, SUB})
COPIES = frozenset({"u55", "u65"})
"""Device words of targets that copy a small constant to scale it for a product."""
LEAST_ELEMENTS = 4096
"""The fewest elements of a result. A RESCALE would cost more than it saves."""


def narrow_constants(graph: Graph, spec: TosaSpec) -> Graph:
    """Unfold the RESCALE of an int8 constant if the other operand is rescaled too.

    before: MUL (RESCALE x, a constant of int32)
    after:  MUL (RESCALE x, RESCALE a constant of int8)

    NPUs fuse the RESCALE of both operands with the operator (Vela: a layer norm of 197
    x 192 elements and its gain take 140,000 cycles less). The constant takes a quarter
    of the bytes.

    A U55 that adds an int32 constant fuses neither operand, and widens the whole tensor
    of which the other is a slice (first step of an LSTM: 1,280 elements for 128). So
    NPUs get this in small sums as well, but not in small products, for which a U55
    copies the constant (a detector of 81,200 cycles took 15,700 more).
    """
    small = _small(spec)

    def change(operator: Operator, rewrite: Rewrite) -> Operator:
        least = 1 if type(operator) in small else LEAST_ELEMENTS
        if type(operator) not in MEETING or not _is_worth_it(operator, least):
            return operator
        return _narrowed(operator, rewrite)

    return sweep(graph, change)


def _narrowed(operator: Operator, rewrite: Rewrite) -> Operator:
    """Return ``operator`` with a RESCALE of its constant.

    The RESCALE is added to ``rewrite``. Returns ``operator`` itself if it has no such
    constant.
    """
    operands: list[Value] = []
    for value in operator.inputs:
        rescale = _rescale_of(value)
        if rescale is None:
            operands.append(value)
        else:
            rewrite.operators.append(rescale)
            operands.append(rescale.outputs[0])
    if tuple(operands) == operator.inputs:
        return operator
    return replaced(operator, operands)


def _small(spec: TosaSpec) -> Collection[type[Operator]]:
    """Return the operators that get int8 constants even for small results."""
    if not spec.devices:
        return ()
    return (ADD, SUB) if spec.devices & COPIES else MEETING


def _is_worth_it(operator: Operator, least: int) -> bool:
    """Return whether the result is large and an operand is rescaled int8.

    It must have at least ``least`` elements.
    """
    fewest, _ = range_of(math.prod(operator.outputs[0].shape))
    if fewest < least:
        return False
    return any(_widens(value.producer) for value in operator.inputs)


def _widens(operator: Operator | None) -> bool:
    """Return whether ``operator`` is a RESCALE from int8 to int32 with one scale."""
    if not isinstance(operator, RESCALE) or operator.per_channel:
        return False
    x = operator.inputs[0]
    result = operator.outputs[0]
    return x.dtype is DType.INT8 and result.dtype is DType.INT32


def _rescale_of(value: Value) -> Operator | None:
    """Return a new RESCALE that computes ``value`` from an int8 constant.

    None unless ``value`` is such a RESCALE, folded.
    """
    if not isinstance(value.constant, Folded):
        return None
    operator = origin(value)
    while isinstance(operator, RESHAPE):
        operator = origin(operator.inputs[0])
    if operator is None or not _widens(operator):
        return None
    x, *others = operator.inputs
    narrow = Rewrite().reshape(x, value.shape, operator.source)
    return rebuilt(operator, (narrow, *others), [Type(value.shape, DType.INT32)])
