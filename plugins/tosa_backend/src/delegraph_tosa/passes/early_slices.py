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

    The new operators are appended to ``rewrite``.
    """

    def __init__(
        self, rewrite: Rewrite, readers: Readers, replaced: Collection[Operator]
    ) -> None:
        """Append to ``rewrite``. No SLICE moves before ``replaced`` operators."""
        self.rewrite = rewrite
        self._readers = readers
        self._replaced = replaced

    def slice(self, value: Value, axis: int, positions: range) -> Value:
        """Return a SLICE of ``value`` at ``positions`` along ``axis``.

        If ``positions`` are all of the axis, returns the new value of ``value``.
        """
        new = self.rewrite.value(value)
        if len(positions) == value.shape[axis]:
            return new
        start = with_size((0,) * value.rank, axis, positions.start)
        size = with_size(value.shape, axis, len(positions))
        operands = (new, self.rewrite.shape(start), self.rewrite.shape(size))
        source = value.producer and value.producer.source
        return self.rewrite.make(SLICE, operands, Type(size, value.dtype), source)

    def slice_early(
        self,
        value: Value,
        axis: int,
        positions: range,
        users: Collection[Operator | None],
    ) -> Value:
        """Slice ``value`` to ``positions`` along ``axis``, as early as possible.

        The SLICE moves before the TRANSPOSEs, RESHAPEs and RESCALEs that compute
        ``value``. A CONV2D before these computes fewer channels instead.

        ``users`` are the operators that read the slices. If ``value`` has other readers
        too, it is computed whole, and sliced here. None among readers or users is a
        result of the graph (``Readers``).
        """
        operator = value.producer
        if operator is None or operator in self._replaced:
            return self.slice(value, axis, positions)
        if not set(self._readers[value]).issubset(users):
            return self.slice(value, axis, positions)
        part: Value | None = None
        if isinstance(operator, TRANSPOSE):
            part = self._before_transpose(operator, axis, positions)
        elif isinstance(operator, RESHAPE):
            part = self._before_reshape(operator, axis, positions)
        elif isinstance(operator, RESCALE):
            part = self._before_rescale(operator, axis, positions)
        elif isinstance(operator, CONV2D):
            part = self._compute_channels(operator, axis, positions)
        if part is None:
            return self.slice(value, axis, positions)
        return part

    def _before_transpose(
        self, operator: TRANSPOSE, axis: int, positions: range
    ) -> Value:
        """Return the part of a TRANSPOSE from a part of its operand.

        If no axis of the part with more than one element moves, a RESHAPE is enough.
        """
        x = operator.inputs[0]
        part = self.slice_early(x, operator.perms[axis], positions, [operator])
        if not ax.ascends(ax.order(part.shape, operator.perms)):
            return self.rewrite.transpose(part, operator.perms, operator.source)
        shape = with_size(operator.outputs[0].shape, axis, len(positions))
        return self.rewrite.reshape(part, shape, operator.source)

    def _before_reshape(
        self, operator: RESHAPE, axis: int, positions: range
    ) -> Value | None:
        """Return the part of a RESHAPE from a part of its operand.

        Returns None unless the RESHAPE splits one axis of its operand, or keeps it, and
        ``axis`` is the first of the resulting axes.
        """
        x = operator.inputs[0]
        result = operator.outputs[0]
        for old, new in ax.pieces(x.shape, result.shape):
            if len(old) == 1 and new and new[0] == axis:
                step = math.prod([result.shape[a] for a in new[1:]])
                before = range(positions.start * step, positions.stop * step)
                part = self.slice_early(x, old[0], before, [operator])
                shape = with_size(result.shape, axis, len(positions))
                return self.rewrite.reshape(part, shape, operator.source)
        return None

    def _before_rescale(self, operator: RESCALE, axis: int, positions: range) -> Value:
        """Return the part of a RESCALE from a part of its operand."""
        x, multiplier, shift, *zero_points = operator.inputs
        is_last = axis == x.rank - 1
        if is_last and operator.per_channel:
            multiplier = self.slice(multiplier, 0, positions)
            shift = self.slice(shift, 0, positions)
        part = self.slice_early(x, axis, positions, [operator])
        operands = (part, multiplier, shift, *zero_points)
        return self._compute_part(operator, operands, axis, positions)

    def _compute_channels(
        self, operator: CONV2D, axis: int, positions: range
    ) -> Value | None:
        """Append a CONV2D that computes only the channels at ``positions``; return its
        result.

        Returns None if ``axis`` is not that of channels.
        """
        x, weight, bias, *zero_points = operator.inputs
        if axis != operator.outputs[0].rank - 1:
            return None
        # a bias may have one number for all channels
        parts = [
            v if v.shape[0] == 1 else self.slice(v, 0, positions)
            for v in (weight, bias)
        ]
        operands = (self.rewrite.value(x), *parts, *zero_points)
        return self._compute_part(operator, operands, axis, positions)

    def _compute_part(
        self, operator: Operator, inputs: tuple[Value, ...], axis: int, positions: range
    ) -> Value:
        """Append ``operator`` for parts of its operands, and return its result."""
        result = operator.outputs[0]
        type = Type(with_size(result.shape, axis, len(positions)), result.dtype)
        attributes = operator.attribute_values()
        return self.rewrite.make(
            operator.__class__, inputs, type, operator.source, **attributes
        )
