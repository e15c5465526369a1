"""Builds the structure of a TOSA file: everything but the elements of constants."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

from delegraph.errors import InternalError, Unsupported
from delegraph_engines.flatbuffer_builder import Builder, Field

from ..ir.dynamic_sizes import LARGEST_SIZE
from ..ir.graph import Folded, Graph, Illegal, Operator, Value
from ..ir.operators import (
    IDENTITY,
    RESHAPE,
    TRANSPOSE,
    VARIABLE,
    VARIABLE_READ,
    VARIABLE_WRITE,
)
from ..ir.types import BLOCK_SCALED, DType, Type, stored_types
from .elements import pack_number, size_in_file
from .names import Names
from .schema import (
    DATA_ALIGNMENT,
    IDENTIFIER,
    MXFP,
    MXFP_READER,
    STORED,
    BlockField,
    CompatibilityField,
    GraphField,
    RegionField,
    ShapeField,
)
from .table_layouts import (
    ATTRIBUTES,
    CODES_IN_FILE,
    EMPTY_SHAPE,
    OPERATOR,
    OPERATOR_WITH_LOCATION,
    SHAPE,
    element_type_fields,
    tensor_layout,
)

MAIN = "main"
"""Name of the first region, the program. Other regions are control flow bodies."""
DATA_FIELD_ALIGNMENT = 8
"""Alignment in bytes that the schema requires for vectors of bytes."""
TO_BE_FILLED_IN = 1
"""Placeholder of a field that is set later.

It must differ from the default, or the field is omitted.
"""
LENGTH_BYTES = 4
"""Size in bytes of a vector's length, which precedes its elements."""


class Placed(NamedTuple):
    """The position in the file of a constant's elements.

    It is the start of their vector or, without ``has_length``, of the bare elements.
    ``part`` is an index into ``stored_types``: 1 means the scales of a block-scaled
    constant.
    """

    value: Value
    part: int
    start: int
    has_length: bool

    @property
    def type(self) -> Type:
        return stored_types(self.value.type)[self.part]


class Slot(NamedTuple):
    """A field that receives the position of a part of a constant.

    ``distance`` is counted from the end of the structure.
    """

    value: Value
    part: int
    distance: int
    wide: bool


_Part = tuple[Value, int]


class Layout(NamedTuple):
    """A file without the elements of its constants.

    ``placed`` are the constants in file order, ``size`` is the file's size in bytes.
    ``numbers`` maps an operator to its number in the file, counted region by region.
    The file also has operators for constants, and none for VARIABLE.
    """

    structure: bytes
    placed: list[Placed]
    size: int
    numbers: dict[Operator, int]


def lay_out(
    graph: Graph,
    version: tuple[int, int],
    locations: bool,
    limit: int,
    kind: type[Structure] | None = None,
) -> Layout:
    """Compute where everything lies in the file.

    From ``limit`` bytes on, tensors use ``offset`` and ``size`` for their constants,
    which 32-bit offsets may not reach.
    """
    kind = kind or Structure
    writer, structure = _written(kind(graph, locations, False), version)
    placed, end = _places(writer.slots, len(structure))
    if end >= limit:
        writer, structure = _written(kind(graph, locations, True), version)
        placed, end = _places(writer.slots, len(structure))
    for slot in writer.slots:
        address = len(structure) - slot.distance
        place = placed[slot.value, slot.part]
        struct.pack_into(
            "<Q" if slot.wide else "<I",
            structure,
            address,
            place.start - (0 if slot.wide else address),
        )
    distinct = list(dict.fromkeys(placed.values()))
    return Layout(bytes(structure), distinct, end, writer.numbers)


def _written(
    writer: Structure, version: tuple[int, int]
) -> tuple[Structure, bytearray]:
    return writer, writer.finish(version)


def _in_file_order(slots: list[Slot]) -> list[Slot]:
    # Constants with 32-bit offsets come first, so that the offsets reach them.
    return sorted(slots, key=lambda slot: slot.wide)


