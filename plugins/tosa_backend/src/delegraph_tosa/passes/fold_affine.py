"""Folds per-channel scales and offsets into a convolution.

Examples are batch norm, bias, and the 1/6 of a hard swish.
"""

from __future__ import annotations

from ..ir.graph import Folded, Graph, Operator, Value
from ..ir.operators import (
    ADD,
    CONCAT,
    CONV2D,
    CONV3D,
    DEPTHWISE_CONV2D,
    MUL,
    RESHAPE,
    SUB,
    TRANSPOSE,
    TRANSPOSE_CONV2D,
)
from ..ir.types import FLOATS, DType, Type
from ..spec import TosaSpec
from .rewriter import Rewrite, count_uses, merge_sources, operator_of, with_operands
from .view_axes import Shape

CONVOLUTIONS = frozenset({CONV2D, CONV3D, DEPTHWISE_CONV2D, TRANSPOSE_CONV2D})
AFFINE = frozenset({ADD, MUL, SUB})


def fold_affine(graph: Graph, spec: TosaSpec) -> Graph:
    """Fold operators with a constant per channel into constant convolutions.

    MUL, ADD and SUB after the convolution:
        before: CONV2D (w, b) - MUL k - ADD s
        after:  CONV2D (w * k, b * k + s)
    MUL before the convolution (zeros of padding stay zeros):
        before: MUL k - CONV2D (w, b)
        after:  CONV2D (w * k, b)

    This is done for floats only, since scales of integers are RESCALE, and only if
    intermediate results have no other use. A weight that is tied to an embedding is not
    multiplied: it would be stored twice. The new weight and bias are computed by the
    same operators on constants, so they are rounded in the same type. A MUL before a
    convolution remains, unused.
    """
    fold = _Fold(graph)
    for operator in graph.operators:
        fold.visit(operator)
    return fold.graph(graph)


