"""Matrix products.

A product with a constant matrix is a CONV2D with a 1x1 kernel. Unlike MATMUL, it takes
torch's weight [O,I] without a transpose, and adds the bias. Two matrices that are
computed at run time go into a MATMUL.
"""

from __future__ import annotations

import math

import torch
from delegraph.errors import Unsupported

from ...evaluate import materialize
from ...ir.graph import Value
from ...ir.operators import CONV2D, MATMUL
from ...ir.types import FLOAT8, DType
from ..builder import Shape, Tosa
from ..float8 import takes_float8, widened
from ..promotion import converted
from ..registry import lowers
from ..torch_values.tensor_types import dtype_of
from .elementwise import product, scaled, sum_of
from .shape import expanded

aten = torch.ops.aten
MOST_TERMS = 1 << 17
"""The sum of so many products (-128) * (-128) does not fit into int32: 2^17 * 2^14."""


def affine(t: Tosa, x: Value, weight: Value, bias: Value | None) -> Value:
    """x [*S,I], weight [O,I], bias [O] -> x @ weight.T + bias [*S,O]"""
    if weight.constant is None:
        y = _product(t, x, t.transpose(weight, (1, 0)))
        return y if bias is None else t.add(y, bias)
    outputs, inputs = weight.shape
    image = t.reshape(x, _image_shape(x.shape))
    kernel = t.reshape(weight, (outputs, 1, 1, inputs))
    if bias is None:
        bias = t.no_bias(x)
    y = t.conv2d(image, kernel, bias, pad=(0, 0, 0, 0), stride=(1, 1), dilation=(1, 1))
    return t.reshape(y, (*x.shape[:-1], outputs))


def _image_shape(shape: Shape) -> Shape:
    """Return the shape [N,1,W,I] in which x [*S,I] is an image for CONV2D.

    The vectors [I] lie along the width. Along the height, code from Vela, the compiler
    of Ethos-U, takes twice the cycles. If ``S`` has one or two axes, the reshape only
    adds axes of size 1, which costs nothing.
    """
    *leading, inputs = shape
    if len(leading) == 2:
        batch, width = leading
    else:
        batch = 1
        width = math.prod(leading)
    return (batch, 1, width, inputs)


def _product(t: Tosa, x: Value, matrix: Value) -> Value:
    """x [*S,K], matrix [K,M] -> [*S,M] by MATMUL"""
    depth, width = matrix.shape
    rows = math.prod(x.shape[:-1])
    left = t.reshape(x, (1, rows, depth))
    y = t.matmul(left, t.ranked(matrix, 3))
    return t.reshape(y, (*x.shape[:-1], width))


def times_matrix(t: Tosa, x: Value, matrix: Value, bias: Value | None = None) -> Value:
    """x [*S,K], matrix [K,M], bias [M] -> [*S,M]"""
    return affine(t, x, t.transpose(matrix, (1, 0)), bias)


def batched_product(t: Tosa, left: Value, right: Value) -> Value:
    """left [*B,L,K], right [*B,K,M], batches that broadcast -> [*B,L,M]"""
    batch = broadcast(left.shape[:-2], right.shape[:-2])
    left_batch = _in_batch(t, left, batch)
    right_batch = _in_batch(t, right, batch)
    y = t.matmul(left_batch, right_batch)
    return t.reshape(y, (*batch, left.shape[-2], right.shape[-1]))


def broadcast(left: Shape, right: Shape) -> Shape:
    """Return the shape to which both shapes broadcast: [5, 1] and [3] -> [5, 3]."""
    rank = max(len(left), len(right))
    left = (1,) * (rank - len(left)) + left
    right = (1,) * (rank - len(right)) + right
    return tuple([max(a, b) for a, b in zip(left, right, strict=True)])


def _in_batch(t: Tosa, x: Value, batch: Shape) -> Value:
    """x [*B',L,K] -> [B,L,K]: B' is broadcast to the axes ``batch``, which become one."""
    matrix = x.shape[-2:]
    x = expanded(t, x, (*batch, *matrix))
    return t.reshape(x, (math.prod(batch), *matrix))


