"""Builds the structure of a TOSA file: everything but the elements of constants.

The elements follow the structure. A constant has one part of elements, or two if it is
block-scaled: values and scales (``stored_types``). In the structure, each part has a
slot: a field for its position, which is filled in when all positions are known.
"""

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
"""Value of a field that is set later: any but the default, which would be omitted."""
LENGTH_BYTES = 4
"""Size in bytes of a vector's length, which precedes its elements."""


class Placed(NamedTuple):
    """The position in the file of a part of a constant.

    ``start`` is the start of a vector with its length or, without ``has_length``, of
    the bare elements. ``part`` is an index into ``stored_types``: 1 means the scales of
    a block-scaled constant.
    """

    value: Value
    part: int
    start: int
    has_length: bool

    @property
    def type(self) -> Type:
        """Return the type of the part."""
        return stored_types(self.value.type)[self.part]


class Slot(NamedTuple):
    """A field that receives the position of a part of a constant.

    ``distance`` is that of the field from the end of the structure. A ``wide`` field
    has 64 bits and holds a position in the file. Any other has 32 bits and holds an
    offset from the field.
    """

    value: Value
    part: int
    distance: int
    wide: bool


_Part = tuple[Value, int]
"""A constant and the index of its part."""


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
    """Build the structure, and compute the positions of all constants.

    ``kind`` is the class that builds the structure, by default ``Structure``. If the
    file has ``limit`` bytes or more, 32-bit offsets may not reach constants. Then,
    tensors use ``offset`` and ``size`` for them.
    """
    kind = kind or Structure
    writer = kind(graph, locations, external=False)
    structure = writer.finish(version)
    placed, end = _place_constants(writer.slots, len(structure))
    if end >= limit:
        writer = kind(graph, locations, external=True)
        structure = writer.finish(version)
        placed, end = _place_constants(writer.slots, len(structure))
    for slot in writer.slots:
        address = len(structure) - slot.distance
        start = placed[slot.value, slot.part].start
        if slot.wide:
            struct.pack_into("<Q", structure, address, start)
        else:
            struct.pack_into("<I", structure, address, start - address)
    distinct = list(dict.fromkeys(placed.values()))
    return Layout(bytes(structure), distinct, end, writer.numbers)


def _place_constants(slots: list[Slot], end: int) -> tuple[dict[_Part, Placed], int]:
    """Place constants after a structure of ``end`` bytes.

    Returns their positions, and where the last one ends. Tensors with the same elements
    share one vector. Examples are a weight used in several branches, and an embedding
    tied to a layer.
    """
    placed: dict[_Part, Placed] = {}
    by_elements: dict[_Part, Placed] = {}
    # constants with 32-bit offsets come first, so that the offsets reach them
    for slot in sorted(slots, key=lambda slot: slot.wide):
        part = slot.value, slot.part
        if part in placed:
            continue
        elements = _shared_elements(slot.value), slot.part
        if elements not in by_elements:
            length = 0 if slot.wide else LENGTH_BYTES
            data = _aligned(end + length)
            new = Placed(slot.value, slot.part, data - length, not slot.wide)
            by_elements[elements] = new
            end = data + size_in_file(new.type)
        placed[part] = by_elements[elements]
    return placed, end


def _shared_elements(value: Value) -> Value:
    """Return the first constant that has the elements of ``value`` in the same order.

    ``value`` is computed from it by RESHAPE and TRANSPOSE, or is that constant itself.
    """
    if value.dtype in BLOCK_SCALED:
        # its scales would have another order
        return value
    views: list[_View] = []
    found = value
    while isinstance(value.constant, Folded):
        operator = value.constant.operator
        if not isinstance(operator, (RESHAPE, TRANSPOSE)):
            break
        views.append(_View(operator, value.shape))
        value = operator.inputs[0]
        if _keeps_order(value.shape, views):
            found = value
    return found


class _View(NamedTuple):
    """A RESHAPE or TRANSPOSE, and the shape of its result."""

    operator: RESHAPE | TRANSPOSE
    shape: Sequence[int]


class _Axis(NamedTuple):
    """An axis: its size, and the distance of its neighbours in the original tensor."""

    size: int
    stride: int


def _keeps_order(shape: Sequence[int], views: Sequence[_View]) -> bool:
    """Return whether views of a tensor of ``shape`` keep the order of its elements.

    The last of ``views`` is applied first. The function follows the strides of the
    axes: elements are in order if all axes merge to one axis with a stride of 1.
    """
    count = math.prod(shape)
    in_order = [_Axis(count, stride=1)]
    axes = _reshape_axes(in_order, shape)
    for view in reversed(views):
        if axes is None:
            return False
        if isinstance(view.operator, TRANSPOSE):
            axes = [axes[axis] for axis in view.operator.perms]
        else:
            axes = _reshape_axes(axes, view.shape)
    # a single element has no axis
    return axes is not None and _merge_axes(axes) in ([], in_order)


