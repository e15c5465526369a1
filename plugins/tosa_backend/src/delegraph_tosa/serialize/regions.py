"""Reads regions and basic blocks of a TOSA file as graphs.

Checks every name, enumeration, count and type. Each operator's ``infer`` must agree
with the types that the file declares. Constants are views of the file's bytes, except
elements of fewer than 8 bits and of 48 bits, which are widened.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, cast

from delegraph.errors import FormatError
from delegraph_engines.flatbuffer import Table

from ..ir.graph import Constant, Graph, Illegal, Operator, Value
from ..ir.operators import OPERATORS, VARIABLE
from ..ir.types import BlockSize, DType, Mode, NanMode, ResizeMode, RoundingMode, Type
from .elements import unpack_number
from .schema import (
    IMPLIED,
    NAMES,
    STORED,
    WRITTEN_AS,
    BlockField,
    GraphField,
    OperatorField,
    RegionField,
    ShapeField,
    TensorField,
)
from .tensors import constant_of, member, type_of_tensor

MAX_SHAPE_LENGTH = 64
"""MAX_SHAPE_LEN of level NONE. Reading a shape operator computes its entries."""
MAX_NESTING = 64
"""The deepest nesting. Level NONE allows 256, but a level takes many Python frames."""
OPERATOR_COST = 16
"""Cost of an operator in elements, for ``Table.spend``.