@lowers(aten.linear.default)
def linear(t: Tosa, input: Value, weight: Value, bias: Value | None) -> Value:
    """input [*S,I], weight [O,I] or [I], bias [O] -> [*S,O] or [*S]"""
    t.expect_one_type("a matrix product", input, weight, bias)
    if weight.rank == 2:
        return affine(t, input, weight, bias)
    row = t.ranked(weight, 2)
    if bias is not None:
        bias = t.reshape(bias, (1,))
    y = affine(t, input, row, bias)
    return t.reshape(y, input.shape[:-1])


@lowers(aten.matmul.default)
def matmul(t: Tosa, self: Value, other: Value) -> Value:
    """[*B,L,K], [*B,K,M] -> [*B,L,M]; a vector is a row on the left and a column on the
    right
    """
    t.expect_one_type("a matrix product", self, other)
    left = t.ranked(self, max(self.rank, 2))
    right = other if other.rank > 1 else t.reshape(other, (*other.shape, 1))
    if right.rank == 2:
        y = times_matrix(t, left, right)
    else:
        y = batched_product(t, left, right)
    *batch, rows, columns = y.shape
    result = list(batch)
    # the result has no axis for a vector's added one
    if self.rank > 1:
        result.append(rows)
    if other.rank > 1:
        result.append(columns)
    return t.reshape(y, result)


@lowers(aten.mm.default)
def mm(t: Tosa, self: Value, mat2: Value) -> Value:
    """[L,K], [K,M] -> [L,M]"""
    t.expect_one_type("a matrix product", self, mat2)
    return times_matrix(t, self, mat2)


@lowers(aten.bmm.default)
def bmm(t: Tosa, self: Value, mat2: Value) -> Value:
    """[B,L,K], [B,K,M] -> [B,L,M]"""
    t.expect_one_type("a matrix product", self, mat2)
    return t.matmul(self, mat2)


@lowers(aten.addmm.default)
def addmm(
    t: Tosa, self: Value, mat1: Value, mat2: Value, beta: float, alpha: float
) -> Value:
    """self [L,M], mat1 [L,K], mat2 [K,M] -> [L,M]; beta * self + alpha * mat1 @ mat2"""
    t.expect_one_type("a matrix product", self, mat1, mat2)
    if alpha == beta == 1 and self.shape == mat2.shape[1:]:
        return times_matrix(t, mat1, mat2, self)
    return _added(t, self, times_matrix(t, mat1, mat2), beta, alpha)


@lowers(aten.baddbmm.default)
def baddbmm(
    t: Tosa, self: Value, batch1: Value, batch2: Value, beta: float, alpha: float
) -> Value:
    """self [B,L,M], batch1 [B,L,K], batch2 [B,K,M] -> [B,L,M]; beta * self + alpha *
    batch1 @ batch2
    """
    t.expect_one_type("a matrix product", self, batch1, batch2)
    return _added(t, self, t.matmul(batch1, batch2), beta, alpha)


@lowers(aten.addbmm.default)
def addbmm(
    t: Tosa, self: Value, batch1: Value, batch2: Value, beta: float, alpha: float
) -> Value:
    """self [L,M], batch1 [B,L,K], batch2 [B,K,M] -> [L,M]; beta * self + alpha * the
    sum of batch1 @ batch2
    """
    t.expect_one_type("a matrix product", self, batch1, batch2)
    batch, rows, depth = batch1.shape
    # the sum over the batch is one product of matrices [L,B*K] and [B*K,M]
    rows_first = t.transpose(batch1, (1, 0, 2))
    left = t.reshape(rows_first, (rows, batch * depth))
    right = t.reshape(batch2, (batch * depth, batch2.shape[2]))
    y = _product(t, left, right)
    return _added(t, self, y, beta, alpha)


@lowers(aten.bilinear.default)
def bilinear(
    t: Tosa, input1: Value, input2: Value, weight: Value, bias: Value | None
) -> Value:
    """input1 [*S,A], input2 [*S,B], weight [O,A,B], bias [O] -> [*S,O]; input1 @
    weight[o] @ input2 for each o
    """
    t.expect_one_type("a matrix product", input1, input2, weight, bias)
    outputs, first, second = weight.shape
    lead = input1.shape[:-1]
    rows = math.prod(lead)
    # input1 @ weight[o] for all o at once, [rows,O,B]; then each row is multiplied by
    # its input2 [rows,B,1]
    matrix = t.reshape(t.transpose(weight, (1, 0, 2)), (first, outputs * second))
    left = t.reshape(_product(t, input1, matrix), (rows, outputs, second))
    right = t.reshape(input2, (rows, second, 1))
    y = t.reshape(t.matmul(left, right), (*lead, outputs))
    return y if bias is None else sum_of(t, y, bias, 1)