def _merge_axes(axes: Sequence[_Axis]) -> list[_Axis]:
    """Drop axes of size 1, and merge an axis with the next if elements are adjacent.

    Two axes of sizes 2 and 3 with strides 3 and 1 become one of size 6.
    """
    merged: list[_Axis] = []
    for axis in axes:
        if axis.size == 1:
            continue
        if merged and merged[-1].stride == axis.size * axis.stride:
            axis = _Axis(merged.pop().size * axis.size, axis.stride)
        merged.append(axis)
    return merged


def _reshape_axes(axes: Sequence[_Axis], shape: Sequence[int]) -> list[_Axis] | None:
    """Return the axes after a RESHAPE to ``shape``.

    None if elements along a new axis would not have one stride.
    """
    rest = _merge_axes(axes)
    reshaped: list[_Axis] = []
    # the part of the current old axis that new axes have not taken yet
    size = 1
    stride = 0
    for new_size in shape:
        if new_size == 1:
            reshaped.append(_Axis(1, 0))
            continue
        if size == 1 and rest:
            size, stride = rest.pop(0)
        if new_size == 0 or size % new_size:
            return None
        size //= new_size
        reshaped.append(_Axis(new_size, stride * size))
    return reshaped


def _aligned(position: int) -> int:
    """Return the next multiple of the alignment of constants."""
    return -(-position // DATA_ALIGNMENT) * DATA_ALIGNMENT


class Structure:
    """Builds the structure of a graph and its control flow graphs in one pass.

    Its methods append tables and vectors to a flatbuffer, and return their positions.
    ``locations`` is whether sources of operators are written; ``external`` is whether
    the file is too large for 32-bit offsets.
    """

    block: ClassVar[type[Block]]
    """The class that builds the block of a region."""

    def __init__(self, graph: Graph, locations: bool, external: bool) -> None:
        self.build = Builder()
        self.locations = locations
        self.external = external
        self.slots: list[Slot] = []
        # type -> its fields, because many tensors share a type
        self.types: dict[Type, tuple[int, ...]] = {}
        self.graphs = [_with_distinct_outputs(g) for g in graph.reachable()]
        values: list[Value] = []
        # name of a variable -> its first declaration
        self.variables: dict[str, VARIABLE] = {}
        for inner in self.graphs:
            values += _values(inner)
            for operator in inner.operators:
                if isinstance(operator, VARIABLE):
                    self.variables.setdefault(operator.variable, operator)
        self.names = Names(values)
        # graph -> name of its region
        self.regions = dict(
            zip(graph.reachable(), _region_names(self.graphs), strict=True)
        )
        # name of a variable -> name of its tensor
        self.variable_names: dict[str, str] = {}
        # number of the next operator
        self.count = 0
        self.numbers: dict[Operator, int] = {}

    def finish(self, version: tuple[int, int]) -> bytearray:
        """Build all regions, and return the structure."""
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
        """Return the table of the version; 1.1 is a draft."""
        numbers = (major, minor, 0)
        fields = [Field(i, "int32", number) for i, number in enumerate(numbers)]
        if (major, minor) != (1, 1):
            # the field "draft", which is true by default
            fields.append(Field(3, "bool", False))
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
        """Return the table of a region with one block."""
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
                    f"{value!r} has a size above {LARGEST_SIZE}, the largest in a TOSA"
                    " file",
                )
            shape_field = self.build.vector("int32", shape)
            found = (shape_field, *self.element_type_fields(value.dtype))
            self.types[value.type] = found
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
        layout = ATTRIBUTES[cls]
        return self.build.table(layout.field_count, layout.with_values(values))

    def attribute(self, kind: str, value: Any, operator: Operator) -> int:
        """Return the value of an attribute's field: its position, or the number."""
        if kind == "Ints":
            return self.build.vector("int32", value)
        if kind == "Number":
            return self.build.byte_vector(
                pack_number(value, operator.inputs[0].dtype), DATA_FIELD_ALIGNMENT
            )
        if kind == "bytes":
            return self.build.byte_vector(value, DATA_FIELD_ALIGNMENT)
        if kind == "Graph":
            return self.build.string(self.regions[value])
        if kind == "str":
            return self.build.string(value)
        return int(value)


