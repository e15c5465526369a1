"""Joins two RESCALEs of sums of int48, to int32 and then to int8."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from ..evaluate import materialize
from ..ir.graph import Array, Deferred, Graph, Operator, Value
from ..ir.operators import RESCALE
from ..ir.rescale_ratios import RescaleRatios, rescale_ratios
from ..ir.types import DType, Type
from ..spec import TosaSpec
from .rewriter import Rewrite, count_uses, merge_sources, with_operands

BITS = 15
"""Bits of a multiplier of a RESCALE of int48."""


def join_rescales(graph: Graph, spec: TosaSpec) -> Graph:
    """Join a RESCALE from int48 to int32 and one from there to int8.

    Nothing else may read the int32.

    before: CONV2D - RESCALE to int32, by a power of two
            - RESCALE to int8, by multipliers of 31 bits
    after:  CONV2D - RESCALE to int8, by multipliers of 15 bits

    A multiplier of 15 bits is exact to 2**-16, so no int8 moves by more than 1/500 of a
    step. A result of int16 could move by half a step: there, the multiplier has to be a
    power of two. NPUs fuse the first RESCALE with the convolution only.
    """
    uses = count_uses(graph)
    narrowed = {op.outputs[0] for op in graph.operators if _narrows(op)}
    joined = {op for op in graph.operators if _can_join(op, uses, narrowed)}
    if not joined:
        return graph
    rewrite = Rewrite()
    for operator in graph.operators:
        new = rewrite.with_new_operands(operator)
        rewrite.put(operator, _joined(new) if operator in joined else new)
    return rewrite.graph(graph)


def _narrows(operator: Operator) -> bool:
    """Return whether ``operator`` rescales int48 to int32 without zero points."""
    if not isinstance(operator, RESCALE):
        return False
    x, _, _, before, after = operator.inputs
    if x.dtype is not DType.INT48 or operator.outputs[0].dtype is not DType.INT32:
        return False
    return _is_zero(before) and _is_zero(after)


def _can_join(operator: Operator, uses: Counter[Value], narrowed: set[Value]) -> bool:
    """Return whether ``operator`` can be joined with the RESCALE before it.

    Only ``operator`` may read the result of that, one of ``narrowed``. It must rescale
    to int8, or to int16 by a power of two.
    """
    if not isinstance(operator, RESCALE):
        return False
    x, multiplier, _, before, _ = operator.inputs
    if x not in narrowed or uses[x] != 1 or not _is_zero(before):
        return False
    dtype = operator.outputs[0].dtype
    if dtype is DType.INT16:
        return _is_power_of_two(multiplier)
    return dtype is DType.INT8


def _is_power_of_two(multiplier: Value) -> bool:
    """Return whether all multipliers are in memory, and are powers of two."""
    if isinstance(multiplier.constant, Deferred) or multiplier.constant is None:
        return False
    elements = materialize(multiplier).astype(np.int64)
    return not (elements & (elements - 1)).any()


def _is_zero(value: Value) -> bool:
    """Return whether ``value`` is a constant of zeros."""
    return value.constant is not None and not materialize(value).any()


def _joined(operator: Operator) -> Operator:
    """Return one RESCALE in place of ``operator`` and of the one before it."""
    first = operator.inputs[0].producer
    assert isinstance(first, RESCALE) and isinstance(operator, RESCALE)
    x, *first_ratio, before, _ = first.inputs
    _, *second_ratio, _, after = operator.inputs
    ratios = [first_ratio, second_ratio]
    count = max(multiplier.shape[0] for multiplier, _ in ratios)

    # deferred, because ratios may not be known before a file is written
    def load_multiplier() -> Array:
        return _product(ratios).multiplier.astype(np.int16)

    def load_shift() -> Array:
        return _product(ratios).shift.astype(np.int8)

    multiplier = Value(Type((count,), DType.INT16), Deferred(load_multiplier))
    shift = Value(Type((count,), DType.INT8), Deferred(load_shift))
    return with_operands(
        operator,
        (x, multiplier, shift, before, after),
        merge_sources(first.source, operator.source),
        scale32=False,
        per_channel=count > 1,
    )


def _product(ratios: Sequence[Sequence[Value]]) -> RescaleRatios:
    """Return the product of ratios, each given by its multiplier and its shift."""
    product: Array = np.ones(1)
    for multiplier, shift in ratios:
        fractions = materialize(multiplier).astype(np.float64)
        exponents = -materialize(shift).astype(np.int64)
        product = product * np.ldexp(fractions, exponents)
    return rescale_ratios(product, BITS)