def _places(slots: list[Slot], end: int) -> tuple[dict[_Part, Placed], int]:
    """Place constants after a structure of ``end`` bytes.

    Return where the last one ends. Tensors with the same elements share one vector.
    Examples are a weight used in several branches, and an embedding tied to a layer.
    """
    placed: dict[_Part, Placed] = {}
    of_elements: dict[_Part, Placed] = {}
    for slot in _in_file_order(slots):
        part = slot.value, slot.part
        if part in placed:
            continue
        elements = _shared_elements(slot.value), slot.part
        if elements not in of_elements:
            length = 0 if slot.wide else LENGTH_BYTES
            data = _aligned(end + length)
            of_elements[elements] = place = Placed(
                slot.value, slot.part, data - length, not slot.wide
            )
            end = data + size_in_file(place.type)
        placed[part] = of_elements[elements]
    return placed, end


def _shared_elements(value: Value) -> Value:
    """Return the constant with the same elements in the same order as ``value``.

    ``value`` is a view of that constant, or the constant itself.
    """
    if value.dtype in BLOCK_SCALED:  # its scales have another order
        return value
    views: list[_View] = []
    found = value
    while isinstance(value.constant, Folded) and isinstance(
        value.constant.operator, (RESHAPE, TRANSPOSE)
    ):
        views.append(_View(value.constant.operator, value.shape))
        value = value.constant.operator.inputs[0]
        if _keeps_order(value.shape, views):
            found = value
    return found


class _View(NamedTuple):
    """An operator that moves elements, and the shape of its result."""

    operator: RESHAPE | TRANSPOSE
    shape: Sequence[int]


class _Axis(NamedTuple):
    """An axis of a view: its size, and the distance of neighbours in elements."""

    size: int
    stride: int


def _keeps_order(shape: Sequence[int], views: Sequence[_View]) -> bool:
    """Return whether views of a tensor of ``shape`` keep the order of its elements.

    The last of ``views`` is applied first.
    """
    axes = _split([_Axis(math.prod(shape), 1)], shape)
    for view in reversed(views):
        if axes is None:
            return False
        if isinstance(view.operator, TRANSPOSE):
            axes = [axes[axis] for axis in view.operator.perms]
        else:
            axes = _split(axes, view.shape)
    return axes is not None and _merged(axes) in ([], [_Axis(math.prod(shape), 1)])


def _merged(axes: Sequence[_Axis]) -> list[_Axis]:
    """Drop axes of size 1, and merge neighbours with adjacent elements."""
    merged: list[_Axis] = []
    for axis in axes:
        if axis.size == 1:
            continue
        if merged and merged[-1].stride == axis.size * axis.stride:
            axis = _Axis(merged.pop().size * axis.size, axis.stride)
        merged.append(axis)
    return merged


def _split(axes: Sequence[_Axis], shape: Sequence[int]) -> list[_Axis] | None:
    """Return the axes of a view after RESHAPE; None if an axis breaks up."""
    rest = _merged(axes)
    split = []
    size = 1
    stride = 0
    for wanted in shape:
        if wanted == 1:
            split.append(_Axis(1, 0))
            continue
        if size == 1 and rest:
            size, stride = rest.pop(0)
        if wanted == 0 or size % wanted:
            return None
        size //= wanted
        split.append(_Axis(wanted, stride * size))
    return split


