"""Layouts of frequent tables in a file: operators, attributes, tensors and shapes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from delegraph_engines.flatbuffer_builder import Field

from ..ir.types import BLOCK_SCALED, DType
from .schema import CODES, STORED, WRITTEN_AS, OperatorField, ShapeField, TensorField


class TableLayout(NamedTuple):
    """The layout of a kind of table.

    ``field_count`` is the number of fields in the schema. ``fields`` has the id and
    the type, such as ``uint32``, of each field that is written, in order.
    """

    field_count: int
    fields: tuple[tuple[int, str], ...]

    def with_values(self, values: Sequence[int]) -> list[Field]:
        """Return the fields with these values. Omits zeros, which are the default."""
        fields: list[Field] = []
        for (id, kind), value in zip(self.fields, values, strict=True):
            if value:
                fields.append(Field(id, kind, value))
        return fields


def layout(count: int, *fields: tuple[int, str]) -> TableLayout:
    """Return the layout of tables with ``count`` fields, which writes ``fields``."""
    return TableLayout(count, fields)


CODES_IN_FILE = {
    name: (CODES[WRITTEN_AS.get(name, name)], tag) for name, tag in CODES.items()
}
"""Maps an operator to its number and the tag of its attributes in a file."""
_KINDS = {"int": "int32", "bool": "bool"} | dict.fromkeys(
    ("Ints", "Number", "bytes", "str", "Graph"), "offset"
)
ATTRIBUTES = {
    cls: layout(
        len(stored),
        *[(i, _KINDS.get(kind, "uint32")) for i, (_, kind) in enumerate(stored)],
    )
    for cls, stored in STORED.items()
}
"""Layout of each operator's attributes.

Kinds missing in ``_KINDS`` are enumerations.
"""
OPERATOR = layout(
    6,
    (OperatorField.ATTRIBUTE, "offset"),
    (OperatorField.CODE, "uint32"),
    (OperatorField.ATTRIBUTE_TYPE, "uint8"),
    (OperatorField.INPUTS, "offset"),
    (OperatorField.OUTPUTS, "offset"),
)
OPERATOR_WITH_LOCATION = layout(6, *OPERATOR.fields, (OperatorField.LOCATION, "offset"))
EMPTY_SHAPE = layout(3, (ShapeField.DATA, "uint32"), (ShapeField.NAME, "offset"))
SHAPE = layout(3, *EMPTY_SHAPE.fields, (ShapeField.RANK, "uint32"))
_INSIDE = (TensorField.DATA, TensorField.SCALE_DATA)
_EXTERNAL = (TensorField.OFFSET, TensorField.SCALE_OFFSET)
_SIZES = (TensorField.SIZE, TensorField.SCALE_SIZE)
"""The fields of each part of a tensor (``stored_types``)."""
_OF_BLOCKS = ((TensorField.SCALE_TYPE, "uint32"), (TensorField.BLOCK_SHAPE, "uint32"))
_OF_VARIABLE = ((TensorField.VARIABLE, "bool"), (TensorField.VARIABLE_NAME, "offset"))


@cache
def tensor_layout(
    is_scaled: bool, is_variable: bool, part_count: int = 0, external: bool = False
) -> TableLayout:
    """Return the layout of tensors with slots for ``part_count`` parts of elements.

    A slot is a field for the position of elements; a block-scaled constant has a second
    part, its scales. If elements are ``external``, outside of 32-bit offsets, the sizes
    of the parts are stored, too.
    """
    slots: list[tuple[int, str]] = []
    sizes: list[tuple[int, str]] = []
    if external:
        slots = [(field, "uint64") for field in _EXTERNAL[:part_count]]
        sizes = [(field, "uint64") for field in _SIZES[:part_count]]
    else:
        slots = [(field, "uint32") for field in _INSIDE[:part_count]]
    always = (
        (TensorField.NAME, "offset"),
        (TensorField.SHAPE, "offset"),
        (TensorField.TYPE, "uint32"),
    )
    return layout(
        14,
        *slots,
        *sizes,
        *always,
        *_OF_BLOCKS * is_scaled,
        *_OF_VARIABLE * is_variable,
    )


@cache
def element_type_fields(dtype: DType) -> tuple[int, ...]:
    """Return the values of a tensor's element type fields.

    Block-scaled tensors have three: the type of values, of scales, and the block size.
    """
    blocks = BLOCK_SCALED.get(dtype)
    if blocks is None:
        return (dtype,)
    return blocks.value, blocks.scale, blocks.size
