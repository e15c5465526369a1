"""``Tosa``, the ``t`` of every rule: all operators, and numbers computed by several."""

from __future__ import annotations

import numpy as np

from ...ir.dynamic_sizes import LARGEST_SIZE, is_dynamic, waits
from ...ir.dynamic_sizes import range_of as size_range
from ...ir.graph import Operator, Value, literal
from ...ir.types import ARRAY_DTYPES, FLOATS, DType
from . import device_substitutes
from .emitter import Shape
from .operators import Operators
from .size_numbers import computed

MOST_NUMBERS = 1 << 16
"""The longest tensor 0, 1, 2, .. that a file stores for a count known at run time only.

A longer one is computed.
"""
ROW = 1 << 15
"""A longer tensor is computed from up to MOST_NUMBERS rows of ROW numbers.

One axis can have as many.
"""


class Tosa(Operators):
    """Builds operators for the target ``spec``.

    ``operators`` are the operators emitted so far. ``source`` is the node of the
    program that is lowered now.
    """

    weighs_integers = False
    """Whether ``mul`` takes integers and fp32 weights of an interpolation.

    The builder of ``integer.resize`` does.
    """

    def _in_other_types(self, operator: Operator, why: str) -> Value:
        """Compute an operator in another way if the target refuses it for ``why``.

        ``older_substitutes`` has replacements for targets of TOSA 0.80,
        ``device_substitutes`` for targets that name a device. Without a replacement,
        the base class tries other types.
        """
        substitute = None
        if self.spec.version < (1, 0):
            from . import older_substitutes

            substitute = older_substitutes.instead(self, operator)
        if substitute is None and self.spec.devices:
            substitute = device_substitutes.instead(self, operator)
        if substitute is None:
            return super()._in_other_types(operator, why)
        return substitute

    def constant(self, number: float, dtype: DType, shape: Shape = (1,)) -> Value:
        """Return a tensor filled with ``number``.

        It is a constant unless ``number`` is a size known at run time only, or computed
        from such sizes: then operators compute it.
        """
        # ``waits``: whether the number is known at run time only
        if not waits(number):
            return super().constant(number, dtype, shape)
        # one element [1], reshaped to [1,..,1] and repeated to ``shape``
        computed_dtype = DType.FP32 if dtype in FLOATS else DType.INT32
        element = self.cast(computed(self, number, computed_dtype), dtype)
        return self.tile(self.reshape(element, (1,) * len(shape)), shape)

    def numbers(self, count: int, dtype: DType) -> Value:
        """Return 0, 1, .., count - 1 as a tensor [count].

        If ``count`` is known at run time only, the result is a slice of a constant that
        is as long as ``count`` can be. If this constant would have more than
        MOST_NUMBERS elements, the result is computed from rows of ROW numbers.
        """
        _, most = size_range(count)
        longest = min(most, LARGEST_SIZE)
        if is_dynamic(count) and longest > MOST_NUMBERS:
            return self._computed_numbers(count, longest, dtype)
        key = ("numbers", longest, dtype)
        if key not in self._constants:
            numbers = np.arange(longest)
            self._constants[key] = literal(numbers, dtype, ARRAY_DTYPES[dtype])
        return self.slice(self._constants[key], (0,), (count,))

    def _computed_numbers(self, count: int, longest: int, dtype: DType) -> Value:
        """Return ``numbers``, computed from rows; ``count`` is at most ``longest``."""
        # [rows,1] of 0, ROW, 2 * ROW, .. plus [ROW] of 0 .. ROW - 1 is [rows,ROW];
        # reshaped, then cut to ``count``
        rows = -(-count // ROW)
        row_numbers = self.reshape(self.numbers(rows, dtype), (rows, 1))
        with self.proven((0, longest - 1)):
            starts = self.mul(row_numbers, ROW)
            table = self.add(starts, self.numbers(ROW, dtype))
            return self.slice(self.reshape(table, (rows * ROW,)), (0,), (count,))
