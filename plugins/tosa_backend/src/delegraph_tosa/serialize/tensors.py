"""What a file declares of one tensor or shape: its type, and the elements if it is a
constant.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from delegraph.io.flatbuffer import Table

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
"""Of level NONE, the widest."""
SHARED_COPIES = 8
"""How often, in all, the file's bytes may be widened or looked through, for constants
that share them.
"""
MAX_PADDING = 8
"""Other writers round the length of data up to a multiple of 8, that of an empty shape
to 8.
"""


def type_of_tensor(tensor: Table, name: str) -> Type:
    """The declared type. Raises FormatError for one that no tensor has."""
    dtype = _element_type(tensor, name)
    shape = shape_of_tensor(tensor, name)
    if dtype is DType.SHAPE:
        raise tensor.damaged(f"{name!r} has element type {dtype}, which no tensor has")
    if why := why_not_blocks(Type(shape, dtype)):
        raise tensor.damaged(f"{name!r}: {why}")
    return Type(shape, dtype).named(name)


def shape_of_tensor(tensor: Table, name: str) -> tuple[int, ...]:
    """The declared shape. Raises FormatError for one that no tensor has."""
    shape = tuple(tensor.numbers(TensorField.SHAPE, "i4", "shape"))
    if (
        tensor.flag(TensorField.IS_UNRANKED)
        or len(shape) > MAX_RANK
        or min(shape, default=1) < UNKNOWN
        or 0 in shape
    ):
        raise tensor.damaged(
            f"{name!r} has no shape of positive sizes and a rank up to {MAX_RANK}"
        )
    return shape


def _element_type(tensor: Table, name: str) -> DType:
    """The element type of a tensor, which block shape and scale type make a
    block-scaled one.
    """
    dtype: DType = member(DType, tensor.scalar(TensorField.TYPE, "I"), tensor)
    shape = tensor.scalar(TensorField.BLOCK_SHAPE, "I")
    scale = tensor.scalar(TensorField.SCALE_TYPE, "I")
    if not shape and not scale:
        return dtype
    found = next(
        (t for t, blocks in BLOCK_SCALED.items() if blocks == (shape, scale, dtype)),
        None,
    )
    if found is None:
        held = f"block shape {shape}, scale type {scale}, values {dtype}"
        raise tensor.damaged(
            f"{name!r} has its scales inside, in a form that TOSA does not have: {held}"
        )
    return found


def member(kind: type[Mode] | type[DType], number: int, table: Table) -> Any:
    """The member of an enumeration that a file names by its number."""
    try:
        found = kind(number)
    except ValueError:
        raise table.damaged(f"{number} is no {kind.__name__}") from None
    if found in BLOCK_SCALED:  # these numbers are of our own
        raise table.damaged(f"{number} is no {kind.__name__}")
    return found


class _Place(NamedTuple):
    """Fields of a tensor that say where elements are: a vector, or offset and size in
    the file.
    """

    data: TensorField
    offset: TensorField
    size: TensorField
    what: str


_VALUES = _Place(TensorField.DATA, TensorField.OFFSET, TensorField.SIZE, "data")
_SCALES = _Place(
    TensorField.SCALE_DATA, TensorField.SCALE_OFFSET, TensorField.SCALE_SIZE, "scales"
)


def constant_of(declared: Table, name: str, type: Type) -> Constant:
    """The elements of a tensor or shape of this type; views of the file where
    ``unpack`` gives them.
    """
    if type.dtype is DType.SHAPE:
        return Literal(
            _unpacked(name, declared, type, declared.raw(ShapeField.DATA, "data"))
        )
    if type.dtype in BLOCK_SCALED:
        values, scales = stored_types(type)
        return Scaled(
            _data(name, declared, values, _VALUES),
            _data(name, declared, scales, _SCALES),
            type,
        )
    return Literal(_data(name, declared, type, _VALUES))


def _data(name: str, tensor: Table, type: Type, place: _Place) -> Array:
    data = tensor.raw(place.data, place.what)
    if not data and (start := tensor.scalar(place.offset, "Q")) > 1:
        data = tensor.extent(start, tensor.scalar(place.size, "Q"), place.what)
    return _unpacked(name, tensor, type, data)


def _unpacked(name: str, declared: Table, type: Type, data: memoryview) -> Array:
    size = size_in_file(type)
    if not size <= len(data) <= size + MAX_PADDING:
        raise declared.damaged(
            f"{name!r} is {type}, which takes {size} bytes, and has {len(data)}"
        )
    if type.dtype is DType.BOOL or not stays_in_file(type):
        declared.spend(size // SHARED_COPIES)
    try:
        return unpack(data, type)
    except Illegal as problem:
        raise declared.damaged(f"{name!r}: {problem}") from None
