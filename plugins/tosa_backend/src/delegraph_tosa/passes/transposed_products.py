"""Replaces products with transposed matrices by MATMUL_T, an operator of TOSA 1.1."""

from __future__ import annotations

from ..ir.graph import Graph, Operator, Value
from ..ir.operators import MATMUL, MATMUL_T, RESHAPE, TRANSPOSE
from ..ir.types import Type
from ..spec import TosaSpec
from .rewriter import Rewrite, merge_sources, sweep


def transpose_products(graph: Graph, spec: TosaSpec) -> Graph:
    """Replace a MATMUL of a transposed right operand by MATMUL_T.

    The target must have MATMUL_T.

    before: MATMUL (a, TRANSPOSE (0,2,1) b)
    after:  MATMUL_T (a, b)

    A RESHAPE in between may join leading axes. The TRANSPOSE remains; ``drop_dead``
    removes it if it has no other use.
    """

    def change(operator: Operator, rewrite: Rewrite) -> Operator:
        if type(operator) is not MATMUL:
            return operator
        return _as_matmul_t(operator, rewrite, spec)

    return sweep(graph, change)


def _as_matmul_t(product: Operator, rewrite: Rewrite, spec: TosaSpec) -> Operator:
    """Return a MATMUL_T that equals ``product``, or ``product`` itself."""
    left, right, *zeros = product.inputs
    before = right.producer
    if isinstance(before, RESHAPE):
        before = before.inputs[0].producer
    if not isinstance(before, TRANSPOSE) or not _swaps_last(before.perms):
        return product
    batch, depth, width = right.shape
    # a RESHAPE between them may change the axes of batches only
    if before.outputs[0].shape[-2:] != (depth, width):
        return product
    source = merge_sources(before.source, product.source)
    result = product.outputs[0]
    # the matrix is reshaped only if the target supports the product
    stand_in = Value(Type((batch, width, depth), right.dtype))
    attributes = product.attribute_values()
    new = MATMUL_T((left, stand_in, *zeros), source, **attributes)
    new.outputs = (Value(result.type, name=result.name, producer=new),)
    if spec.why_not(new) is not None:
        return product
    matrix = rewrite.reshape(before.inputs[0], stand_in.shape, source)
    new.inputs = (left, matrix, *zeros)
    return new


def _swaps_last(perms: tuple[int, ...]) -> bool:
    """Return whether ``perms`` only exchanges the last two axes."""
    rank = len(perms)
    return perms == (*range(rank - 2), rank - 1, rank - 2)
