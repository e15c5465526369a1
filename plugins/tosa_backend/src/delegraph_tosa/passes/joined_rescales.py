"""Joins two RESCALEs of sums of int48, to int32 and then to int8."""

from __future__ import annotations

from collections import Counter

import numpy as np

from ..evaluate import materialize
from ..ir.graph import Array, Deferred, Graph, Operator, Value
from ..ir.operators import RESCALE
from ..ir.types import DType, Type
from ..spec import TosaSpec
from .rewriter import Rewrite, merge_sources, rebuilt

BITS = 15
"""Bits of a multiplier of a RESCALE of int48."""
FEWEST = 2
MOST = 62
"""The limits of a RESCALE's shift."""


def join_rescales(graph: Graph, spec: TosaSpec) -> Graph:
    """Join a RESCALE from int48 to int32 and one from there to int8.

    Nothing else may read the int32. before: CONV2D - RESCALE to int32, by a power of
    two - RESCALE to int8, by multipliers of 31 bits after: CONV2D - RESCALE to int8, by
    multipliers of 15 bits

    A multiplier of 15 bits is exact to 2**-16, so no int8 moves by more than 1/500 of a
    step. A result of int16 could move by half a step: there, the multiplier has to be a
    power of two. NPUs fuse the first RESCALE with the convolution only.
    """
    uses = Counter(
        [v for operator in graph.operators for v in operator.inputs] + graph.outputs
    )
    narrowed = {
        operator.outputs[0] for operator in graph.operators if _narrows(operator)
    }
    once = {
        operator for operator in graph.operators if _joins(operator, uses, narrowed)
    }
    if not once:
        return graph
    rewrite = Rewrite()
    for operator in graph.operators:
        new = rewrite.renewed(operator)
        rewrite.put(operator, _joined(new) if operator in once else new)
    return rewrite.graph(graph)


def _narrows(operator: Operator) -> bool:
    """Return whether ``operator`` rescales int48 to int32 without zero points."""
    if not isinstance(operator, RESCALE) or operator.inputs[0].dtype is not DType.INT48:
        return False
    return operator.outputs[0].dtype is DType.INT32 and all(
        _is_zero(v) for v in operator.inputs[3:]
    )


def _joins(operator: Operator, uses: Counter[Value], narrowed: set[Value]) -> bool:
    """Return whether ``operator`` rescales an int32 that only it reads.

    It rescales to int8, or to int16 by a power of two.
    """
    if not isinstance(operator, RESCALE):
        return False
    x, multiplier, _, before, _ = operator.inputs
    if x not in narrowed or uses[x] != 1 or not _is_zero(before):
        return False
    to = operator.outputs[0].dtype
    return to is DType.INT8 or (to is DType.INT16 and _is_power(multiplier))


def _is_zero(value: Value) -> bool:
    return value.constant is not None and not materialize(value).any()


def _is_power(multiplier: Value) -> bool:
    """Return whether the multipliers are in memory, and powers of two."""
    if isinstance(multiplier.constant, Deferred) or multiplier.constant is None:
        return False
    elements = materialize(multiplier).astype(np.int64)
    return not (elements & (elements - 1)).any()


def _joined(operator: Operator) -> Operator:
    """Return one RESCALE in place of ``operator`` and of the one before it."""
    first = operator.inputs[0].producer
    assert isinstance(first, RESCALE) and isinstance(operator, RESCALE)
    steps = [first.inputs[1:3], operator.inputs[1:3]]
    count = max(values[0].shape[0] for values in steps)

    def load(position: int, dtype: str) -> Deferred:
        return Deferred(lambda: _product(steps)[position].astype(dtype))

    multiplier = Value(Type((count,), DType.INT16), load(0, "int16"))
    shift = Value(Type((count,), DType.INT8), load(1, "int8"))
    new = rebuilt(
        operator,
        (first.inputs[0], multiplier, shift, first.inputs[3], operator.inputs[4]),
        [operator.outputs[0].type],
        source=merge_sources(first.source, operator.source),
        scale32=False,
        per_channel=count > 1,
    )
    new.outputs[0].name = operator.outputs[0].name
    return new


def _product(steps: list[tuple[Value, ...]]) -> tuple[Array, Array]:
    """Return the multipliers and shifts of the product of two ratios."""
    ratio: Array = np.ones(1)
    for multiplier, shift in steps:
        ratio = ratio * np.ldexp(
            materialize(multiplier).astype(np.float64),
            -materialize(shift).astype(np.int64),
        )
    fraction, exponent = np.frexp(ratio)
    whole = np.rint(np.ldexp(fraction, BITS)).astype(np.int64)
    # 1 where the fraction was rounded up to 1
    carried = whole >> BITS
    whole = whole >> carried
    shifts = BITS - (exponent + carried)
    lost = np.clip(shifts - MOST, 0, BITS + 1)
    whole = np.where(lost > 0, (whole + ((1 << lost) >> 1)) >> lost, whole)
    return whole, np.clip(shifts, FEWEST, MOST)
