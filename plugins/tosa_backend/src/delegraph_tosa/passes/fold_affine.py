"""Folds per-channel scales and offsets into a convolution.

Examples are batch norm, bias, and the 1/6 of a hard swish.
"""

from __future__ import annotations

from collections import Counter

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
from .rewriter import Rewrite, merge_sources, origin, replaced
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
    same operators on constants, so they are rounded in the same type. The new
    convolution has the sources of all folded operators. The MUL before a convolution
    remains, unused.
    """
    fold = _Fold(graph)
    for operator in graph.operators:
        fold.visit(operator)
    return fold.graph(graph)


class _Fold(Rewrite):
    """The new graph of ``fold_affine``."""

    def __init__(self, graph: Graph) -> None:
        """``_places`` maps a new convolution to its position in ``operators``.

        It may still be replaced there.
        """
        super().__init__()
        self._uses = Counter(v for operator in graph.operators for v in operator.inputs)
        self._uses.update(graph.outputs)
        self._places: dict[Operator, int] = {}
        others = [
            operator
            for operator in graph.operators
            if type(operator) not in CONVOLUTIONS
        ]
        self._kept = {
            _stored(v)
            for operator in others
            for v in operator.inputs
            if v.constant is not None
        }
        """Constants that are stored as they are, because other operators read them."""

    def visit(self, operator: Operator) -> None:
        """Fold ``operator`` into the convolution before it, or append it.

        A MUL before it is folded into it.
        """
        if type(operator) in AFFINE and self._folded(operator):
            return
        new = self.renewed(operator)
        if type(operator) in CONVOLUTIONS:
            new = self._scaled(new, self._uses[operator.inputs[0]])
            self._places[new] = len(self.operators)
        self.put(operator, new)

    def _scaled(self, convolution: Operator, uses: int) -> Operator:
        """Return ``convolution`` with the factor of a MUL before it in its weight.

        Itself if there is none to fold. ``uses`` is the number of uses of its operand.
        """
        x, weight, *others = convolution.inputs
        factor = x.producer
        if (
            not isinstance(factor, MUL)
            or uses != 1
            or weight.constant is None
            or x.dtype is not weight.dtype
        ):
            return convolution
        operand, constant = _sides(factor)
        if (
            constant is None
            or operand.shape != x.shape
            or not _of_channels(constant, x)
            or x.dtype is DType.FP16
        ):
            # fp16: a weight times a small factor may be subnormal and lose digits
            return convolution
        if _stored(weight) in self._kept:
            # a weight tied to an embedding: the product would be stored in addition
            return convolution
        if isinstance(origin(weight), CONCAT):
            # joined weights are written part by part from the model's memory; a product
            # would need memory for all
            return convolution
        shape = _operand_factor(convolution, constant.shape[-1])
        weight = self._apply(
            factor, weight, self.reshape(constant, shape, factor.source)
        )
        return replaced(
            convolution,
            (operand, weight, *others),
            merge_sources(factor.source, convolution.source),
        )

    def _folded(self, operator: Operator) -> bool:
        """Fold ``operator`` into the convolution before it.

        Returns whether that was possible.
        """
        result, constant = _sides(operator)
        convolution = self.value(result).producer
        if (
            constant is None
            or self._uses[result] != 1
            or convolution not in self._places
        ):
            return False
        if not _of_channels(constant, self.value(result)) or not _constant(
            operator, convolution
        ):
            return False
        if type(operator) is MUL and _stored(convolution.inputs[1]) in self._kept:
            return False
        self._replace(convolution, operator, constant)
        return True

    def _replace(
        self, convolution: Operator, operator: Operator, constant: Value
    ) -> None:
        """Replace ``convolution`` by one that includes ``operator``."""
        x, weight, bias, *zero_points = convolution.inputs
        if isinstance(operator, MUL):
            scale = self.reshape(
                constant,
                _result_factor(convolution, constant.shape[-1]),
                operator.source,
            )
            weight = self._apply(operator, weight, scale)
        bias = self._apply(
            operator, bias, self.reshape(constant, constant.shape[-1:], operator.source)
        )
        source = merge_sources(convolution.source, operator.source)
        new = replaced(convolution, (x, weight, bias, *zero_points), source)
        new.outputs[0].name = operator.outputs[0].name
        place = self._places.pop(convolution)
        self._places[new], self.operators[place] = place, new
        self._values[operator.outputs[0]] = new.outputs[0]

    def _apply(self, operator: Operator, left: Value, right: Value) -> Value:
        """Return ``operator`` on two constants, folded.

        The shift operand of MUL stays.
        """
        shape = left.shape if right.shape[-1] == 1 or left.rank > 1 else right.shape
        return self.make(
            type(operator),
            (left, right, *operator.inputs[2:]),
            Type(shape, left.dtype),
            operator.source,
        )


def _stored(constant: Value) -> Value:
    """Return the constant that ``constant`` is another layout of.

    Itself if it has elements of its own.
    """
    while isinstance(constant.constant, Folded) and isinstance(
        constant.constant.operator, (RESHAPE, TRANSPOSE)
    ):
        constant = constant.constant.operator.inputs[0]
    return constant


def _sides(operator: Operator) -> tuple[Value, Value | None]:
    """Return (operand, constant) of a binary operator.

    The constant is None if there is none, or if it is the left of SUB.
    """
    left, right = operator.inputs[:2]
    if right.constant is not None:
        return left, right
    return right, (
        left if left.constant is not None and type(operator) is not SUB else None
    )


def _of_channels(constant: Value, result: Value) -> bool:
    """Return whether ``result`` has floats and ``constant`` fits its channels.

    It has one element, or one for each channel (last axis).
    """
    *others, channels = constant.shape
    return (
        result.dtype in FLOATS
        and channels in (1, result.shape[-1])
        and all(size == 1 for size in others)
    )


def _constant(operator: Operator, convolution: Operator) -> bool:
    """Return whether folding changes only constants of the result's type.

    MUL changes weight and bias, ADD and SUB the bias.
    """
    changed = (
        convolution.inputs[1:3]
        if isinstance(operator, MUL)
        else convolution.inputs[2:3]
    )
    return all(
        v.constant is not None and v.dtype is operator.outputs[0].dtype for v in changed
    )


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
    return (*(1,) * (convolution.inputs[1].rank - 1), channels)
