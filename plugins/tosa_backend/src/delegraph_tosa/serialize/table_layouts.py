"""The forms of tables that a file has many of: operators, their attributes, tensors and
shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from delegraph.io.flatbuffer_builder import Field

from ..ir.types import BLOCK_SCALED, DType
from .schema import CODES, STORED, WRITTEN_AS, OperatorField, ShapeField, TensorField


class Form(NamedTuple):
    """A kind of table: how many fields its schema has, and id and kind of those that
    are written, in that order.
    """

    field_count: int
    fields: tuple[tuple[int, str], ...]

    def with_values(self, values: Sequence[int]) -> list[Field]:
        """Return the fields with these values, without those whose value is 0, which is
        their default.
        """
        pairs = zip(self.fields, values, strict=True)
        return [Field(id, kind, value) for (id, kind), value in pairs if value]


def form(count: int, *fields: tuple[int, str]) -> Form:
    """Return the form of tables with ``count`` fields in the schema, of which these
    (id, kind) are written.
    """
    return Form(count, fields)


CODES_IN_FILE = {
    name: (CODES[WRITTEN_AS.get(name, name)], tag) for name, tag in CODES.items()
}
_KINDS = {"int": "int32", "bool": "bool"} | dict.fromkeys(
    ("Ints", "Number", "bytes", "str", "Graph"), "offset"
)
ATTRIBUTES = {
    cls: form(
        len(stored),
        *[(i, _KINDS.get(kind, "uint32")) for i, (_, kind) in enumerate(stored)],
    )
    for cls, stored in STORED.items()
}
"""Of an operator's attributes; those that have no entry in ``_KINDS`` are enumerations.
"""
OPERATOR = form(
    6,
    (OperatorField.ATTRIBUTE, "offset"),
    (OperatorField.CODE, "uint32"),
    (OperatorField.ATTRIBUTE_TYPE, "uint8"),
    (OperatorField.INPUTS, "offset"),
    (OperatorField.OUTPUTS, "offset"),
)
OPERATOR_WITH_LOCATION = form(6, *OPERATOR.fields, (OperatorField.LOCATION, "offset"))
EMPTY_SHAPE = form(3, (ShapeField.DATA, "uint32"), (ShapeField.NAME, "offset"))
SHAPE = form(3, *EMPTY_SHAPE.fields, (ShapeField.RANK, "uint32"))
_INSIDE = (TensorField.DATA, TensorField.SCALE_DATA)
_EXTERNAL = (TensorField.OFFSET, TensorField.SCALE_OFFSET)
_SIZES = (TensorField.SIZE, TensorField.SCALE_SIZE)
"""Fields of each of a tensor's ``stored_types``."""
_OF_BLOCKS = ((TensorField.SCALE_TYPE, "uint32"), (TensorField.BLOCK_SHAPE, "uint32"))
_OF_VARIABLE = ((TensorField.VARIABLE, "bool"), (TensorField.VARIABLE_NAME, "offset"))


@cache
def tensor_form(
    is_scaled: bool, is_variable: bool, parts: int = 0, external: bool = False
) -> Form:
    """Of a tensor, with slots for so many ``parts`` of its elements, and their sizes if
    they are ``external``.
    """
    slots = [
        (field, "uint64" if external else "uint32")
        for field in (_EXTERNAL if external else _INSIDE)[:parts]
    ]
    sizes = [(field, "uint64") for field in _SIZES[:parts] if external]
    always = (
        (TensorField.NAME, "offset"),
        (TensorField.SHAPE, "offset"),
        (TensorField.TYPE, "uint32"),
    )
    return form(
        14,
        *slots,
        *sizes,
        *always,
        *_OF_BLOCKS * is_scaled,
        *_OF_VARIABLE * is_variable,
    )


@cache
def elements_of(dtype: DType) -> tuple[int, ...]:
    """What the type of a tensor's elements is written as, and of block-scaled ones the
    scales' and the blocks'.
    """
    blocks = BLOCK_SCALED.get(dtype)
    return (dtype,) if blocks is None else (blocks.value, blocks.scale, blocks.size)