In a small file, many entries of a vector may refer to the same operator.
"""
LONGEST_NUMBER = 32
"""Largest number of bytes read for a number; with padding it has 16."""
ENUMERATIONS: dict[str, type[Mode] | type[DType]] = {
    "BlockSize": BlockSize,
    "DType": DType,
    "NanMode": NanMode,
    "ResizeMode": ResizeMode,
    "RoundingMode": RoundingMode,
}


class Regions:
    """The regions of a file, of which the first is the program.

    A region becomes a graph when it is first referenced.
    """

    def __init__(self, table: Table, block: type[Block]) -> None:
        self.block = block
        self.tables: dict[str, Table] = {}
        self.graphs: dict[str, Graph] = {}
        self.variables: dict[str, Type] = {}
        # VARIABLE operators for variables that only control flow graphs use
        self.declared_inside: list[Operator] = []
        # number in the file of each operator of the program; -1 for a VARIABLE, which
        # a file declares by its tensor
        self.numbers: list[int] = []
        # constants made from attributes of TOSA 0.80, by type and elements
        self.literals: dict[Hashable, Value] = {}
        for region in table.each_table(GraphField.REGIONS, "region"):
            name = region.string(RegionField.NAME, "name")
            if name in self.tables:
                raise region.damaged(f"two regions are named {name!r}")
            self.tables[name] = region
        if not self.tables:
            raise table.damaged("it has no region")

    def program(self) -> Graph:
        """Return the graph of the first region."""
        return self.graph(next(iter(self.tables)), within=())

    def graph(self, name: str, within: tuple[str, ...]) -> Graph:
        """Return the graph of a region. ``within`` are the regions that refer to it."""
        if name not in self.tables:
            raise FormatError(
                "format-invalid", f"damaged TOSA file: there is no region {name!r}"
            )
        if name in within:
            raise self.tables[name].damaged(f"region {name!r} contains itself")
        if len(within) >= MAX_NESTING:
            raise self.tables[name].damaged(
                f"regions are nested deeper than {MAX_NESTING}"
            )
        if name not in self.graphs:
            blocks = self.tables[name].tables(RegionField.BLOCKS, "block")
            if len(blocks) != 1:
                raise self.tables[name].damaged(
                    f"it has {len(blocks)} basic blocks; TOSA allows one"
                )
            self.graphs[name] = self.block(self, blocks[0], (*within, name)).graph(name)
        return self.graphs[name]


class Block:
    """A basic block: its declared tensors and shapes, and the values defined so far.

    ``within`` are the names of its region and of those that refer to it. The methods
    raise FormatError for a damaged file.
    """

    def __init__(self, regions: Regions, table: Table, within: tuple[str, ...]) -> None:
        self.regions = regions
        self.table = table
        self.within = within
        self.tensors: dict[str, Table] = {}
        self.shapes: dict[str, Table] = {}
        self.values: dict[str, Value] = {}
        self.operators: list[Operator] = []

    @property
    def is_program(self) -> bool:
        """Return whether the block is that of the program."""
        return len(self.within) == 1

    def graph(self, name: str) -> Graph:
        """Read the block as a graph of this name."""
        self.declare()
        inputs = [self.input(n) for n in self.table.strings(BlockField.INPUTS, "input")]
        numbers = [-1] * len(self.operators)
        operators = self.table.each_table(BlockField.OPERATORS, "operator")
        for number, operator in enumerate(operators):
            self.operator(operator)
            # a constant becomes no operator, one of TOSA 0.80 may become several
            numbers += [number] * (len(self.operators) - len(numbers))
        if self.is_program:
            self.regions.numbers = numbers
        names = self.table.strings(BlockField.OUTPUTS, "output")
        outputs = [self.output(n) for n in names]
        if len({*outputs}) != len(outputs):
            raise self.table.damaged("an output occurs twice")
        return Graph(inputs, outputs, self.operators, name)

    # -- declarations ------------------------------------------------------------------

    def declare(self) -> None:
        """Read the declarations of tensors, shapes and variables."""
        for tensor in self.table.each_table(BlockField.TENSORS, "tensor"):
            self.tensors[self.new_name(tensor, TensorField.NAME)] = tensor
        for shape in self.table.each_table(BlockField.SHAPES, "shape"):
            self.shapes[self.new_name(shape, ShapeField.NAME)] = shape
        for name, tensor in self.tensors.items():
            if tensor.flag(TensorField.VARIABLE):
                self.variable(name, tensor)

    def new_name(self, table: Table, field: int) -> str:
        """Return the name of a declared tensor or shape, which must be new."""
        name = table.string(field, "name")
        if not name:
            raise table.damaged("it has no name")
        if name in self.tensors or name in self.shapes:
            raise table.damaged(f"the name {name!r} occurs twice")
        return name

    def variable(self, name: str, tensor: Table) -> None:
        """Read a variable: a tensor that keeps its value between calls.

        It becomes a VARIABLE operator with the initial value. Files repeat it in each
        block, but only the program's is used: others would reset it.
        """
        initial = self.constant(name, tensor)
        variable = tensor.string(TensorField.VARIABLE_NAME, "variable name")
        known = self.regions.variables.get(variable)
        if known not in (None, initial.type):
            raise tensor.damaged(
                f"variable {variable!r} is declared as {known} and as {initial.type}"
            )
        self.regions.variables[variable] = initial.type
        declaration = VARIABLE((initial,), variable=variable)
        if self.is_program:
            self.append(declaration, tensor)
        elif known is None:
            self.regions.declared_inside.append(declaration)

    def type_of(self, name: str) -> Type:
        """Return the declared type of a tensor or shape."""
        if name in self.shapes:
            rank = self.shapes[name].scalar(ShapeField.RANK, "I")
            if rank > MAX_SHAPE_LENGTH:
                raise self.shapes[name].damaged(
                    f"{name!r} has {rank} entries; at most {MAX_SHAPE_LENGTH}"
                    " are allowed"
                )
            return Type((rank,), DType.SHAPE)
        if name not in self.tensors:
            raise self.table.damaged(f"{name!r} is not declared")
        return type_of_tensor(self.tensors[name], name)

    # -- values ------------------------------------------------------------------------

    def define(self, name: str, value: Value) -> Value:
        """Note ``value`` under its name, and return it."""
        if name in self.values:
            raise self.table.damaged(f"{name!r} is defined twice")
        self.values[name] = value
        return value

    def used(self, name: str, user: Table) -> Value:
        """Return the value ``name``, which the table ``user`` refers to."""
        if name not in self.values:
            raise user.damaged(f"{name!r} is used before it is defined")
        return self.values[name]

    def input(self, name: str) -> Value:
        """Return a new input of the graph."""
        if name in self.shapes:
            raise self.table.damaged(f"the input {name!r} is a shape")
        return self.define(name, Value(self.type_of(name), name=name))

    def output(self, name: str) -> Value:
        """Return an output of the graph."""
        value = self.used(name, self.table)
        if value.dtype is DType.SHAPE:
            raise self.table.damaged(f"the output {name!r} is a shape")
        return value

    def constant(self, name: str, declared: Table) -> Value:
        """Return the constant that the table ``declared`` declares."""
        type = self.type_of(name)
        if type.is_dynamic:
            raise declared.damaged(f"the constant {name!r} has unknown sizes")
        return Value(type, self.elements(declared, name, type), name)

    def elements(self, declared: Table, name: str, type: Type) -> Constant:
        """Return the elements of a constant."""
        return constant_of(declared, name, type)

    # -- operators ---------------------------------------------------------------------

    def operator(self, table: Table) -> None:
        """Read an operator, and define its results."""
        table.spend(OPERATOR_COST)
        code = table.scalar(OperatorField.CODE, "I")
        tag = table.scalar(OperatorField.ATTRIBUTE_TYPE, "B")
        name = NAMES.get(code)
        # the tag tells access to a variable from IDENTITY
        if name and name == WRITTEN_AS.get(NAMES.get(tag, "")):
            code = tag
            name = NAMES[tag]
        if name is None:
            raise table.damaged(f"operator number {code} is not in TOSA 1.1")
        if tag not in (code, 0):
            raise table.damaged(f"{name} has the attributes of {NAMES.get(tag, tag)}")
        inputs = table.strings(OperatorField.INPUTS, "input")
        results = table.strings(OperatorField.OUTPUTS, "output")
        if name in ("CONST", "CONST_SHAPE"):
            return self.constant_operator(name, table, inputs, results)
        if name == "VARIABLE":
            return None  # ``declare`` has read its tensor
        return self.computing_operator(OPERATORS[name], table, inputs, results)

    def constant_operator(
        self, name: str, table: Table, inputs: list[str], results: list[str]
    ) -> None:
        """Define the constant of a CONST or CONST_SHAPE."""
        declared = self.shapes if name == "CONST_SHAPE" else self.tensors
        if inputs or len(results) != 1 or results[0] not in declared:
            raise table.damaged(f"{name} must have no operand and one declared result")
        self.define(results[0], self.constant(results[0], declared[results[0]]))

    def computing_operator(
        self, kind: type[Operator], table: Table, inputs: list[str], results: list[str]
    ) -> None:
        """Read an operator that is not a constant.

        Access to a variable has it as operand or result in the file, but as attribute
        in the graph.
        """
        name = kind.__name__
        variable = {}
        if name == "VARIABLE_READ":
            variable = {"variable": self.variable_name(inputs, table)}
            inputs = []
        if name == "VARIABLE_WRITE":
            variable = {"variable": self.variable_name(results, table)}
            results = []
        if not _has_count(kind, len(inputs)):
            raise table.damaged(
                f"{name} has {len(inputs)} operands instead of {len(kind.operands)}"
            )
        operands = [self.used(n, table) for n in inputs]
        if name == "CONCAT_SHAPE":
            entries = sum(v.shape[0] for v in operands if v.dtype is DType.SHAPE)
            if entries > MAX_SHAPE_LENGTH:
                raise table.damaged(
                    f"{name} gives {entries} entries, more than {MAX_SHAPE_LENGTH}"
                )
        declared = [self.type_of(n) for n in results]
        attributes = variable or self.attributes(kind, table, operands)
        location = table.table(OperatorField.LOCATION, "location")
        source = location.string(0, "text") if location else ""
        attributes |= implied(kind, declared, table)
        operator = kind(operands, source or None, **attributes)
        self.append(operator, table)
        self.define_results(operator, results, declared, table)

    def variable_name(self, names: list[str], table: Table) -> str:
        """Return the variable of the only tensor in ``names``."""
        if len(names) != 1 or names[0] not in self.tensors:
            raise table.damaged("it needs one variable")
        tensor = self.tensors[names[0]]
        if not tensor.flag(TensorField.VARIABLE):
            raise table.damaged(f"{names[0]!r} is not a variable")
        return tensor.string(TensorField.VARIABLE_NAME, "variable name")

    def append(self, operator: Operator, table: Table) -> None:
        """Infer the types of the operator's results, and add it to the graph."""
        try:
            inferred = operator.infer()
        except Illegal as problem:
            raise table.damaged(f"{operator.name}: {problem}") from None
        operator.outputs = tuple(Value(type, producer=operator) for type in inferred)
        self.operators.append(operator)

    def define_results(
        self, operator: Operator, names: list[str], declared: list[Type], table: Table
    ) -> None:
        """Define the operator's results. Their types must agree with ``declared``."""
        inferred = [v.type for v in operator.outputs]
        agreed = [i.reconciled(d) for i, d in zip(inferred, declared, strict=False)]
        if len(inferred) != len(declared) or None in agreed:
            wanted = ", ".join(map(str, inferred)) or "nothing"
            found = ", ".join(map(str, declared)) or "nothing"
            raise table.damaged(
                f"{operator.name} computes {wanted}, the file declares {found}"
            )
        for name, value, type in zip(names, operator.outputs, agreed, strict=True):
            value.name = name
            value.type = cast(Type, type)
            self.define(name, value)

    def attributes(
        self, kind: type[Operator], table: Table, operands: list[Value]
    ) -> dict[str, Any]:
        """Return the stored attributes of an operator, by name."""
        attributes = STORED[kind]
        if not attributes:
            return {}
        stored = table.table(OperatorField.ATTRIBUTE, "attributes")
        if stored is None:
            raise table.damaged(f"{kind.__name__} has no attributes")
        return {
            attribute.name: self.attribute(stored, field, attribute.kind, operands)
            for field, attribute in enumerate(attributes)
        }

    def attribute(
        self, stored: Table, field: int, kind: str, operands: list[Value]
    ) -> Any:
        """Return the value of a field of an attribute table.

        The first of ``operands`` has the element type of a Number.
        """
        if kind in ENUMERATIONS:
            return member(ENUMERATIONS[kind], stored.scalar(field, "I"), stored)
        if kind == "Graph":
            return self.regions.graph(stored.string(field, "region"), self.within)
        if kind == "Number":
            return _number(stored, field, operands[0].dtype)
        if kind == "Ints":
            return tuple(stored.numbers(field, "i4", f"field {field}"))
        if kind == "bytes":
            return stored.copied(field, f"field {field}")
        if kind == "str":
            return stored.string(field, f"field {field}")
        if kind == "bool":
            return stored.flag(field)
        return stored.scalar(field, "i")


def _has_count(kind: type[Operator], count: int) -> bool:
    """Return whether an operator may have ``count`` operands."""
    if kind.variadic:
        return count >= len(kind.operands) - 1
    return count == len(kind.operands)


def implied(kind: type[Operator], declared: list[Type], table: Table) -> dict[str, Any]:
    """Return the attributes that follow from the declared results."""
    if IMPLIED[kind] and not declared:
        raise table.damaged(f"{kind.__name__} has no result")
    found: dict[str, Any] = {}
    for attribute in IMPLIED[kind]:
        if attribute.kind == "ResultDType":
            found[attribute.name] = declared[0].dtype
        else:
            found[attribute.name] = tuple(declared)
    return found


def _number(stored: Table, field: int, dtype: DType) -> float | int:
    """Return a number of type ``dtype`` from a field that has its bytes."""
    data = bytes(stored.raw(field, f"field {field}")[:LONGEST_NUMBER])
    try:
        return unpack_number(data, dtype)
    except Illegal as problem:
        raise stored.damaged(str(problem)) from None
