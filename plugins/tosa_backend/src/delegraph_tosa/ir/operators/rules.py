"""Shape and zero point rules that several operators share.

All functions raise Illegal for a broken rule, or note it (``note``).
"""

from __future__ import annotations

from ..dynamic_sizes import differ, exceeds, is_dynamic
from ..graph import (
    Illegal,
    Literal,
    Operator,
    Value,
    check,
    note,
    note_broken,
    shape_of,
)
from ..types import BLOCK_SCALED, DType, Type, why_not_blocks

Shape = tuple[int, ...]


def broadcast(*operands: Value) -> Shape:
    """Return the shape to which operands broadcast. Raises Illegal if there is none."""
    shape = operands[0].type.shape
    for operand in operands[1:]:
        if operand.type.shape != shape:
            shape = _broadcast_pair(shape, operand.type.shape, operands)
    return shape


def _broadcast_pair(left: Shape, right: Shape, operands: tuple[Value, ...]) -> Shape:
    """Return the shape to which two shapes broadcast.

    ``operands`` are for the message.
    """
    if len(left) != len(right):
        raise Illegal(f"ranks differ: {_types(operands)}", "same-rank")
    shape: list[int] = []
    for a, b in zip(left, right, strict=True):
        if 1 not in (a, b) and differ(a, b):
            types = _types(operands)
            raise Illegal(f"shapes do not broadcast: {types}", "broadcast")
        # of two sizes that have to be equal, the known one is taken
        takes_right = a == 1 or (is_dynamic(a) and b != 1)
        shape.append(b if takes_right else a)
    return tuple(shape)


def _types(operands: tuple[Value, ...]) -> str:
    """Return the types of ``operands`` as text."""
    return ", ".join(str(v.type) for v in operands)


def expect_rank(value: Value, rank: int, name: str) -> Shape:
    """Return the shape of ``value``, which must have rank ``rank``."""
    if len(value.type.shape) != rank:
        raise Illegal(f"{name} must have rank {rank}, is {value.type}", "rank")
    return value.type.shape


def expect_axis(axis: int, rank: int) -> None:
    """Check that ``axis`` is from 0 to ``rank`` - 1."""
    if not 0 <= axis < rank:
        raise Illegal(f"axis {axis} is outside rank {rank}", "axis")


def expect_length(elements: Shape, length: int, name: str) -> None:
    """Check that an attribute or shape operand has ``length`` entries."""
    if len(elements) != length:
        raise Illegal(
            f"{name} must have {length} entries, has {list(elements)}", "entry-count"
        )


def shape_operand(value: Value, length: int, name: str) -> Shape:
    """Return the ``length`` entries of a constant SHAPE operand."""
    elements = shape_of(value)
    expect_length(elements, length, name)
    return elements


def expect_single(value: Value, name: str) -> None:
    """Check that an operand has the shape [1]."""
    if value.type.shape != (1,):
        note_broken(f"{name} must have shape [1], is {value.type}", "single-element")


def element(value: Value) -> float | int | None:
    """Return the element of a constant of one element in memory.

    None for any other value.
    """
    constant = value.constant
    if not isinstance(constant, Literal) or constant.array.size != 1:
        return None
    number: float | int = constant.array.item()
    return number


def constant_element(value: Value, name: str) -> int:
    """Return the element of an operand [1] that must be a compile-time constant."""
    if value.type.shape != (1,):
        raise Illegal(f"{name} must have shape [1], is {value.type}", "single-element")
    number = element(value)
    if number is None:
        raise Illegal(f"{name} must be a compile-time constant", "constant-operand")
    return int(number)


def expect_zero_point(zero_point: Value, dtype: DType, name: str) -> None:
    """Check that a zero point has one element, which is 0 unless the data is int8."""
    expect_single(zero_point, name)
    if dtype is not DType.INT8 and element(zero_point):
        note_broken(
            f"{name} must be 0 for {dtype}, is {element(zero_point)}", "zero-point"
        )


def idiv(dividend: int, divisor: int, what: str) -> int:
    """Return the quotient, which must be exact (specification: idiv_check)."""
    if exceeds(0, dividend):
        note_broken(f"{what} = {dividend} is negative", "size-positive")
    elif differ(dividend % divisor, 0):
        note_broken(
            f"{what} = {dividend} is not a multiple of {divisor}", "exact-division"
        )
    return dividend // divisor


def same_type(operator: Operator) -> tuple[Type, ...]:
    """Return the type of the first operand, as the type of the only result."""
    return (operator.inputs[0].type,)


def positive_sizes(shape: Shape, name: str) -> Shape:
    """Return ``shape`` as it is, after a check that its sizes are positive.

    TOSA has no empty tensors.
    """
    note(
        not any(exceeds(1, size) for size in shape),
        f"{name} {list(shape)} has a size below 1",
        "size-positive",
    )
    return shape


def whole_blocks(type: Type) -> Type:
    """Return ``type`` as it is, after a check of its blocks.

    If it is block-scaled, its last axis must consist of whole blocks.
    """
    if type.dtype in BLOCK_SCALED:
        why = why_not_blocks(type)
        check(why is None, why or "", "blocks")
    return type