class _Fold(Rewrite):
    """The new graph of ``fold_affine``."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._uses = count_uses(graph)
        # new convolution -> its index in ``operators``, where it may be replaced
        self._indices: dict[Operator, int] = {}
        # constants that a file contains anyhow, because other operators read them
        self._kept: set[Value] = set()
        for operator in graph.operators:
            if type(operator) not in CONVOLUTIONS:
                constants = [v for v in operator.inputs if v.constant is not None]
                self._kept.update(map(_before_layout, constants))

    def visit(self, operator: Operator) -> None:
        """Fold ``operator`` into the convolution before it, or append it.

        If ``operator`` is a convolution, the MUL before it is folded into it.
        """
        if type(operator) in AFFINE and self._fold(operator):
            return
        new = self.with_new_operands(operator)
        if type(operator) in CONVOLUTIONS:
            if self._uses[operator.inputs[0]] == 1:
                new = self._scaled(new)
            self._indices[new] = len(self.operators)
        self.put(operator, new)

    def _scaled(self, convolution: Operator) -> Operator:
        """Return ``convolution`` with the factor of the MUL before it in its weight.

        Returns ``convolution`` itself if there is no MUL that can be folded. Nothing
        else may use the result of the MUL.
        """
        x, weight, *others = convolution.inputs
        factor = x.producer
        if not isinstance(factor, MUL) or not self._takes_factor(weight, x):
            return convolution
        operand, constant = _sides(factor)
        if constant is None or operand.shape != x.shape:
            return convolution
        if not _is_per_channel(constant, x):
            return convolution
        shape = _operand_factor(convolution, constant.shape[-1])
        scale = self.reshape(constant, shape, factor.source)
        scaled_weight = self._apply(factor, weight, scale)
        source = merge_sources(factor.source, convolution.source)
        return with_operands(convolution, (operand, scaled_weight, *others), source)

    def _takes_factor(self, weight: Value, x: Value) -> bool:
        """Return whether ``weight`` may be multiplied by a factor of operand ``x``."""
        if weight.constant is None or x.dtype is not weight.dtype:
            return False
        if x.dtype is DType.FP16:
            # a weight times a small factor may be subnormal and lose digits
            return False
        if _before_layout(weight) in self._kept:
            # a weight tied to an embedding: the product would be stored in addition
            return False
        # a CONCAT of weights is written part by part from the model's memory; its
        # product with a factor would be computed as a whole, in new memory
        return not isinstance(operator_of(weight), CONCAT)

    def _fold(self, operator: Operator) -> bool:
        """Fold ``operator`` into the convolution before it, and return True.

        Returns False if that is not possible.
        """
        result, constant = _sides(operator)
        convolution = self.value(result).producer
        if constant is None or self._uses[result] != 1:
            return False
        if convolution is None or convolution not in self._indices:
            return False
        if not _is_per_channel(constant, self.value(result)):
            return False
        if not _changes_only_constants(operator, convolution):
            return False
        weight = convolution.inputs[1]
        if type(operator) is MUL and _before_layout(weight) in self._kept:
            return False
        self._replace(convolution, operator, constant)
        return True

    def _replace(
        self, convolution: Operator, operator: Operator, constant: Value
    ) -> None:
        """Replace ``convolution`` by one that includes ``operator``."""
        x, weight, bias, *zero_points = convolution.inputs
        channels = constant.shape[-1]
        if isinstance(operator, MUL):
            shape = _result_factor(convolution, channels)
            scale = self.reshape(constant, shape, operator.source)
            weight = self._apply(operator, weight, scale)
        offset = self.reshape(constant, (channels,), operator.source)
        bias = self._apply(operator, bias, offset)
        source = merge_sources(convolution.source, operator.source)
        new = with_operands(convolution, (x, weight, bias, *zero_points), source)
        new.outputs[0].name = operator.outputs[0].name
        index = self._indices.pop(convolution)
        self._indices[new] = index
        self.operators[index] = new
        self.forward(operator.outputs[0], new.outputs[0])

    def _apply(self, operator: Operator, left: Value, right: Value) -> Value:
        """Return the folded result of ``operator`` on two constants.

        ``left`` and ``right`` replace its first two operands. The third operand of a
        MUL, its shift, stays.
        """
        is_left_larger = right.shape[-1] == 1 or left.rank > 1
        shape = left.shape if is_left_larger else right.shape
        operands = (left, right, *operator.inputs[2:])
        type_ = Type(shape, left.dtype)
        return self.make(type(operator), operands, type_, operator.source)


def _before_layout(constant: Value) -> Value:
    """Return ``constant`` before the RESHAPEs and TRANSPOSEs that are applied to it.

    All constants with the same elements in another layout return the same value.
    """
    while isinstance(constant.constant, Folded):
        operator = constant.constant.operator
        if not isinstance(operator, (RESHAPE, TRANSPOSE)):
            break
        constant = operator.inputs[0]
    return constant


def _sides(operator: Operator) -> tuple[Value, Value | None]:
    """Return (operand, constant) of a binary operator.

    The constant is None if no operand is constant. It is also None for a SUB of the
    operand from a constant.
    """
    left, right = operator.inputs[:2]
    if right.constant is not None:
        return left, right
    if left.constant is None or type(operator) is SUB:
        return right, None
    return right, left


def _is_per_channel(constant: Value, result: Value) -> bool:
    """Return whether ``result`` has floats, and ``constant`` a number per channel.

    Channels are the last axis. One number for all channels is enough.
    """
    if result.dtype not in FLOATS:
        return False
    *others, channels = constant.shape
    return channels in (1, result.shape[-1]) and all(size == 1 for size in others)


def _changes_only_constants(operator: Operator, convolution: Operator) -> bool:
    """Return whether folding changes only constants of the result's type.

    MUL changes weight and bias, ADD and SUB the bias.
    """
    _, weight, bias, *_ = convolution.inputs
    changed = [weight, bias] if isinstance(operator, MUL) else [bias]
    dtype = operator.outputs[0].dtype
    return all(v.constant is not None and v.dtype is dtype for v in changed)


def _result_factor(convolution: Operator, channels: int) -> Shape:
    """Return the shape in which a factor per output channel broadcasts.

    The weight is [O,..], or depthwise [KH,KW,C,M].
    """
    weight = convolution.inputs[1]
    if channels > 1 and isinstance(convolution, DEPTHWISE_CONV2D):
        return (1, 1, *weight.shape[2:])
    return (channels, *(1,) * (weight.rank - 1))


def _operand_factor(convolution: Operator, channels: int) -> Shape:
    """Return the shape in which a factor per input channel broadcasts.

    The weight is [..,C], or depthwise [KH,KW,C,M].
    """
    if isinstance(convolution, DEPTHWISE_CONV2D):
        return (1, 1, channels, 1)
    weight = convolution.inputs[1]
    return (*(1,) * (weight.rank - 1), channels)
