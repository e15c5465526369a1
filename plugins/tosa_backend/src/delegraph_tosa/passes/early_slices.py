"""Slices values along an axis as early as possible, to compute only that part."""

from __future__ import annotations

import math
from collections.abc import Collection

from ..ir.graph import Operator, Value
from ..ir.operators import CONV2D, RESCALE, RESHAPE, SLICE, TRANSPOSE
from ..ir.types import Type
from . import view_axes as ax
from .rewriter import Rewrite
from .row_regions import Readers
from .view_axes import Shape


def with_size(shape: Shape, axis: int, size: int) -> Shape:
    """Return ``shape`` with another ``size`` of ``axis``."""
    return (*shape[:axis], size, *shape[axis + 1 :])


class EarlySlices:
    """Slices values of the old graph.

    The required operators are appended to ``rewrite``.
    """

    def __init__(
        self, rewrite: Rewrite, readers: Readers, replaced: Collection[Operator]
    ) -> None:
        """Nothing is sliced before ``replaced`` operators."""
        self.rewrite = rewrite
        self._readers = readers
        self._replaced = replaced

    def slice(self, value: Value, axis: int, places: range) -> Value:
        """Return a SLICE of ``value`` at ``places`` along ``axis``.

        Itself if it has nothing else.
        """
        new = self.rewrite.value(value)
        if len(places) == value.shape[axis]:
            return new
        start = with_size((0,) * value.rank, axis, places.start)
        size = with_size(value.shape, axis, len(places))
        operands = (new, self.rewrite.shape(start), self.rewrite.shape(size))
        source = value.producer and value.producer.source
        return self.rewrite.make(SLICE, operands, Type(size, value.dtype), source)

    def slice_early(
        self, value: Value, axis: int, places: range, users: Collection[Operator | None]
    ) -> Value:
        """Slice before operators that move or rescale ``value``, or use fewer channels.

        A convolution can compute fewer channels. That is for values that nothing reads
        but ``users``, which need the parts only.
        """
        operator = value.producer
        if operator is None or operator in self._replaced:
            return self.slice(value, axis, places)
        if not set(self._readers[value]).issubset(users):
            return self.slice(value, axis, places)
        part: Value | None = None
        if isinstance(operator, TRANSPOSE):
            part = self._before_transpose(operator, axis, places)
        elif isinstance(operator, RESHAPE):
            part = self._before_reshape(operator, axis, places)
        elif isinstance(operator, RESCALE):
            part = self._before_rescale(operator, axis, places)
        elif isinstance(operator, CONV2D):
            part = self._of_convolution(operator, axis, places)
        if part is None:
            return self.slice(value, axis, places)
        return part

    def _before_transpose(self, operator: TRANSPOSE, axis: int, places: range) -> Value:
        """Return the part of a TRANSPOSE; a RESHAPE is enough if no wide axis moves."""
        x = operator.inputs[0]
        part = self.slice_early(x, operator.perms[axis], places, [operator])
        if not ax.ascends(ax.order(part.shape, operator.perms)):
            return self.rewrite.transpose(part, operator.perms, operator.source)
        shape = with_size(operator.outputs[0].shape, axis, len(places))
        return self.rewrite.reshape(part, shape, operator.source)

    def _before_reshape(
        self, operator: RESHAPE, axis: int, places: range
    ) -> Value | None:
        """Return the part of a RESHAPE.

        None unless ``axis`` is the first one of a piece that comes from one axis.
        """
        x = operator.inputs[0]
        result = operator.outputs[0]
        for old, new in ax.pieces(x.shape, result.shape):
            if len(old) == 1 and new and new[0] == axis:
                step = math.prod([result.shape[a] for a in new[1:]])
                before = range(places.start * step, places.stop * step)
                part = self.slice_early(x, old[0], before, [operator])
                shape = with_size(result.shape, axis, len(places))
                return self.rewrite.reshape(part, shape, operator.source)
        return None

    def _before_rescale(self, operator: RESCALE, axis: int, places: range) -> Value:
        """Return the part of a RESCALE."""
        x, multiplier, shift, *zero_points = operator.inputs
        is_last = axis == x.rank - 1
        if is_last and operator.per_channel:
            multiplier = self.slice(multiplier, 0, places)
            shift = self.slice(shift, 0, places)
        part = self.slice_early(x, axis, places, [operator])
        operands = (part, multiplier, shift, *zero_points)
        return self._made(operator, operands, axis, places)

    def _of_convolution(
        self, operator: CONV2D, axis: int, places: range
    ) -> Value | None:
        """Return the channels of a CONV2D at ``places``; None for another axis."""
        x, weight, bias, *zero_points = operator.inputs
        if axis != operator.outputs[0].rank - 1:
            return None
        # a bias may have one number for all channels
        parts = [
            v if v.shape[0] == 1 else self.slice(v, 0, places) for v in (weight, bias)
        ]
        operands = (self.rewrite.value(x), *parts, *zero_points)
        return self._made(operator, operands, axis, places)

    def _made(
        self, operator: Operator, inputs: tuple[Value, ...], axis: int, places: range
    ) -> Value:
        """Return the part of the result of ``operator`` for parts of its operands."""
        result = operator.outputs[0]
        type = Type(with_size(result.shape, axis, len(places)), result.dtype)
        attributes = operator.attribute_values()
        return self.rewrite.make(
            operator.__class__, inputs, type, operator.source, **attributes
        )
