"""Products by a transposed matrix: TOSA 1.1 has an operator for them."""

from __future__ import annotations

from ..ir.graph import Graph, Operator, Value
from ..ir.operators import MATMUL, MATMUL_T, RESHAPE, TRANSPOSE
from ..ir.types import Type
from ..spec import TosaSpec
from .rewriter import Rewrite, both, sweep


def transpose_products(graph: Graph, spec: TosaSpec) -> Graph:
    """Let MATMUL_T take what a TRANSPOSE of the last two axes makes for a MATMUL, if the target has it.

    before: MATMUL (a, TRANSPOSE (0,2,1) b)
    after:  MATMUL_T (a, b)

    A RESHAPE in between may join leading axes. A TRANSPOSE that nothing else uses is left without use.
    """
    return sweep(graph, lambda operator, rewrite: _transposed(operator, rewrite, spec))


def _transposed(product: Operator, rewrite: Rewrite, spec: TosaSpec) -> Operator:
    """The MATMUL_T for a MATMUL; itself if its right operand is not transposed, or the target has none."""
    if type(product) is not MATMUL:
        return product
    left, right, *zeros = product.inputs
    before = right.producer
    if isinstance(before, RESHAPE):
        before = before.inputs[0].producer
    if not isinstance(before, TRANSPOSE) or not _swaps_last(before.perms):
        return product
    batch, depth, width = right.shape
    if before.outputs[0].shape[-2:] != (depth, width):
        return product
    source = both(before.source, product.source)
    matrix = Value(Type((batch, width, depth), right.dtype))
    new = MATMUL_T((left, matrix, *zeros), source, **product.attribute_values())
    new.outputs = (Value(product.outputs[0].type, name=product.outputs[0].name, producer=new),)
    if spec.why_not(new) is not None:
        return product
    new.inputs = (left, rewrite.reshape(before.inputs[0], matrix.shape, source), *zeros)
    return new


def _swaps_last(perms: tuple[int, ...]) -> bool:
    rank = len(perms)
    return perms == (*range(rank - 2), rank - 1, rank - 2)
