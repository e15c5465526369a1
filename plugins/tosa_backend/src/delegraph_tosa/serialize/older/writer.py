"""Builds the structure of a TOSA 0.80 file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from delegraph.errors import Unsupported
from delegraph_engines.flatbuffer_builder import Field

from ...ir.graph import Folded, Graph, Illegal, Operator, Value
from ...ir.operators import CAST
from ...ir.types import DType, Type
from ..schema import TensorField
from ..structure import DATA_FIELD_ALIGNMENT, TO_BE_FILLED_IN, Block, Slot, Structure
from ..table_layouts import OPERATOR, TableLayout, layout
from .attribute_fields import attribute_table, float_bytes, operands_of
from .schema import CODES, NUMBERS, TABLE_OF, TABLES, TAGS, VERSION
from .schema import Field as AttributeField

_KINDS = {"int": "int32", "bool": "bool", "DType": "uint32", "ResizeMode": "uint32"}
"""Maps kinds of fields that are stored inline to their type; others are offsets."""


def _layout_of(fields: Sequence[AttributeField]) -> TableLayout:
    """Return the layout of an attribute table."""
    types = [_KINDS.get(field.kind, "offset") for field in fields]
    return layout(len(fields), *enumerate(types))


_LAYOUTS: dict[str, TableLayout] = {
    name: _layout_of(fields) for name, fields in TABLES.items()
}
_TENSOR = layout(
    4,
    (TensorField.NAME, "offset"),
    (TensorField.SHAPE, "offset"),
    (TensorField.TYPE, "uint32"),
)
_CONSTANT = layout(4, (TensorField.DATA, "uint32"), *_TENSOR.fields)


class OlderBlock(Block):
    """Builds the block of a region, which has no shapes and no folded operands."""

    def shapes_field(self) -> list[Field]:
        """Return no field."""
        return []

    def constants(self) -> list[Value]:
        """Return the constants that stay operands in 0.80, each once."""
        used: dict[Value, None] = {}
        for operator in self.graph.operators:
            for value in operands_of(operator):
                if value.constant is not None:
                    used[value] = None
        return list(used)

    def tensor(
        self, value: Value, variable: str | None = None, name: str | None = None
    ) -> None:
        """Add the table of a tensor; the elements of a constant are filled in later."""
        build = self.build
        values = [build.string(self.names[value]), *self.structure.type_of(value)]
        if value.constant is None:
            fields = _TENSOR.with_values(values)
            self.tensors.append(build.table(_TENSOR.field_count, fields))
            return
        fields = _CONSTANT.with_values([TO_BE_FILLED_IN, *values])
        table = build.table_with_places(_CONSTANT.field_count, fields)
        distance = table.places[TensorField.DATA]
        slot = Slot(_as_stored(value), 0, distance, wide=False)
        self.structure.slots.append(slot)
        self.tensors.append(table.position)

    def operator(self, operator: Operator) -> None:
        """Add an operator and its results.

        Raises Unsupported for one that 0.80 lacks or cannot express.
        """
        if operator.name not in CODES:
            raise _refused(operator, "it is not in TOSA 0.80")
        try:
            attributes = self.structure.attributes(operator)
        except (Illegal, OverflowError) as problem:
            raise _refused(operator, str(problem)) from None
        prefix = operator.name.lower()
        results = [self.named(value, prefix) for value in operator.outputs]
        for value in operator.outputs:
            self.tensor(value)
        inputs = [self.defined(value, operator) for value in operands_of(operator)]
        self.structure.numbers[operator] = self.structure.count
        self.append(operator.name, attributes, inputs, results)

    def append(
        self,
        name: str,
        attributes: int,
        inputs: Any,
        outputs: Any,
        source: object = None,
    ) -> None:
        """Add an operator. These files cannot hold ``source``."""
        table = TABLE_OF.get(name)
        tag = 0
        if table is None:
            attributes = 0
        else:
            tag = TAGS[table]
        input_names = self.build.strings(inputs)
        output_names = self.build.strings(outputs)
        values = [attributes, CODES[name], tag, input_names, output_names]
        fields = OPERATOR.with_values(values)
        self.operators.append(self.build.table(OPERATOR.field_count, fields))
        self.structure.count += 1


class OlderStructure(Structure):
    """Builds the structure of a 0.80 file."""

    block = OlderBlock

    def __init__(self, graph: Graph, locations: bool, external: bool) -> None:
        if external:
            raise Unsupported(
                "unsupported",
                "files of TOSA 0.80 are limited to 2 GB; use TOSA 1.0",
            )
        super().__init__(graph, locations, external)

    def version(self, major: int, minor: int) -> int:
        """Return the table of the version, which is always ``VERSION``."""
        numbers = [Field(i, "int32", number) for i, number in enumerate(VERSION)]
        return self.build.table(4, [*numbers, Field(3, "bool", False)])

    def element_type_fields(self, dtype: DType) -> tuple[int, ...]:
        """Return the number of an element type. Raises Unsupported if 0.80 lacks it."""
        if dtype not in NUMBERS:
            raise Unsupported("unsupported", f"TOSA 0.80 has no tensors of {dtype}")
        return (NUMBERS[dtype],)

    def attributes(self, operator: Operator) -> int:
        """Return the operator's attribute table, or 0.

        Equal attributes share a table.
        """
        table = TABLE_OF.get(operator.name)
        if table is None:
            return 0
        values = [
            self.attribute(field.kind, value, operator)
            for field, value in attribute_table(operator)
        ]
        fields = _LAYOUTS[table].with_values(values)
        return self.build.table(_LAYOUTS[table].field_count, fields)

    def attribute(self, kind: str, value: Any, operator: Operator) -> int:
        """Return the value of an attribute's field: its position, or the number."""
        if kind == "Shorts":
            return self.build.vector("int16", value)
        if kind == "float":
            return self.build.byte_vector(float_bytes(value), DATA_FIELD_ALIGNMENT)
        if kind == "DType":
            return NUMBERS[value] if value else 0
        return super().attribute(kind, value, operator)


def _as_stored(value: Value) -> Value:
    """Return the constant as the file stores it: bfloat16 as 32-bit floats."""
    if value.dtype is not DType.BF16:
        return value
    cast = CAST((value,), dtype=DType.FP32)
    cast.outputs = (Value(Type(value.shape, DType.FP32), Folded(cast)),)
    return cast.outputs[0]


def _refused(operator: Operator, why: str) -> Unsupported:
    return Unsupported(
        "unsupported", f"TOSA {operator.name}: {why}", source=operator.source
    )
