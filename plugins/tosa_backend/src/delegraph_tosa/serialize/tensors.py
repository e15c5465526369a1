"""Reads a declared tensor or shape: its type, and its elements if it is constant."""

from __future__ import annotations

from typing import Any, NamedTuple

from delegraph_engines.flatbuffer import Table

from ..ir.graph import Array, Constant, Illegal, Literal, Scaled
from ..ir.types import (
    BLOCK_SCALED,
    UNKNOWN,
    DType,
    Mode,
    Type,
    stored_types,
    why_not_blocks,
)
from .elements import size_in_file, stays_in_file, unpack
from .schema import ShapeField, TensorField

MAX_RANK = 32
"""MAX_RANK of level NONE, the largest (specification: Levels)."""
SHARED_COPIES = 8
"""How often, in all, the bytes of a file may be widened or scanned.

Many constants of a damaged file may share the same bytes.
"""
MAX_PADDING = 8
"""Bytes that may follow elements: other writers round lengths up to a multiple of 8."""


def type_of_tensor(tensor: Table, name: str) -> Type:
    """Return the declared type. Raises FormatError for types that tensors lack."""
    dtype = _element_type(tensor, name)
    shape = shape_of_tensor(tensor, name)
    if dtype is DType.SHAPE:
        raise tensor.damaged(f"{name!r} has element type {dtype}, which no tensor has")
    if why := why_not_blocks(Type(shape, dtype)):
        raise tensor.damaged(f"{name!r}: {why}")
    return Type(shape, dtype).named(name)


def shape_of_tensor(tensor: Table, name: str) -> tuple[int, ...]:
    """Return the declared shape, in which an unknown size is UNKNOWN.

    Raises FormatError for shapes that tensors cannot have.
    """
    shape = tuple(tensor.numbers(TensorField.SHAPE, "i4", "shape"))
    are_sizes = all(size > 0 or size == UNKNOWN for size in shape)
    is_unranked = tensor.flag(TensorField.IS_UNRANKED)
    if is_unranked or len(shape) > MAX_RANK or not are_sizes:
        raise tensor.damaged(
            f"{name!r} needs a shape of positive sizes and a rank of at most {MAX_RANK}"
        )
    return shape


def _element_type(tensor: Table, name: str) -> DType:
    """Return the element type. Block shape and scale type make it block-scaled."""
    dtype: DType = member(DType, tensor.scalar(TensorField.TYPE, "I"), tensor)
    size = tensor.scalar(TensorField.BLOCK_SHAPE, "I")
    scale = tensor.scalar(TensorField.SCALE_TYPE, "I")
    if not size and not scale:
        return dtype
    for block_scaled, blocks in BLOCK_SCALED.items():
        if blocks == (size, scale, dtype):
            return block_scaled
    found_types = f"block shape {size}, scale type {scale}, values {dtype}"
    raise tensor.damaged(f"{name!r} has block scales of an unknown form: {found_types}")


def member(kind: type[Mode] | type[DType], number: int, table: Table) -> Any:
    """Return the member of an enumeration by its number in the file."""
    try:
        found = kind(number)
    except ValueError:
        raise table.damaged(f"{number} is not a {kind.__name__}") from None
    if found in BLOCK_SCALED:  # these numbers of DType are no numbers of files
        raise table.damaged(f"{number} is not a {kind.__name__}")
    return found


class _Fields(NamedTuple):
    """The fields that locate elements: a vector, or offset and size in the file."""

    data: TensorField
    offset: TensorField
    size: TensorField
    noun: str


_VALUES = _Fields(TensorField.DATA, TensorField.OFFSET, TensorField.SIZE, "data")
_SCALES = _Fields(
    TensorField.SCALE_DATA, TensorField.SCALE_OFFSET, TensorField.SCALE_SIZE, "scales"
)


def constant_of(table: Table, name: str, type: Type) -> Constant:
    """Return the constant that a tensor or shape of the file declares.

    ``table`` is its table in the flatbuffer. Elements are views of the file's bytes if
    ``stays_in_file(type)``, otherwise copies. Raises FormatError if the number of bytes
    does not fit ``type``.
    """
    if type.dtype is DType.SHAPE:
        data = table.raw(ShapeField.DATA, "data")
        return Literal(_unpack_checked(name, table, type, data))
    if type.dtype in BLOCK_SCALED:
        type_of_values, type_of_scales = stored_types(type)
        values = _read_elements(name, table, type_of_values, _VALUES)
        scales = _read_elements(name, table, type_of_scales, _SCALES)
        return Scaled(values, scales, type)
    return Literal(_read_elements(name, table, type, _VALUES))


def _read_elements(name: str, tensor: Table, type: Type, fields: _Fields) -> Array:
    """Return the elements that ``fields`` of a tensor locate."""
    data = tensor.raw(fields.data, fields.noun)
    # an offset of 0 or 1 means that the elements are in the vector
    if not data and (start := tensor.scalar(fields.offset, "Q")) > 1:
        data = tensor.extent(start, tensor.scalar(fields.size, "Q"), fields.noun)
    return _unpack_checked(name, tensor, type, data)


def _unpack_checked(name: str, table: Table, type: Type, data: memoryview) -> Array:
    """Return the elements in ``data``.

    Raises FormatError if ``data`` has too few or too many bytes, or illegal elements.
    """
    size = size_in_file(type)
    if not size <= len(data) <= size + MAX_PADDING:
        raise table.damaged(
            f"{name!r} has type {type}, which takes {size} bytes, but {len(data)} are stored"
        )
    # bools are scanned, and types that do not stay in the file are widened
    if type.dtype is DType.BOOL or not stays_in_file(type):
        table.spend(size // SHARED_COPIES)
    try:
        return unpack(data, type)
    except Illegal as problem:
        raise table.damaged(f"{name!r}: {problem}") from None
