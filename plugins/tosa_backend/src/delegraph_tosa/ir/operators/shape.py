"""Shape operators of the 1.1 draft (EXT-SHAPE), which compute SHAPE values.

``infer`` computes the entries of the result, so operands that are shapes must have been
inferred before.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import ClassVar

from ..dynamic_sizes import differ, exceeds, is_dynamic, largest, smallest, symbol
from ..graph import Operator, Value, Values, check, note, shape_of
from ..types import DType, Type
from .rules import Shape, constant_element, expect_axis

LARGEST = (1 << 63) - 1


class ShapeOperator(Operator):
    """An operator that computes a SHAPE.

    ``infer`` sets ``entries`` to its entries.
    """

    def compute(self) -> Shape:
        """Return the entries of the result.

        Raises ``Illegal`` for ERROR_IF and REQUIRE in the pseudocode.
        """
        raise NotImplementedError

    def infer(self) -> tuple[Type, ...]:
        self.entries = self.compute()
        fits = not any(
            exceeds(-LARGEST, entry) or exceeds(entry, LARGEST)
            for entry in self.entries
        )
        note(
            fits,
            f"{self.name} gives {list(self.entries)}, which 64 bits do not hold",
            "shape-overflow",
        )
        return (Type((len(self.entries),), DType.SHAPE),)


class ShapeBinary(ShapeOperator):
    """input1 SHAPE [n], input2 SHAPE [n] -> SHAPE [n]."""

    input1: Value
    input2: Value
    smallest: ClassVar[tuple[int, int] | None] = None
    """The smallest allowed entries of input1 and of input2; None is no limit."""

    combine: ClassVar[staticmethod[[int, int], int]]
    """The function that makes an entry of the result from one of each operand."""

    def compute(self) -> Shape:
        pairs = _pairs(self)
        if self.smallest is not None:
            left_low, right_low = self.smallest
            within = not any(
                exceeds(left_low, a) or exceeds(right_low, b) for a, b in pairs
            )
            check(
                within,
                f"entries {pairs} must be at least {left_low} on the left and"
                f" {right_low} on the"
                " right",
                "shape-range",
            )
        return tuple(self.combine(a, b) for a, b in pairs)


def _pairs(binary: ShapeBinary | ASSERT_EQUAL_SHAPE) -> list[tuple[int, int]]:
    """Return pairs of entries of both operands, which must have equal length."""
    left = shape_of(binary.input1)
    right = shape_of(binary.input2)
    check(
        len(left) == len(right),
        f"input1 has {len(left)} entries, input2 {len(right)}",
        "entry-count",
    )
    return list(zip(left, right, strict=True))


class ADD_SHAPE(ShapeBinary):
    """Sum of the entries."""

    combine = staticmethod(operator.add)


class SUB_SHAPE(ShapeBinary):
    """Difference of the entries."""

    combine = staticmethod(operator.sub)


class MUL_SHAPE(ShapeBinary):
    """Product of the entries."""

    combine = staticmethod(operator.mul)


class MAX_SHAPE(ShapeBinary):
    """The larger entries."""

    combine = staticmethod(largest)


class MIN_SHAPE(ShapeBinary):
    """The smaller entries."""

    combine = staticmethod(smallest)


class MOD_SHAPE(ShapeBinary):
    """Remainders of the entries."""

    smallest = (0, 1)

    combine = staticmethod(operator.mod)


class DIV_CEIL_SHAPE(ShapeBinary):
    """Quotients, rounded up."""

    smallest = (0, 1)

    combine = staticmethod(lambda left, right: -(-left // right))


class DIV_FLOOR_SHAPE(ShapeBinary):
    """Quotients, rounded down."""

    smallest = (0, 1)

    combine = staticmethod(operator.floordiv)


class ShapeUnary(ShapeOperator):
    """input SHAPE [n] -> SHAPE [n]."""

    input: Value

    def each(self, lowest: int, highest: int, function: Callable[[int], int]) -> Shape:
        """Return ``function`` of every entry.

        All entries must be from ``lowest`` to ``highest``.
        """
        entries = shape_of(self.input)
        within = not any(
            exceeds(lowest, entry) or exceeds(entry, highest) for entry in entries
        )
        check(
            within,
            f"entries {list(entries)} are outside {lowest} .. {highest}",
            "shape-range",
        )
        result: list[int] = []
        for entry in entries:
            if is_dynamic(entry):
                # sizes have no such function: the result is a new symbol
                result.append(symbol(f"{self.name}({entry})", 0, LARGEST))
            else:
                result.append(function(entry))
        return tuple(result)


class EXP2_SHAPE(ShapeUnary):
    """Two to the power of the entries."""

    def compute(self) -> Shape:
        return self.each(0, 62, lambda entry: 1 << entry)


class LOG2_CEIL_SHAPE(ShapeUnary):
    """Binary logarithm of the entries, rounded up."""

    def compute(self) -> Shape:
        return self.each(1, LARGEST, lambda entry: (entry - 1).bit_length())


class LOG2_FLOOR_SHAPE(ShapeUnary):
    """Binary logarithm of the entries, rounded down."""

    def compute(self) -> Shape:
        return self.each(1, LARGEST, lambda entry: entry.bit_length() - 1)


class CONCAT_SHAPE(ShapeOperator):
    """input: a list of SHAPEs -> a SHAPE with all their entries."""

    input: Values

    def compute(self) -> Shape:
        check(
            bool(self.inputs), "CONCAT_SHAPE needs at least one shape", "list-not-empty"
        )
        entries: list[int] = []
        for value in self.inputs:
            entries += shape_of(value)
        return tuple(entries)


class SLICE_SHAPE(ShapeOperator):
    """input SHAPE [n], start INT32 [1], size INT32 [1] -> SHAPE [size].

    ``start`` and ``size`` are constants.
    """

    input: Value
    start: Value
    size: Value

    def compute(self) -> Shape:
        entries = shape_of(self.input)
        start = constant_element(self.start, "start")
        size = constant_element(self.size, "size")
        inside = size > 0 and start >= 0 and start + size <= len(entries)
        note(
            inside,
            f"start {start} and size {size} are not inside {list(entries)}",
            "slice-inside",
        )
        return entries[start : start + size]


class DIM(ShapeOperator):
    """input1 [*S] -> SHAPE [1]: the size of ``axis``."""

    input1: Value
    axis: int

    def compute(self) -> Shape:
        expect_axis(self.axis, self.input1.rank)
        return (self.input1.shape[self.axis],)


class ASSERT_EQUAL_SHAPE(Operator):
    """input1 SHAPE [n], input2 SHAPE [n] -> no result. Their entries must be equal.

    With ``allow_broadcast``, one entry of a pair may be 1.
    """

    input1: Value
    input2: Value
    allow_broadcast: bool

    def infer(self) -> tuple[Type, ...]:
        equal = all(
            not differ(a, b) or (self.allow_broadcast and 1 in (a, b))
            for a, b in _pairs(self)
        )
        note(
            equal,
            f"{list(shape_of(self.input1))} and {list(shape_of(self.input2))} are not"
            " equal",
            "shapes-equal",
        )
        return ()
