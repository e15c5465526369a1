"""Files that describe much more than they hold: each shares its parts in the way that
costs a careless reader most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from delegraph_engines.flatbuffer_builder import Builder, Field
from delegraph_tosa.ir.types import DType
from delegraph_tosa.serialize.schema import CODES, IDENTIFIER

SIZE = 1 << 16
"""About how many bytes a file has."""


class Parts:
    """The parts of a file with one block; positions of what was built, to be referred
    to any number of times.
    """

    def __init__(self) -> None:
        self.build = Builder()
        self.tensors: list[int] = []
        self.shapes: list[int] = []
        self.operators: list[int] = []
        self.inputs: list[str] = []

    def tensor(
        self,
        name: str,
        dtype: DType,
        sizes: Sequence[int] = (1,),
        data: int = 0,
        variable: str = "",
    ) -> int:
        b = self.build
        fields = [
            Field(0, "offset", b.string(name)),
            Field(1, "offset", b.vector("int32", sizes)),
            Field(2, "uint32", dtype),
        ]
        fields += [Field(3, "offset", data)] if data else []
        fields += (
            [Field(4, "bool", 1), Field(6, "offset", b.string(variable))]
            if variable
            else []
        )
        return b.table(14, fields)

    def shape(self, name: str, rank: int, data: int = 0) -> int:
        fields = [Field(0, "offset", self.build.string(name)), Field(1, "uint32", rank)]
        return self.build.table(
            3, [*fields, *([Field(2, "offset", data)] if data else [])]
        )

    def operator(
        self,
        name: str,
        inputs: int,
        outputs: int,
        attribute: int = 0,
        location: int = 0,
    ) -> int:
        fields = [Field(0, "uint32", CODES[name]), Field(1, "uint8", CODES[name])]
        fields += [Field(2, "offset", attribute)] if attribute else []
        fields += [Field(3, "offset", inputs), Field(4, "offset", outputs)]
        return self.build.table(
            6, [*fields, *([Field(5, "offset", location)] if location else [])]
        )

    def names(self, *names: str) -> int:
        return self.build.strings(names)

    def file(self) -> bytes:
        b = self.build
        vectors = {1: self.operators, 2: self.tensors, 5: self.shapes}
        block = [
            Field(id, "offset", b.vector("offset", parts))
            for id, parts in vectors.items()
        ]
        block.append(Field(3, "offset", b.strings(self.inputs)))
        region = b.table(
            2,
            [
                Field(0, "offset", b.string("main")),
                Field(1, "offset", b.vector("offset", [b.table(6, block)])),
            ],
        )
        version = b.table(
            4, [Field(0, "int32", 1), Field(1, "int32", 1), Field(2, "int32", 0)]
        )
        root = b.table(
            4,
            [
                Field(0, "offset", version),
                Field(1, "offset", b.vector("offset", [region])),
            ],
        )
        return bytes(b.finish(root, IDENTIFIER))


def one_operator_many_times(p: Parts) -> None:
    """It has no result, so that nothing is defined twice."""
    p.inputs = ["x"]
    p.tensors = [
        p.tensor("x", DType.FP32),
        p.tensor("v", DType.FP32, (1,), p.build.byte_vector(bytes(4), 8), "v"),
    ]
    p.operators = [p.operator("VARIABLE_WRITE", p.names("x"), p.names("v"))] * (
        SIZE // 28
    )


def custom_operators_with_the_same_bytes(p: Parts) -> None:
    data = p.build.byte_vector(bytes(SIZE // 2), 8)
    for i in range(SIZE // 200):
        attribute = p.build.table(
            3, [Field(0, "offset", p.build.string(f"f{i}")), Field(2, "offset", data)]
        )
        p.tensors.append(p.tensor(f"y{i}", DType.FP32))
        p.operators.append(p.operator("CUSTOM", p.names(), p.names(f"y{i}"), attribute))


def clamps_with_the_same_long_number(p: Parts) -> None:
    """They are refused; the time is what matters."""
    number = p.build.byte_vector(bytes(SIZE // 2), 8)
    attribute = p.build.table(
        3,
        [Field(0, "offset", number), Field(1, "offset", number), Field(2, "uint32", 1)],
    )
    p.inputs = ["x"]
    p.tensors = [p.tensor("x", DType.FP32)]
    p.operators = [p.operator("CLAMP", p.names("x"), p.names("x"), attribute)] * (
        SIZE // 8
    )


def an_operator_without_results(p: Parts) -> None:
    """Repeated, since it defines nothing twice."""
    p.shapes = [p.shape("s", 1, p.build.byte_vector(b"\1\0\0\0\0\0\0\0"))]
    p.operators = [p.operator("CONST_SHAPE", p.names(), p.names("s"))]
    equal = p.operator(
        "ASSERT_EQUAL_SHAPE", p.names("s", "s"), p.names(), p.build.table(1, [])
    )
    p.operators += [equal] * (SIZE // 32)


def _constants_of_the_same_bytes(
    p: Parts, dtype: DType, elements: int, size: int
) -> None:
    data = p.build.byte_vector(bytes(size), 8)
    for i in range(SIZE // 120):
        p.tensors.append(p.tensor(f"c{i}", dtype, (elements,), data))
        p.operators.append(p.operator("CONST", p.names(), p.names(f"c{i}")))


def constants_of_the_same_int4(p: Parts) -> None:
    _constants_of_the_same_bytes(p, DType.INT4, SIZE, SIZE // 2)


def constants_of_the_same_int48(p: Parts) -> None:
    _constants_of_the_same_bytes(p, DType.INT48, SIZE // 12, SIZE // 12 * 6)


def constants_of_the_same_fp6(p: Parts) -> None:
    _constants_of_the_same_bytes(p, DType.FP6E2M3, SIZE // 2, SIZE // 8 * 3)


def constants_of_the_same_bools(p: Parts) -> None:
    """They stay views."""
    _constants_of_the_same_bytes(p, DType.BOOL, SIZE // 2, SIZE // 2)


def shapes_that_double(p: Parts) -> None:
    p.shapes = [p.shape("s0", 4, p.build.byte_vector(b"\1\0\0\0\0\0\0\0" * 4))]
    p.operators = [p.operator("CONST_SHAPE", p.names(), p.names("s0"))]
    for i in range(1, 25):
        p.shapes.append(p.shape(f"s{i}", 4 << i))
        p.operators.append(
            p.operator(
                "CONCAT_SHAPE", p.names(f"s{i - 1}", f"s{i - 1}"), p.names(f"s{i}")
            )
        )


def a_long_shape_used_often(p: Parts) -> None:
    entries = SIZE // 32
    p.shapes = [
        p.shape("s", entries, p.build.byte_vector(b"\1\0\0\0\0\0\0\0" * entries))
    ]
    p.operators = [p.operator("CONST_SHAPE", p.names(), p.names("s"))]
    for i in range(SIZE // 150):
        p.shapes.append(p.shape(f"s{i}", entries))
        p.operators.append(p.operator("ADD_SHAPE", p.names("s", "s"), p.names(f"s{i}")))


def a_list_of_operands_used_often(p: Parts) -> None:
    p.inputs = ["x"]
    p.tensors = [p.tensor("x", DType.FP32)]
    operands = p.names(*["x"] * (SIZE // 8))
    axis = p.build.table(1, [Field(0, "int32", 0)])
    for i in range(SIZE // 160):
        p.tensors.append(p.tensor(f"y{i}", DType.FP32, (SIZE // 8,)))
        p.operators.append(p.operator("CONCAT", operands, p.names(f"y{i}"), axis))


def one_tensor_many_times(p: Parts) -> None:
    p.tensors = [p.tensor("x", DType.FP32)] * (SIZE // 4)


def a_tensor_of_high_rank(p: Parts) -> None:
    p.inputs = ["x"]
    p.tensors = [p.tensor("x", DType.FP32, [1 << 20] * (SIZE // 4))]


def one_input_many_times(p: Parts) -> None:
    p.inputs = ["x"] * (SIZE // 4)
    p.tensors = [p.tensor("x", DType.FP32)]


def small_operators(p: Parts) -> None:
    """As many as there is room for; legal."""
    p.inputs = ["y0"]
    p.tensors = [p.tensor("y0", DType.FP32)]
    for i in range(1, SIZE // 90):
        p.tensors.append(p.tensor(f"y{i}", DType.FP32))
        p.operators.append(p.operator("ABS", p.names(f"y{i - 1}"), p.names(f"y{i}")))


def small_constants(p: Parts) -> None:
    """As many as there is room for; legal."""
    data = p.build.byte_vector(bytes(4), 8)
    for i in range(SIZE // 90):
        p.tensors.append(p.tensor(f"c{i}", DType.FP32, (1,), data))
        p.operators.append(p.operator("CONST", p.names(), p.names(f"c{i}")))


def a_wide_name(p: Parts) -> None:
    """One character makes Python use four bytes for each."""
    p.inputs = ["x" * SIZE + "\U0001f600"]
    p.tensors = [p.tensor("x" * SIZE + "\U0001f600", DType.FP32)]


KINDS = (
    one_operator_many_times,
    an_operator_without_results,
    custom_operators_with_the_same_bytes,
    clamps_with_the_same_long_number,
    constants_of_the_same_int4,
    constants_of_the_same_int48,
    constants_of_the_same_fp6,
    constants_of_the_same_bools,
    shapes_that_double,
    a_long_shape_used_often,
    a_list_of_operands_used_often,
    one_tensor_many_times,
    a_tensor_of_high_rank,
    one_input_many_times,
    small_operators,
    small_constants,
    a_wide_name,
)
LEGAL = (
    custom_operators_with_the_same_bytes,
    small_operators,
    small_constants,
    a_wide_name,
)


def _long(start: str) -> str:
    return start + "x" * (SIZE // 2)


def _chain(p: Parts, name: str, locations: int = 0, width: int = 1) -> None:
    """ABS after ABS, the first of something with that name."""
    p.inputs = [name]
    p.tensors = [p.tensor(name, DType.FP32, (width,))]
    for i in range(SIZE // 240):
        p.tensors.append(p.tensor(f"y{i}", DType.FP32, (width,)))
        p.operators.append(
            p.operator("ABS", p.names(name), p.names(f"y{i}"), 0, locations)
        )


def a_long_name_used_often(p: Parts) -> None:
    _chain(p, _long("x"))


def a_long_name_of_what_does_not_print_used_often(p: Parts) -> None:
    _chain(p, "\x01\u202e" * (SIZE // 8))


def a_long_location_used_often(p: Parts) -> None:
    _chain(
        p, "x", p.build.table(1, [Field(0, "offset", p.build.string(_long("file ")))])
    )


def a_long_location_of_many_lines(p: Parts) -> None:
    _chain(
        p,
        "x",
        p.build.table(1, [Field(0, "offset", p.build.string("a\n" * (SIZE // 4)))]),
    )


def a_long_variable_used_often(p: Parts) -> None:
    """It is read and written; never twice declared."""
    name = _long("v")
    attribute = p.build.table(1, [Field(0, "offset", p.build.string(name))])
    p.tensors = [
        p.tensor("v", DType.FP32, (1,), p.build.byte_vector(bytes(4), 8), name)
    ]
    for i in range(SIZE // 240):
        p.tensors.append(p.tensor(f"y{i}", DType.FP32))
        p.operators.append(
            p.operator("VARIABLE_READ", p.names("v"), p.names(f"y{i}"), attribute)
        )


def one_operator_many_times_with_a_location_that_does_not_print(p: Parts) -> None:
    # nobody refers to it, but the reader allows for it
    p.build.byte_vector(bytes(SIZE // 2), 8)
    location = p.build.table(
        1, [Field(0, "offset", p.build.string("\u202e" * (SIZE // 12)))]
    )
    p.shapes = [p.shape("s" * 64, 1, p.build.byte_vector(b"\1\0\0\0\0\0\0\0"))]
    p.operators = [p.operator("CONST_SHAPE", p.names(), p.names("s" * 64))]
    equal = p.operator(
        "ASSERT_EQUAL_SHAPE",
        p.names("s" * 64, "s" * 64),
        p.names(),
        p.build.table(1, []),
        location,
    )
    p.operators += [equal] * (SIZE // 128)


def custom_operators_with_the_same_long_names(p: Parts) -> None:
    text = p.build.string(_long("f")[: SIZE // 4])
    data = p.build.byte_vector(bytes(SIZE // 4), 8)
    attribute = p.build.table(
        3,
        [Field(0, "offset", text), Field(1, "offset", text), Field(2, "offset", data)],
    )
    for i in range(SIZE // 240):
        p.tensors.append(p.tensor(f"y{i}", DType.FP32))
        p.operators.append(p.operator("CUSTOM", p.names(), p.names(f"y{i}"), attribute))


def names_inside_of_each_other(p: Parts) -> None:
    """As many long names as the reader's allowance has room for."""
    for i in range(8):
        p.inputs.append(f"{i}" + "x" * (SIZE // 10))
    p.tensors = [p.tensor(name, DType.FP32) for name in p.inputs]
    for i in range(SIZE // 300):
        p.tensors.append(p.tensor(f"y{i}", DType.FP32, (8,)))
        p.operators.append(
            p.operator(
                "CONCAT",
                p.names(*p.inputs),
                p.names(f"y{i}"),
                p.build.table(1, [Field(0, "int32", 0)]),
            )
        )


def a_wide_graph(p: Parts) -> None:
    """Each operator uses the first input and so does the last: many wires."""
    p.inputs = ["x"]
    p.tensors = [p.tensor("x", DType.FP32)]
    before = "x"
    for i in range(SIZE // 120):
        p.tensors.append(p.tensor(f"y{i}", DType.FP32))
        p.operators.append(
            p.operator("ADD", p.names("x", before), p.names(before := f"y{i}"))
        )


PRINTED = (
    custom_operators_with_the_same_bytes,
    small_operators,
    small_constants,
    a_wide_name,
    a_long_name_used_often,
    a_long_name_of_what_does_not_print_used_often,
    a_long_location_used_often,
    a_long_location_of_many_lines,
    a_long_variable_used_often,
    one_operator_many_times_with_a_location_that_does_not_print,
    custom_operators_with_the_same_long_names,
    names_inside_of_each_other,
    a_wide_graph,
)
"""Legal files that are much larger where they are shown, if nobody takes care."""


def file(kind: Callable[[Parts], None]) -> bytes:
    parts = Parts()
    kind(parts)
    return parts.file()
