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
        """SLICE of ``value`` at ``places`` along ``axis``.

        Itself if it has nothing else.
        """
        if len(places) == value.shape[axis]:
            return self.rewrite.value(value)
        start = self.rewrite.shape(with_size((0,) * value.rank, axis, places.start))
        type = Type(with_size(value.shape, axis, len(places)), value.dtype)
        operands = self.rewrite.value(value), start, self.rewrite.shape(type.shape)
        return self.rewrite.make(
            SLICE, operands, type, value.producer and value.producer.source
        )

    def slice_early(
        self, value: Value, axis: int, places: range, users: Collection[Operator | None]
    ) -> Value:
        """Slice before operators that move or rescale ``value``, or use fewer channels.

        A convolution can compute fewer channels. That is for values that nothing reads
        but ``users``, which need the parts only.
        """
        operator = value.producer
        is_last = axis == value.rank - 1
        if (
            operator is None
            or operator in self._replaced
            or not set(self._readers[value]).issubset(users)
        ):
            return self.slice(value, axis, places)
        shape = with_size(value.shape, axis, len(places))
        if isinstance(operator, TRANSPOSE):
            part = self.slice_early(
                operator.inputs[0], operator.perms[axis], places, [operator]
            )
            if ax.ascends(ax.order(part.shape, operator.perms)):
                return self.rewrite.reshape(part, shape, operator.source)
            return self.rewrite.transpose(part, operator.perms, operator.source)
        if isinstance(operator, RESHAPE):
            for old, new in ax.pieces(operator.inputs[0].shape, value.shape):
                if len(old) == 1 and new and new[0] == axis:
                    step = math.prod([value.shape[a] for a in new[1:]])
                    before = range(places.start * step, places.stop * step)
                    part = self.slice_early(
                        operator.inputs[0], old[0], before, [operator]
                    )
                    return self.rewrite.reshape(part, shape, operator.source)
        if isinstance(operator, RESCALE):
            x, *constants = operator.inputs
            if is_last and operator.per_channel:
                constants[:2] = [self.slice(v, 0, places) for v in constants[:2]]
            return self._made(
                operator,
                (self.slice_early(x, axis, places, [operator]), *constants),
                shape,
            )
        if isinstance(operator, CONV2D) and is_last:
            x, *constants = operator.inputs
            # a bias may have one number for all channels
            constants[:2] = [
                self.slice(v, 0, places) if v.shape[0] != 1 else v
                for v in constants[:2]
            ]
            return self._made(operator, (self.rewrite.value(x), *constants), shape)
        return self.slice(value, axis, places)

    def _made(
        self, operator: Operator, inputs: tuple[Value, ...], shape: Shape
    ) -> Value:
        """Return the result, of ``shape``, of ``operator`` with other ``inputs``."""
        type = Type(shape, operator.outputs[0].dtype)
        attributes = operator.attribute_values()
        return self.rewrite.make(
            operator.__class__, inputs, type, operator.source, **attributes
        )