@lowers(aten._int_mm.default)
def _int_mm(t: Tosa, self: Value, mat2: Value) -> Value:
    """int8 [L,K], mat2 int8 [K,M] -> int32 [L,M]"""
    rows, depth = self.shape
    columns = mat2.shape[1]
    t.refuse_unless(
        depth < MOST_TERMS, f"a sum of {depth} products of int8 may not fit into int32"
    )
    if mat2.constant is None:
        y = _matmul_returning(t, self, mat2, DType.INT32)
        return t.reshape(y, (rows, columns))
    image = t.reshape(self, _image_shape(self.shape))
    kernel = t.reshape(t.transpose(mat2, (1, 0)), (columns, 1, 1, depth))
    bias = t.constant(0, DType.INT32)
    y = t.emit(
        CONV2D,
        (image, kernel, bias, *t.zeros(image, kernel)),
        pad=(0, 0, 0, 0),
        stride=(1, 1),
        dilation=(1, 1),
        acc_type=DType.INT32,
    )
    return t.reshape(y, (rows, columns))


def _matmul_returning(t: Tosa, left: Value, right: Value, dtype: DType) -> Value:
    """left [L,K], right [K,M] -> [1,L,M], a MATMUL that returns ``dtype``."""
    left = t.ranked(left, 3)
    right = t.ranked(right, 3)
    return t.emit(MATMUL, (left, right, *t.zeros(left, right)), dtype=dtype)


@lowers(aten._scaled_mm.default)
@takes_float8
def _scaled_mm(
    t: Tosa,
    self: Value,
    mat2: Value,
    scale_a: Value,
    scale_b: Value,
    bias: Value | None,
    scale_result: Value | None,
    out_dtype: torch.dtype | None,
    use_fast_accum: bool,
) -> Value:
    """fp8 self [L,K], mat2 [K,M], fp32 scales, bias [M] -> [L,M]

    Scales belong to tensors, or to rows [L,1] and columns [1,M].
    """
    dtype = self.dtype if out_dtype is None else dtype_of(out_dtype)
    # torch ignores the scale of a result that is not fp8
    scales_result = scale_result is not None and dtype in FLOAT8
    have_fp32_scales = scale_a.dtype is scale_b.dtype is DType.FP32
    t.refuse_unless(
        have_fp32_scales and not scales_result,
        "scales of results or of blocks are not lowered",
    )
    scales = [scale for scale in (scale_a, scale_b) if not _is_one(scale)]
    is_plain = not scales and bias is None and self.dtype is mat2.dtype
    if use_fast_accum and is_plain and dtype is DType.FP16:
        # MATMUL of fp8 returns fp16
        y = _matmul_returning(t, self, mat2, DType.FP16)
        return t.reshape(y, (self.shape[0], mat2.shape[1]))
    y = times_matrix(t, widened(t, self), widened(t, mat2))
    for scale in scales:
        factor = scale if scale.rank == 2 else t.reshape(scale, (1, 1))
        y = t.mul(y, factor)
    if bias is not None:
        y = t.add(y, converted(t, bias, DType.FP32))
    return converted(t, y, dtype)


def _is_one(scale: Value) -> bool:
    """Return whether ``scale`` is known to be 1."""
    if scale.constant is None or math.prod(scale.shape) != 1:
        return False
    try:
        return bool(materialize(scale).item() == 1)
    # in a program without weights, the elements of constants are not known
    except Unsupported:
        return False


def _added(t: Tosa, self: Value, y: Value, beta: float, alpha: float) -> Value:
    """Return beta * self + alpha * y.

    If beta is 0, ``self`` is not read, as in torch: a NaN there has no effect.
    """
    if alpha != 1:
        y = product(t, y, alpha)
    if beta == 0:
        return y
    return sum_of(t, y, scaled(t, self, beta), 1)