def _aligned(position: int) -> int:
    return -(-position // DATA_ALIGNMENT) * DATA_ALIGNMENT


class Structure:
    """Builds the structure of a graph and its control flow graphs in one pass."""

    block: ClassVar[type[Block]]
    """The class that builds the block of a region."""

    def __init__(self, graph: Graph, locations: bool, external: bool) -> None:
        self.build = Builder()
        self.locations = locations
        self.external = external
        self.slots: list[Slot] = []
        self.types: dict[Type, tuple[int, ...]] = {}
        """Fields of each tensor type so far. Many tensors share a type."""
        self.graphs = [_with_distinct_outputs(g) for g in graph.reachable()]
        self.names = Names(v for g in self.graphs for v in _values(g))
        self.regions = dict(
            zip(graph.reachable(), _region_names(self.graphs), strict=True)
        )
        declared = (
            op
            for g in reversed(self.graphs)
            for op in reversed(g.operators)
            if isinstance(op, VARIABLE)
        )
        self.variables = {op.variable: op for op in declared}
        self.variable_names: dict[str, str] = {}
        self.count = 0
        self.numbers: dict[Operator, int] = {}

    def finish(self, version: tuple[int, int]) -> bytearray:
        regions = [
            self.region(graph, name)
            for graph, name in zip(self.graphs, self.regions.values(), strict=True)
        ]
        root = [
            Field(GraphField.VERSION, "offset", self.version(*version)),
            Field(GraphField.REGIONS, "offset", self.build.vector("offset", regions)),
        ]
        if any(type.dtype in BLOCK_SCALED for type in self.types):
            root.append(Field(GraphField.COMPATIBILITY, "offset", self.compatibility()))
        return self.build.finish(self.build.table(4, root), IDENTIFIER)

    def version(self, major: int, minor: int) -> int:
        fields = [
            Field(i, "int32", number) for i, number in enumerate((major, minor, 0))
        ]
        if (major, minor) != (1, 1):
            fields.append(Field(3, "bool", False))  # a draft unless the file has this
        return self.build.table(4, fields)

    def compatibility(self) -> int:
        """Return the table that stops readers without block-scaled tensors.

        Written as the official serializer does.
        """
        numbers = [Field(i, "int32", number) for i, number in enumerate(MXFP_READER)]
        reader = self.build.table(4, numbers)
        fields = [
            Field(CompatibilityField.MIN_READER_VERSION, "offset", reader),
            Field(CompatibilityField.FEATURES, "uint64", MXFP),
        ]
        return self.build.table(2, fields)

    def region(self, graph: Graph, name: str) -> int:
        block = self.block(self, graph).table(name)
        fields = [
            Field(RegionField.NAME, "offset", self.build.string(name)),
            Field(RegionField.BLOCKS, "offset", self.build.vector("offset", [block])),
        ]
        return self.build.table(2, fields)

    def type_of(self, value: Value) -> tuple[int, ...]:
        """Return the values of a tensor's type fields: shape and element type."""
        found = self.types.get(value.type)
        if found is None:
            shape = value.type.declared
            if max(shape, default=0) > LARGEST_SIZE:
                raise Unsupported(
                    "unsupported",
                    f"{value!r}: the largest size in a TOSA file is {LARGEST_SIZE}",
                )
            found = self.types[value.type] = (
                self.build.vector("int32", shape),
                *self.element_type_fields(value.dtype),
            )
        return found

    def element_type_fields(self, dtype: DType) -> tuple[int, ...]:
        """Return the values of a tensor's element type fields."""
        return element_type_fields(dtype)

    def attributes(self, operator: Operator) -> int:
        """Return the operator's attribute table. Equal attributes share a table."""
        cls = type(operator)
        values = [
            self.attribute(kind, getattr(operator, name), operator)
            for name, kind in STORED[cls]
        ]
        found = ATTRIBUTES[cls]
        return self.build.table(found.field_count, found.with_values(values))

    def attribute(self, kind: str, value: Any, operator: Operator) -> int:
        """Return the value of an attribute's field: an offset or the attribute."""
        if kind == "Ints":
            return self.build.vector("int32", value)
        if kind == "Number":
            return self.build.byte_vector(
                pack_number(value, operator.inputs[0].dtype), DATA_FIELD_ALIGNMENT
            )
        if kind == "bytes":
            return self.build.byte_vector(value, DATA_FIELD_ALIGNMENT)
        if kind in ("str", "Graph"):
            return self.build.string(self.regions[value] if kind == "Graph" else value)
        return int(value)


class Block:
    """Builds the only basic block of a region.

    Tensors, shapes and operators are in order of first use.
    """

    def __init__(self, structure: Structure, graph: Graph) -> None:
        self.structure = structure
        self.build = structure.build
        self.graph = graph
        self.names: dict[Value, str] = {}
        self.variables: set[str] = set()
        self.tensors: list[int] = []
        self.shapes: list[int] = []
        self.operators: list[int] = []

    def table(self, name: str) -> int:
        self.name_boundary()
        for value in self.graph.inputs:
            self.tensor(value)
        for value in self.constants():
            self.constant(value)
        for operator in self.graph.operators:
            self.operator(operator)
        build = self.build
        inputs = [self.names[value] for value in self.graph.inputs]
        outputs = [self.names[value] for value in self.graph.outputs]
        fields = [
            Field(BlockField.NAME, "offset", build.string(name)),
            Field(
                BlockField.OPERATORS, "offset", build.vector("offset", self.operators)
            ),
            Field(BlockField.TENSORS, "offset", build.vector("offset", self.tensors)),
            Field(BlockField.INPUTS, "offset", build.strings(inputs)),
            Field(BlockField.OUTPUTS, "offset", build.strings(outputs)),
            *self.shapes_field(),
        ]
        return build.table(6, fields)

    def shapes_field(self) -> list[Field]:
        """Return the field for shapes; empty for a version without shapes."""
        return [
            Field(BlockField.SHAPES, "offset", self.build.vector("offset", self.shapes))
        ]

    def constants(self) -> list[Value]:
        """Return the constants that operators use, except initial values."""
        used: dict[Value, None] = {}
        for operator in self.graph.operators:
            if not isinstance(operator, VARIABLE):
                constants = [v for v in operator.inputs if v.constant is not None]
                used |= dict.fromkeys(constants)
        return list(used)

    def name_boundary(self) -> None:
        for kind, values in (
            ("input", self.graph.inputs),
            ("output", self.graph.outputs),
        ):
            for position, value in enumerate(values):
                self.names[value] = self.structure.names.name(value, kind, position)

    def named(self, value: Value, kind: str) -> str:
        if value not in self.names:
            self.names[value] = self.structure.names.name(value, kind)
        return self.names[value]

    def constant(self, value: Value) -> None:
        """Add a constant's tensor or shape, and the operator that makes it a value."""
        is_shape = value.dtype is DType.SHAPE
        name = self.named(value, "shape" if is_shape else "const")
        if is_shape:
            self.shape(value, name)
        else:
            self.tensor(value)
        self.append(
            "CONST_SHAPE" if is_shape else "CONST", self.build.table(0, []), [], [name]
        )

    def shape(self, value: Value, name: str) -> None:
        entries = value.shape[0] if value.shape else 0
        found = SHAPE if entries else EMPTY_SHAPE
        values = [self.build.string(name), *[entries] * (entries > 0)]
        table = self.build.table_with_places(
            found.field_count, found.with_values([TO_BE_FILLED_IN, *values])
        )
        self.structure.slots.append(
            Slot(value, 0, table.places[ShapeField.DATA], False)
        )
        self.shapes.append(table.position)

    def computed_shape(self, value: Value, name: str) -> None:
        """Declare the result of a shape operator, without entries."""
        fields = [
            Field(ShapeField.NAME, "offset", self.build.string(name)),
            Field(ShapeField.RANK, "uint32", value.shape[0]),
        ]
        self.shapes.append(self.build.table(3, fields))

    def tensor(
        self, value: Value, variable: str | None = None, name: str | None = None
    ) -> None:
        values = [
            self.build.string(name or self.names[value]),
            *self.structure.type_of(value),
        ]
        if variable is not None:
            values += [1, self.build.string(variable)]
        if value.constant is None:
            found = tensor_layout(value.dtype in BLOCK_SCALED, variable is not None)
            made = self.build.table(found.field_count, found.with_values(values))
        else:
            made = self.with_data(value, variable is not None, values)
        self.tensors.append(made)

    def with_data(self, value: Value, is_variable: bool, values: Sequence[int]) -> int:
        external = self.structure.external
        types = stored_types(value.type)
        sizes = [size_in_file(t) for t in types] if external else []
        found = tensor_layout(
            value.dtype in BLOCK_SCALED, is_variable, len(types), external
        )
        fields = found.with_values([*[TO_BE_FILLED_IN] * len(types), *sizes, *values])
        table = self.build.table_with_places(found.field_count, fields)
        for part, place in enumerate(list(table.places.values())[: len(types)]):
            self.structure.slots.append(Slot(value, part, place, external))
        return table.position

    def operator(self, operator: Operator) -> None:
        if isinstance(operator, VARIABLE):
            self.variable(operator.variable, operator)
            return None
        try:
            attributes = self.structure.attributes(operator)
        except Illegal as problem:
            raise Unsupported(
                "unsupported",
                f"TOSA {operator.name}: {problem}",
                source=operator.source,
            ) from None
        kind = operator.name.lower()
        results = [self.named(value, kind) for value in operator.outputs]
        for value, name in zip(operator.outputs, results, strict=True):
            if value.dtype is DType.SHAPE:
                self.computed_shape(value, name)
            else:
                self.tensor(value)
        inputs = [self.defined(value, operator) for value in operator.inputs]
        if isinstance(operator, VARIABLE_READ):
            inputs = [self.variable(operator.variable, operator)]
        if isinstance(operator, VARIABLE_WRITE):
            results = [self.variable(operator.variable, operator)]
        self.structure.numbers[operator] = self.structure.count
        self.append(operator.name, attributes, inputs, results, operator.source)
        return None

    def defined(self, value: Value, operator: Operator) -> str:
        if value not in self.names:
            raise InternalError(
                "internal", f"{operator.name} uses {value!r} before it is defined"
            )
        return self.names[value]

    def variable(self, variable: str, operator: Operator) -> str:
        """Return the name of a variable's tensor, which holds the initial value.

        Files declare variables by tensors, not operators. Each block that uses a
        variable repeats the tensor under the same name, as the official serializer
        does.
        """
        structure = self.structure
        if variable not in structure.variables:
            text = f"TOSA {operator.name}: variable {variable!r} is not declared"
            raise Unsupported("unsupported", text, source=operator.source)
        first = structure.variables[variable]
        name = structure.variable_names.get(variable, "")
        # A second declaration is illegal, but still gets a name of its own.
        if not name or (isinstance(operator, VARIABLE) and operator is not first):
            name = structure.names.name(first.initial_value, "variable")
        if name not in self.variables:
            self.variables.add(name)
            self.tensor(first.initial_value, variable, name)
        structure.variable_names.setdefault(variable, name)
        return name

    def append(
        self,
        name: str,
        attributes: int,
        inputs: Sequence[str],
        outputs: Sequence[str],
        source: object = None,
    ) -> None:
        build = self.build
        values = [
            attributes,
            *CODES_IN_FILE[name],
            build.strings(inputs),
            build.strings(outputs),
        ]
        if source is not None and self.structure.locations:
            values.append(
                build.table(1, [Field(0, "offset", build.string(str(source)))])
            )
        found = OPERATOR if len(values) == 5 else OPERATOR_WITH_LOCATION
        self.operators.append(build.table(found.field_count, found.with_values(values)))
        self.structure.count += 1


Structure.block = Block


def _region_names(graphs: list[Graph]) -> list[str]:
    names = [MAIN]
    for number, graph in enumerate(graphs[1:], start=1):
        names.append(
            graph.name if graph.name and graph.name not in names else f"body_{number}"
        )
    return names


def _with_distinct_outputs(graph: Graph) -> Graph:
    """Copy outputs that are inputs, constants or repeated, by IDENTITY.

    The format identifies outputs by name, so each must be a separate result.
    """
    taken = set(graph.inputs)
    outputs = []
    copies = []
    for value in graph.outputs:
        if value in taken or value.constant is not None:
            copy = IDENTITY((value,))
            value = Value(value.type, producer=copy)
            copy.outputs = (value,)
            copies.append(copy)
        taken.add(value)
        outputs.append(value)
    return Graph(graph.inputs, outputs, [*graph.operators, *copies], graph.name)


def _values(graph: Graph) -> Iterator[Value]:
    yield from graph.inputs
    for operator in graph.operators:
        yield from operator.inputs
        yield from operator.outputs
