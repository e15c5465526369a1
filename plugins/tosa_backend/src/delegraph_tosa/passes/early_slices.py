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
    """Slices values of the old graph, and appends the new operators to ``rewrite``.

    ``barriers`` are operators of the old graph that the new one computes differently.
    No SLICE moves before them.
    """

    def __init__(
        self, rewrite: Rewrite, readers: Readers, barriers: Collection[Operator]
    ) -> None:
        self.rewrite = rewrite
        self._readers = readers
        self._barriers = barriers

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

        ``users`` are the operators that read the slices. If ``value`` has other
        readers, it is needed as a whole, and its result is sliced.
        """
        operator = value.producer
        if operator is None or operator in self._barriers:
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

        If only axes of size 1 move, a RESHAPE is enough.
        """
        x = operator.inputs[0]
        part = self.slice_early(x, operator.perms[axis], positions, [operator])
        if not ax.is_reshape(part.shape, operator.perms):
            return self.rewrite.transpose(part, operator.perms, operator.source)
        shape = with_size(operator.outputs[0].shape, axis, len(positions))
        return self.rewrite.reshape(part, shape, operator.source)

    def _before_reshape(
        self, operator: RESHAPE, axis: int, positions: range
    ) -> Value | None:
        """Return the part of a RESHAPE from a part of its operand.

        Returns None unless the RESHAPE splits or keeps one axis of its operand, and
        ``axis`` is the first axis that results from it. In [192] -> [3,64], head 1
        is the slice 64 to 128 of the operand.
        """
        x = operator.inputs[0]
        result = operator.outputs[0]
        for old, new in ax.pieces(x.shape, result.shape):
            if len(old) == 1 and new and new[0] == axis:
                # elements of the operand in each element along ``axis``
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
        """Return the result of a CONV2D of only the channels at ``positions``.

        Returns None if ``axis`` is not that of channels.
        """
        x, weight, bias, *zero_points = operator.inputs
        if axis != operator.outputs[0].rank - 1:
            return None
        weight = self.slice(weight, 0, positions)
        # a bias may have one number for all channels
        if bias.shape[0] != 1:
            bias = self.slice(bias, 0, positions)
        operands = (self.rewrite.value(x), weight, bias, *zero_points)
        return self._compute_part(operator, operands, axis, positions)

    def _compute_part(
        self, operator: Operator, inputs: tuple[Value, ...], axis: int, positions: range
    ) -> Value:
        """Append ``operator`` with ``inputs``, parts of its operands.

        Returns its result, which has only ``positions`` along ``axis``.
        """
        result = operator.outputs[0]
        type_ = Type(with_size(result.shape, axis, len(positions)), result.dtype)
        attributes = operator.attribute_values()
        return self.rewrite.make(
            type(operator), inputs, type_, operator.source, **attributes
        )
