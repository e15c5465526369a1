"""Keeps int8 constants of rescaled operands, and rescales them at run time."""

from __future__ import annotations

import math
from collections.abc import Collection

from ..ir.dynamic_sizes import range_of
from ..ir.graph import Folded, Graph, Operator, Value
from ..ir.operators import ADD, MUL, RESCALE, RESHAPE, SUB
from ..ir.types import DType, Type
from ..spec import TosaSpec
from .rewriter import Rewrite, operator_of, rebuilt, sweep, with_operands

BINARY = frozenset({ADD, MUL, SUB})
COPIES = frozenset({"u55", "u65"})
"""Devices that copy an int8 constant if a product rescales it."""
LEAST_ELEMENTS = 4096
"""If a result has fewer elements, a RESCALE costs more than it saves."""


def narrow_constants(graph: Graph, spec: TosaSpec) -> Graph:
    """Unfold the RESCALE of an int8 constant if the other operand is rescaled too.

    before: MUL (RESCALE x, a constant of int32)
    after:  MUL (RESCALE x, RESCALE a constant of int8)

    NPUs fuse the RESCALE of both operands with the operator (Vela: a layer norm of 197
    x 192 elements and its gain take 140,000 cycles less). The constant takes a quarter
    of the bytes.

    Results of less than LEAST_ELEMENTS are left alone, except on NPUs. If a U55 adds an
    int32 constant, it does not fuse the RESCALE of the other operand either. If that is
    a slice, it even widens the whole sliced tensor (first step of an LSTM: 1,280
    elements for 128). Small products are left alone on U55 and U65, which would copy
    the constant (a detector of 81,200 cycles took 15,700 more).
    """
    at_any_size = _narrowed_at_any_size(spec)

    def change(operator: Operator, rewrite: Rewrite) -> Operator:
        least = 1 if type(operator) in at_any_size else LEAST_ELEMENTS
        if type(operator) not in BINARY or not _is_worth_it(operator, least):
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
    return with_operands(operator, operands)


def _narrowed_at_any_size(spec: TosaSpec) -> Collection[type[Operator]]:
    """Return the operators that get int8 constants even for small results."""
    if not spec.devices:
        return ()
    return (ADD, SUB) if spec.devices & COPIES else BINARY


def _is_worth_it(operator: Operator, least: int) -> bool:
    """Return whether an operand is rescaled int8, and the result is large.

    A large result has at least ``least`` elements.
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

    None unless ``value`` is a folded RESCALE of an int8 constant, perhaps reshaped.
    """
    if not isinstance(value.constant, Folded):
        return None
    operator = operator_of(value)
    # the constant is reshaped before the new RESCALE instead of after it
    while isinstance(operator, RESHAPE):
        operator = operator_of(operator.inputs[0])
    if operator is None or not _widens(operator):
        return None
    x, *others = operator.inputs
    narrow = Rewrite().reshape(x, value.shape, operator.source)
    return rebuilt(operator, (narrow, *others), [Type(value.shape, DType.INT32)])
