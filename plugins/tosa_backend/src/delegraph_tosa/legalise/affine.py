"""Scales and offsets of channels become part of the convolution before them: batch norm, bias, output scale."""

from __future__ import annotations

from collections import Counter

from ..ir.graph import Graph, Operator, Value
from ..ir.operators import ADD, CONV2D, CONV3D, DEPTHWISE_CONV2D, MUL, SUB, TRANSPOSE_CONV2D
from ..ir.types import FLOATS, Type
from ..spec import TosaSpec
from .axes import Shape
from .rewrite import Rewrite, both, replaced

CONVOLUTIONS = frozenset({CONV2D, CONV3D, DEPTHWISE_CONV2D, TRANSPOSE_CONV2D})
AFFINE = frozenset({ADD, MUL, SUB})


def fold_affine(graph: Graph, spec: TosaSpec) -> Graph:
    """Fold MUL, ADD and SUB by a constant for each output channel into the convolution before them.

    before: CONV2D (w, b) - MUL k - ADD s
    after:  CONV2D (w * k, b * k + s)

    Only where nothing else uses what lies between, and only for floats: scales of integers are RESCALE. The folded
    operators are the ones that were there, on the same element types. The new convolution stands for all of them.
    """
    fold = _Fold(graph)
    for operator in graph.operators:
        fold.visit(operator)
    return Graph(graph.inputs, [fold.value(v) for v in graph.outputs], fold.operators, graph.name)


class _Fold(Rewrite):
    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._uses = Counter(v for operator in graph.operators for v in operator.inputs)
        self._uses.update(graph.outputs)
        self._values: dict[Value, Value] = {}
        self._places: dict[Operator, int] = {}

    def value(self, old: Value) -> Value:
        return self._values.get(old, old)

    def visit(self, operator: Operator) -> None:
        if type(operator) in AFFINE and self._folded(operator):
            return
        if not self._values.keys().isdisjoint(operator.inputs):
            new = replaced(operator, [self.value(v) for v in operator.inputs])
            self._values.update(zip(operator.outputs, new.outputs, strict=True))
            operator = new
        if type(operator) in CONVOLUTIONS:
            self._places[operator] = len(self.operators)
        self.operators.append(operator)

    def _folded(self, operator: Operator) -> bool:
        """Put ``operator`` into the convolution whose result it takes, if it can be."""
        result, constant = _sides(operator)
        convolution = self.value(result).producer
        if constant is None or self._uses[result] != 1 or convolution not in self._places:
            return False
        if not _of_channels(constant, self.value(result)) or not _constant(operator, convolution):
            return False
        self._replace(convolution, operator, constant)
        return True

    def _replace(self, convolution: Operator, operator: Operator, constant: Value) -> None:
        x, weight, bias, *zero_points = convolution.inputs
        if isinstance(operator, MUL):
            scale = self.reshape(constant, _weight_scale(convolution, constant), operator.source)
            weight = self._apply(operator, weight, scale)
        bias = self._apply(operator, bias, self.reshape(constant, constant.shape[-1:], operator.source))
        source = both(convolution.source, operator.source)
        new = replaced(convolution, (x, weight, bias, *zero_points), source)
        new.outputs[0].name = operator.outputs[0].name
        place = self._places.pop(convolution)
        self._places[new], self.operators[place] = place, new
        self._values[operator.outputs[0]] = new.outputs[0]

    def _apply(self, operator: Operator, left: Value, right: Value) -> Value:
        """The folded ``operator``; the shift operand of MUL is kept."""
        shape = left.shape if right.shape[-1] == 1 or left.rank > 1 else right.shape
        return self.make(type(operator), (left, right, *operator.inputs[2:]), Type(shape, left.dtype), operator.source)


def _sides(operator: Operator) -> tuple[Value, Value | None]:
    """(operand, constant), constant None if no side is. Of SUB only the right side can be."""
    left, right = operator.inputs[:2]
    if right.constant is not None:
        return left, right
    return right, left if left.constant is not None and type(operator) is not SUB else None


def _of_channels(constant: Value, result: Value) -> bool:
    """Whether ``constant`` has one element, or one a channel (the last axis) of a float ``result``."""
    *others, channels = constant.shape
    return result.dtype in FLOATS and channels in (1, result.shape[-1]) and all(size == 1 for size in others)


def _constant(operator: Operator, convolution: Operator) -> bool:
    """Whether the operands of ``convolution`` that change are constants of the result's element type."""
    changed = convolution.inputs[1:3] if isinstance(operator, MUL) else convolution.inputs[2:3]
    return all(v.constant is not None and v.dtype is operator.outputs[0].dtype for v in changed)


def _weight_scale(convolution: Operator, constant: Value) -> Shape:
    """Shape in which one factor an output channel meets the weight: the first axis, or C and M of depthwise HWCM."""
    weight, channels = convolution.inputs[1], constant.shape[-1]
    if channels == 1:
        return (1,) * weight.rank
    return (
        (1, 1, *weight.shape[2:])
        if isinstance(convolution, DEPTHWISE_CONV2D)
        else (channels, *(1,) * (weight.rank - 1))
    )