class Block:
    """Builds the only basic block of a region.

    Tensors, shapes and operators are in order of first use; the lists contain the
    positions of their tables.
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
        """Return the table of the block."""
        self.name_inputs_and_outputs()
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

    def name_inputs_and_outputs(self) -> None:
        """Name the inputs and outputs of the graph, before all other values."""
        names = self.structure.names
        for position, value in enumerate(self.graph.inputs):
            self.names[value] = names.name(value, "input", position)
        for position, value in enumerate(self.graph.outputs):
            self.names[value] = names.name(value, "output", position)

    def named(self, value: Value, kind: str) -> str:
        """Return the name of a value; a new one may begin with ``kind``."""
        if value not in self.names:
            self.names[value] = self.structure.names.name(value, kind)
        return self.names[value]

    def constant(self, value: Value) -> None:
        """Add a constant's tensor or shape, and the operator that makes it a value."""
        if value.dtype is DType.SHAPE:
            name = self.named(value, "shape")
            self.constant_shape(value, name)
            operator = "CONST_SHAPE"
        else:
            name = self.named(value, "const")
            self.tensor(value)
            operator = "CONST"
        self.append(operator, self.build.table(0, []), [], [name])

    def constant_shape(self, value: Value, name: str) -> None:
        """Declare a constant SHAPE, with a slot for its entries."""
        values = [TO_BE_FILLED_IN, self.build.string(name)]
        layout = EMPTY_SHAPE
        entry_count = math.prod(value.shape)
        if entry_count > 0:
            values.append(entry_count)
            layout = SHAPE
        fields = layout.with_values(values)
        table = self.build.table_with_places(layout.field_count, fields)
        slot = Slot(value, 0, table.places[ShapeField.DATA], wide=False)
        self.structure.slots.append(slot)
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
        """Declare a tensor; if ``variable`` is given, that of this variable.

        By default, its name is that of ``value``.
        """
        values = [
            self.build.string(name or self.names[value]),
            *self.structure.type_of(value),
        ]
        if variable is not None:
            values += [1, self.build.string(variable)]
        if value.constant is None:
            layout = tensor_layout(value.dtype in BLOCK_SCALED, variable is not None)
            table = self.build.table(layout.field_count, layout.with_values(values))
        else:
            table = self.constant_tensor(value, variable is not None, values)
        self.tensors.append(table)

    def constant_tensor(
        self, value: Value, is_variable: bool, values: Sequence[int]
    ) -> int:
        """Return the table of a constant tensor, with slots for its elements.

        ``values`` are the values of its other fields.
        """
        external = self.structure.external
        types = stored_types(value.type)
        sizes = [size_in_file(t) for t in types] if external else []
        layout = tensor_layout(
            value.dtype in BLOCK_SCALED, is_variable, len(types), external
        )
        slots = [TO_BE_FILLED_IN] * len(types)
        fields = layout.with_values([*slots, *sizes, *values])
        table = self.build.table_with_places(layout.field_count, fields)
        # the slots are the first fields
        distances = list(table.places.values())[: len(types)]
        for part, distance in enumerate(distances):
            self.structure.slots.append(Slot(value, part, distance, wide=external))
        return table.position

    def operator(self, operator: Operator) -> None:
        """Add an operator, and declare its results.

        Raises Unsupported if its attributes cannot be stored.
        """
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
        """Return the name of an operand of ``operator``, which must be defined."""
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
        """Append the table of an operator, given by the parts of its table."""
        build = self.build
        values = [
            attributes,
            *CODES_IN_FILE[name],
            build.strings(inputs),
            build.strings(outputs),
        ]
        layout = OPERATOR
        if source is not None and self.structure.locations:
            text = build.string(str(source))
            values.append(build.table(1, [Field(0, "offset", text)]))
            layout = OPERATOR_WITH_LOCATION
        table = build.table(layout.field_count, layout.with_values(values))
        self.operators.append(table)
        self.structure.count += 1


Structure.block = Block


def _region_names(graphs: list[Graph]) -> list[str]:
    """Return the names of the graphs' regions, of which the first is the program."""
    names = [MAIN]
    for number, graph in enumerate(graphs[1:], start=1):
        is_usable = graph.name and graph.name not in names
        names.append(graph.name if is_usable else f"body_{number}")
    return names


def _with_distinct_outputs(graph: Graph) -> Graph:
    """Copy outputs that are inputs, constants or repeated, by IDENTITY.

    The format identifies outputs by name, so each must be a separate result.
    """
    taken = set(graph.inputs)
    outputs: list[Value] = []
    copies: list[Operator] = []
    for value in graph.outputs:
        output = value
        if value in taken or value.constant is not None:
            copy = IDENTITY((value,))
            output = Value(value.type, producer=copy)
            copy.outputs = (output,)
            copies.append(copy)
        taken.add(output)
        outputs.append(output)
    return Graph(graph.inputs, outputs, [*graph.operators, *copies], graph.name)


def _values(graph: Graph) -> Iterator[Value]:
    """Yield the inputs of ``graph``, and all operands and results."""
    yield from graph.inputs
    for operator in graph.operators:
        yield from operator.inputs
        yield from operator.outputs
