"""Reads a basic block of TOSA 0.80, from an untrusted source, into the IR."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from delegraph_engines.flatbuffer import Table

from ...ir.graph import Constant, Illegal, Literal, Value
from ...ir.operators import CONV2D, OPERATORS, RESHAPE
from ...ir.types import DType, ResizeMode, Type
from ..regions import OPERATOR_COST, Block, implied
from ..schema import OperatorField, TensorField
from ..tensors import constant_of, member, shape_of_tensor
from .attribute_fields import elements, unfolded
from .schema import DTYPES, NAMES, TABLE_OF, TABLES, TAGS, UNSIGNED, Field

_READ = DTYPES | UNSIGNED
LITERAL_COST = 16
"""Cost, in elements, of a constant made from an attribute.

It takes some 500 bytes of memory for 4 bytes of the file.
"""


class Written(NamedTuple):
    """An operator as the file has it.

    ``fields`` are its attribute table, ``declared`` the types of its results.
    """

    table: Table
    operands: list[Value]
    fields: dict[str, Any]
    declared: list[Type]
    results: list[str]


class OlderBlock(Block):
    """A basic block of 0.80. Fields of attribute tables become constants."""

    def declare(self) -> None:
        for tensor in self.table.each_table(2, "tensor"):
            self.tensors[self.new_name(tensor, TensorField.NAME)] = tensor

    def type_of(self, name: str) -> Type:
        if name not in self.tensors:
            raise self.table.damaged(f"{name!r} is not declared")
        tensor = self.tensors[name]
        number = tensor.scalar(TensorField.TYPE, "I")
        if number not in _READ:
            raise tensor.damaged(
                f"{name!r} has element type {number}, which no tensor of TOSA 0.80 has"
            )
        return Type(shape_of_tensor(tensor, name), _READ[number]).named(name)

    def elements(self, declared: Table, name: str, type: Type) -> Constant:
        """Return the elements of a constant.

        The file stores bfloat16 as 32-bit floats.
        """
        if type.dtype is not DType.BF16:
            return constant_of(declared, name, type)
        wide = constant_of(declared, name, Type(type.shape, DType.FP32))
        assert isinstance(wide, Literal)
        declared.spend(wide.array.nbytes // 8)
        return elements(DType.BF16, wide.array)

    def operator(self, table: Table) -> None:
        table.spend(OPERATOR_COST)
        code = table.scalar(OperatorField.CODE, "I")
        tag = table.scalar(OperatorField.ATTRIBUTE_TYPE, "B")
        name = NAMES.get(code, "")
        if name not in OPERATORS and name not in ("CONST", "FULLY_CONNECTED"):
            raise table.damaged(
                f"operator number {code} is not supported in TOSA 0.80 files"
            )
        wanted = TAGS.get(TABLE_OF.get(name, ""), 0)
        if tag != wanted and not (name == "RFFT2D" and tag == TAGS["RFFT"]):
            raise table.damaged(f"{name} has attributes of kind {tag}, not {wanted}")
        inputs = table.strings(OperatorField.INPUTS, "input")
        results = table.strings(OperatorField.OUTPUTS, "output")
        if name == "CONST":
            return self.constant_operator(name, table, inputs, results)
        operands = [self.used(n, table) for n in inputs]
        declared = [self.type_of(n) for n in results]
        fields = self.fields(name, table) if wanted else {}
        written = Written(table, operands, fields, declared, results)
        try:
            if name == "FULLY_CONNECTED":
                return self.fully_connected(written)
            return self.computing(name, written)
        except Illegal as problem:
            raise table.damaged(f"{name}: {problem}") from None

    def computing(self, name: str, written: Written) -> None:
        table, operands, fields, declared, results = written
        kind = OPERATORS[name]
        fields |= self.unsigned(name, table)
        folded = [o for o in kind.operands if o in fields or o == "pad_const"]
        given = len(kind.operands) - len(folded)
        if len(operands) < given - 1 if kind.variadic else len(operands) != given:
            raise table.damaged(
                f"{name} has {len(operands)} operands instead of {given}"
            )
        inputs, attributes = unfolded(kind, operands, fields, declared, self.literal)
        operator = kind(inputs, None, **attributes, **implied(kind, declared, table))
        self.finish(operator, table)
        self.declare_results(operator, results, declared, table)

    def unsigned(self, name: str, table: Table) -> dict[str, bool]:
        """Return the unsigned attributes of RESCALE, from unsigned tensor types."""
        if name != "RESCALE":
            return {}
        sides = {
            "input_unsigned": OperatorField.INPUTS,
            "output_unsigned": OperatorField.OUTPUTS,
        }
        found = {}
        for side, field in sides.items():
            for name in table.strings(field, side)[:1]:
                if self.tensors[name].scalar(TensorField.TYPE, "I") in UNSIGNED:
                    found[side] = True
        return found

    def fully_connected(self, written: Written) -> None:
        """Read FULLY_CONNECTED as a convolution of one-pixel images.

        Its operands are input [N,IC], weight [OC,IC] and bias.
        """
        table, operands, fields, declared, results = written
        is_matrix = [value.rank == 2 for value in operands[:2]]
        if len(operands) != 3 or not all(is_matrix) or len(declared) != 1:
            raise table.damaged(
                "FULLY_CONNECTED needs an input and a weight of rank 2, a bias and a"
                " result"
            )
        image, weight = (
            self.appended(
                RESHAPE,
                [v, self.literal(DType.SHAPE, (v.shape[0], 1, 1, v.shape[1]))],
                table,
            )
            for v in operands[:2]
        )
        window = {"pad": (0, 0, 0, 0), "stride": (1, 1), "dilation": (1, 1)}
        inputs, attributes = unfolded(
            CONV2D,
            [image, weight, operands[2]],
            fields | window,
            declared,
            self.literal,
        )
        pixels = self.appended(CONV2D, inputs, table, **attributes)
        flat = RESHAPE(
            [pixels, self.literal(DType.SHAPE, (pixels.shape[0], pixels.shape[3]))]
        )
        self.finish(flat, table)
        self.declare_results(flat, results, declared, table)

    def appended(
        self, kind: Any, inputs: Sequence[Value], table: Table, **attributes: Any
    ) -> Value:
        """Add an operator that the file does not have, and return its result."""
        table.spend(OPERATOR_COST)
        operator = kind(inputs, None, **attributes)
        self.finish(operator, table)
        result: Value = operator.outputs[0]
        return result

    def literal(self, dtype: DType, numbers: Sequence[int | float]) -> Value:
        """Return a constant of rank 1, shared by equal numbers."""
        made = elements(dtype, numbers)
        known = self.regions.literals
        key = dtype, made.array.tobytes()
        if key not in known:
            self.table.spend(LITERAL_COST)
            known[key] = Value(Type((len(numbers),), dtype), made)
        return known[key]

    def fields(self, name: str, table: Table) -> dict[str, Any]:
        stored = table.table(OperatorField.ATTRIBUTE, "attributes")
        if stored is None:
            raise table.damaged(f"{name} has no attributes")
        return {
            field.name: self.field(stored, i, field)
            for i, field in enumerate(TABLES[TABLE_OF[name]])
        }

    def field(self, stored: Table, number: int, field: Field) -> Any:
        kind = field.kind
        if kind == "Shorts":
            return tuple(stored.numbers(number, "i2", field.name))
        if kind == "float":
            raw = bytes(stored.raw(number, field.name)[:4])
            return struct.unpack("<f", raw)[0] if len(raw) == 4 else 0.0
        if kind == "DType":
            return DTYPES.get(stored.scalar(number, "I"))
        if kind == "ResizeMode":
            return member(ResizeMode, stored.scalar(number, "I"), stored)
        return self.attribute(stored, number, kind, [])
