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
from .attribute_fields import elements, fields_of, unfolded
from .schema import DTYPES, NAMES, TABLE_OF, TAGS, UNSIGNED, Field

_READ = DTYPES | UNSIGNED
LITERAL_COST = 16
"""Cost of a constant made from an attribute, in elements, for ``Table.spend``.

It takes some 500 bytes of memory for 4 bytes of the file.
"""


class OperatorInFile(NamedTuple):
    """An operator as the file stores it.

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
        """Read the declarations of tensors; there are no shapes and no variables."""
        for tensor in self.table.each_table(2, "tensor"):
            self.tensors[self.new_name(tensor, TensorField.NAME)] = tensor

    def type_of(self, name: str) -> Type:
        """Return the declared type of a tensor."""
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
        """Read an operator. Raises FormatError for one that 0.80 lacks."""
        table.spend(OPERATOR_COST)
        code = table.scalar(OperatorField.CODE, "I")
        name = NAMES.get(code, "")
        if name not in OPERATORS and name not in ("CONST", "FULLY_CONNECTED"):
            raise table.damaged(
                f"operator number {code} is not supported in TOSA 0.80 files"
            )
        self.check_tag(name, table)
        inputs = table.strings(OperatorField.INPUTS, "input")
        results = table.strings(OperatorField.OUTPUTS, "output")
        if name == "CONST":
            return self.constant_operator(name, table, inputs, results)
        stored = OperatorInFile(
            table,
            operands=[self.used(tensor, table) for tensor in inputs],
            fields=self.fields(name, table) if name in TABLE_OF else {},
            declared=[self.type_of(tensor) for tensor in results],
            results=results,
        )
        try:
            if name == "FULLY_CONNECTED":
                return self.fully_connected(stored)
            return self.stored_operator(name, stored)
        except Illegal as problem:
            raise table.damaged(f"{name}: {problem}") from None

    def check_tag(self, name: str, table: Table) -> None:
        """Raise FormatError unless the operator has its kind of attribute table."""
        tag = table.scalar(OperatorField.ATTRIBUTE_TYPE, "B")
        # the table of RFFT2D is not read, and may be missing
        if name == "RFFT2D" and tag == TAGS["RFFT"]:
            return
        wanted = TAGS[TABLE_OF[name]] if name in TABLE_OF else 0
        if tag != wanted:
            raise table.damaged(f"{name} has attributes of kind {tag}, not {wanted}")

    def stored_operator(self, name: str, stored: OperatorInFile) -> None:
        """Read an operator that the IR has, too."""
        table, operands, fields, declared, results = stored
        kind = OPERATORS[name]
        if name == "RESCALE":
            fields |= self.unsigned(table)
        folded = [o for o in kind.operands if o in fields or o == "pad_const"]
        needed = len(kind.operands) - len(folded)
        # a list of operands may be empty
        fewest = needed - 1 if kind.variadic else needed
        if len(operands) < fewest or (len(operands) > needed and not kind.variadic):
            raise table.damaged(
                f"{name} has {len(operands)} operands instead of {needed}"
            )
        inputs, attributes = unfolded(kind, operands, fields, declared, self.literal)
        attributes |= implied(kind, declared, table)
        operator = kind(inputs, None, **attributes)
        self.append(operator, table)
        self.define_results(operator, results, declared, table)

    def unsigned(self, table: Table) -> dict[str, bool]:
        """Return the unsigned attributes of RESCALE, from unsigned tensor types."""
        found: dict[str, bool] = {}
        for attribute, field in (
            ("input_unsigned", OperatorField.INPUTS),
            ("output_unsigned", OperatorField.OUTPUTS),
        ):
            for name in table.strings(field, attribute)[:1]:
                number = self.tensors[name].scalar(TensorField.TYPE, "I")
                if number in UNSIGNED:
                    found[attribute] = True
        return found

    def fully_connected(self, stored: OperatorInFile) -> None:
        """Read FULLY_CONNECTED as a convolution of one-pixel images.

        Its operands are input [N,IC], weight [OC,IC] and bias.
        """
        table, operands, fields, declared, results = stored
        are_matrices = all(value.rank == 2 for value in operands[:2])
        if len(operands) != 3 or not are_matrices or len(declared) != 1:
            raise table.damaged(
                "FULLY_CONNECTED needs an input and a weight of rank 2, a bias and a"
                " result"
            )
        x, weight, bias = operands
        image = self.as_pixels(x, table)
        kernel = self.as_pixels(weight, table)
        window = {"pad": (0, 0, 0, 0), "stride": (1, 1), "dilation": (1, 1)}
        inputs, attributes = unfolded(
            CONV2D, [image, kernel, bias], fields | window, declared, self.literal
        )
        pixels = self.make(CONV2D, inputs, table, **attributes)
        count, _, _, channels = pixels.shape
        flat = RESHAPE([pixels, self.literal(DType.SHAPE, (count, channels))])
        self.append(flat, table)
        self.define_results(flat, results, declared, table)

    def as_pixels(self, matrix: Value, table: Table) -> Value:
        """Return a matrix [N,C] as [N,1,1,C]."""
        rows, columns = matrix.shape
        shape = self.literal(DType.SHAPE, (rows, 1, 1, columns))
        return self.make(RESHAPE, [matrix, shape], table)

    def make(
        self, kind: Any, inputs: Sequence[Value], table: Table, **attributes: Any
    ) -> Value:
        """Add an operator that the file does not have, and return its result."""
        table.spend(OPERATOR_COST)
        operator = kind(inputs, None, **attributes)
        self.append(operator, table)
        result: Value = operator.outputs[0]
        return result

    def literal(self, dtype: DType, numbers: Sequence[int | float]) -> Value:
        """Return a constant of rank 1. Equal ones are the same value."""
        made = elements(dtype, numbers)
        known = self.regions.literals
        key = dtype, made.array.tobytes()
        if key not in known:
            self.table.spend(LITERAL_COST)
            known[key] = Value(Type((len(numbers),), dtype), made)
        return known[key]

    def fields(self, name: str, table: Table) -> dict[str, Any]:
        """Return the attribute table of an operator."""
        stored = table.table(OperatorField.ATTRIBUTE, "attributes")
        if stored is None:
            raise table.damaged(f"{name} has no attributes")
        found: dict[str, Any] = {}
        for number, field in enumerate(fields_of(name)):
            found[field.name] = self.field(stored, number, field)
        return found

    def field(self, stored: Table, number: int, field: Field) -> Any:
        """Return a field of an attribute table."""
        kind = field.kind
        if kind == "Shorts":
            return tuple(stored.numbers(number, "i2", field.name))
        if kind == "float":
            raw = bytes(stored.raw(number, field.name)[:4])
            if len(raw) != 4:
                return 0.0
            (value,) = struct.unpack("<f", raw)
            return value
        if kind == "DType":
            return DTYPES.get(stored.scalar(number, "I"))
        if kind == "ResizeMode":
            return member(ResizeMode, stored.scalar(number, "I"), stored)
        return self.attribute(stored, number, kind, [])
