"""Writes a TOSA graph as MLIR, in the generic form.

Example: ``"tosa.add"(%0, %1) : (tensor<4xf32>, ...) -> tensor<4xf32>``. Versions of
MLIR differ in the pretty form of an operation, and agree in the generic one. Names of
operations, attributes and types are those of MLIR's TOSA dialect
(https://mlir.llvm.org/docs/Dialects/TOSA).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from delegraph.errors import Unsupported
from delegraph_tosa import DType, Graph, Operator, Type, Value, materialize

ELEMENTS: dict[DType, str] = {
    DType.INT4: "i4",
    DType.INT8: "i8",
    DType.INT16: "i16",
    DType.INT32: "i32",
    DType.INT48: "i48",
    DType.INT64: "i64",
    DType.BOOL: "i1",
    DType.FP32: "f32",
    DType.FP16: "f16",
    DType.BF16: "bf16",
    DType.FP8E4M3: "f8E4M3FN",
    DType.FP8E5M2: "f8E5M2",
}
"""Element type -> its name in MLIR.

Integers have no sign there: int8 that represents uint8 is i8 as well.
"""
_VALUES = {"NEAREST": "NEAREST_NEIGHBOR"}
"""Value of an attribute in TOSA -> its name in MLIR, if the names differ."""
_IMPLIED = frozenset({"ResultDType", "ResultTypes", "Graph"})
"""Kinds of attributes that are not written as attributes.

MLIR reads the first two off the result types; a graph becomes a region.
"""
_REFUSED = frozenset({"variable", "variable_read", "variable_write", "custom"})
"""Operators that need something outside of the function.

They need a variable of the module, or the implementation of a custom operator.
"""
_ODD_SIZES = frozenset({DType.BOOL, DType.INT4, DType.INT48, DType.SHAPE})
"""Types with another element size in MLIR than in numpy.

Their constants are written as numbers.
"""

_PIECE = 1 << 20
"""Bytes of a constant that are converted to text at a time."""

Put = Callable[[bytes], object]
"""A function that appends bytes to a file, such as its ``write``."""


def write_mlir(graph: Graph, put: Put) -> None:
    """Write a module whose function ``main`` computes ``graph``.

    ``put`` gets the text in pieces, so that large constants are never all in memory as
    text. Raises Unsupported for block-scaled types, variables and custom operators,
    which have no form here.
    """
    Writer(put).module(graph)


class Writer:
    """Writes one module. Values get the numbers %0, %1, ... in order."""

    def __init__(self, put: Put) -> None:
        self._put = put
        self._names: dict[Value, str] = {}
        self._shapes = 0

    def module(self, graph: Graph) -> None:
        """Write the module with its function ``main``."""
        arguments = ", ".join(type_of(value.type) for value in graph.inputs)
        results = ", ".join(type_of(value.type) for value in graph.outputs)
        function = f'function_type = ({arguments}) -> ({results}), sym_name = "main"'
        self._line(0, '"builtin.module"() ({')
        self._line(1, f'"func.func"() <{{{function}}}> ({{')
        self._region(graph, 1, "func.return")
        self._line(1, "}) : () -> ()")
        self._line(0, "}) : () -> ()")

    def _line(self, depth: int, text: str) -> None:
        self._put(f"{'  ' * depth}{text}\n".encode())

    def _region(self, graph: Graph, depth: int, terminator: str) -> None:
        """Write the block of a region: arguments, constants, operators, results."""
        arguments = ", ".join(
            f"{self._define(value)}: {type_of(value.type)}" for value in graph.inputs
        )
        self._line(depth, f"^bb0({arguments}):")
        for value in graph.constants():
            self._constant(value, depth + 1)
        self._write_operators(graph, depth + 1)
        self._line(
            depth + 1,
            f'"{terminator}"({self._comma_separated(graph.outputs)}) :'
            f" {signature_of(graph.outputs, ())}",
        )

    def _write_operators(self, graph: Graph, depth: int) -> None:
        for operator in _without_shape_operators(graph):
            self._operator(operator, depth)

    def _define(self, value: Value) -> str:
        """Give ``value`` the next number, and return its name in the text."""
        self._names[value] = f"%{len(self._names)}"
        return self._names[value]

    def _comma_separated(self, values: Sequence[Value]) -> str:
        """Return the names of ``values`` in the text."""
        return ", ".join(self._names[value] for value in values)

    def _constant(self, value: Value, depth: int) -> None:
        """Write the operation of a constant, its elements piece by piece."""
        array = materialize(value)
        is_shape = value.dtype is DType.SHAPE
        kind = "tosa.const_shape" if is_shape else "tosa.const"
        tensor = f"tensor<{len(array)}xindex>" if is_shape else type_of(value.type)
        self._put(
            f'{"  " * depth}{self._define(value)} = "{kind}"() <{{values = dense<'.encode()
        )
        for piece in _elements(array, value.dtype):
            self._put(piece)
        self._put(f"> : {tensor}}}> : () -> {type_of(value.type)}\n".encode())

    def _operator(self, operator: Operator, depth: int) -> None:
        """Write one operation, with the regions of its graphs.

        MLIR needs a constant as the shape of a RESHAPE. A shape with one unknown size
        is replaced by a constant with -1 there.
        """
        name = operator.name.lower()
        if name in _REFUSED:
            raise Unsupported(
                "unsupported",
                f"TOSA's {operator.name} has no self-contained form in MLIR",
            )
        operands = self._comma_separated(operator.inputs)
        if _is_reshape_with_inferred_size(operator):
            shape = self._write_shape_with_inferred_size(operator, depth)
            operands = f"{self._names[operator.inputs[0]]}, {shape}"
        attributes = ", ".join(_attributes(operator))
        results = ", ".join(self._define(value) for value in operator.outputs)
        head = f'{results} = "tosa.{name}"({operands})'
        if attributes:
            head += f" <{{{attributes}}}>"
        signature = signature_of(operator.inputs, operator.outputs)
        if not operator.has_graphs:
            return self._line(depth, f"{head} : {signature}")
        graphs = [
            v for v in operator.attribute_values().values() if isinstance(v, Graph)
        ]
        self._line(depth, f"{head} ({{")
        for position, graph in enumerate(graphs):
            if position:
                self._line(depth, "}, {")
            self._region(graph, depth, "tosa.yield")
        return self._line(depth, f"}}) : {signature}")

    def _write_shape_with_inferred_size(self, reshape: Operator, depth: int) -> str:
        """Write the constant shape of a RESHAPE, and return its name.

        Each RESHAPE gets a separate one: several may share the computed shape that it
        replaces.
        """
        sizes = list(reshape.outputs[0].type.declared)
        name = f"%shape{self._shapes}"
        self._shapes += 1
        values = f"values = dense<{sizes}> : tensor<{len(sizes)}xindex>"
        shape = type_of(reshape.inputs[1].type)
        self._line(
            depth, f'{name} = "tosa.const_shape"() <{{{values}}}> : () -> {shape}'
        )
        return name


def _is_reshape_with_inferred_size(operator: Operator) -> bool:
    """Return whether this is a RESHAPE to a computed shape with one unknown size.

    MLIR infers that size, written as -1.
    """
    computed = operator.name == "RESHAPE" and operator.inputs[1].constant is None
    return computed and operator.outputs[0].type.declared.count(-1) == 1


def _without_shape_operators(graph: Graph) -> list[Operator]:
    """Return the operators of a graph, without those for shapes that MLIR infers."""
    kept: list[Operator] = []
    used = set(graph.outputs)
    for operator in reversed(graph.operators):
        if used.isdisjoint(operator.outputs) and all(
            value.dtype is DType.SHAPE for value in operator.outputs
        ):
            continue
        kept.append(operator)
        if _is_reshape_with_inferred_size(operator):
            # the second input, the computed shape, is replaced by a constant
            used.update(operator.inputs[:1])
        else:
            used.update(operator.inputs)
    return kept[::-1]


def type_of(type: Type) -> str:
    """Return a type in MLIR: ``tensor<2x?xf32>`` or ``!tosa.shape<2>``.

    Raises Unsupported for types that MLIR does not have.
    """
    if type.dtype is DType.SHAPE:
        return f"!tosa.shape<{type.shape[0]}>"
    sizes = ["?" if size < 0 else str(size) for size in type.declared]
    return f"tensor<{'x'.join([*sizes, element_of(type.dtype)])}>"


def element_of(dtype: DType) -> str:
    """Return the name of an element type; raise Unsupported if there is none here."""
    if dtype not in ELEMENTS:
        raise Unsupported("unsupported", f"tensors of {dtype} have no form in MLIR")
    return ELEMENTS[dtype]


def signature_of(inputs: Sequence[Value], outputs: Sequence[Value]) -> str:
    """Return the types of operands and results in the form of an operation."""
    input_types = ", ".join(type_of(value.type) for value in inputs)
    output_types = ", ".join(type_of(value.type) for value in outputs)
    if len(outputs) != 1:
        output_types = f"({output_types})"
    return f"({input_types}) -> {output_types}"


def _elements(array: np.ndarray[Any, Any], dtype: DType) -> Iterator[bytes]:
    """Yield the text between ``dense<`` and ``>``, in pieces.

    It is the bytes in hexadecimal, or numbers for types of other sizes than in numpy.
    Decimal text would round floats, and has no NaN.
    """
    if dtype in _ODD_SIZES:
        yield json.dumps(array.tolist()).encode()
        return
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    yield b'"0x'
    for start in range(0, len(content), _PIECE):
        yield content[start : start + _PIECE].tobytes().hex().upper().encode()
    yield b'"'


def _attributes(operator: Operator) -> Iterator[str]:
    """Yield the attributes of an operation as text, such as ``axis = 1 : i32``."""
    for name, kind in operator.attributes.items():
        if kind not in _IMPLIED:
            yield (
                f"{name} = {_attribute(operator, name, kind, getattr(operator, name))}"
            )


def _attribute(operator: Operator, name: str, kind: str, value: Any) -> str:
    """Return an attribute's value as text, in the form of MLIR's TOSA dialect."""
    if kind == "bool":
        return "true" if value else "false"
    if kind == "int":
        return f"{value} : i32"
    if kind == "Ints":
        element = "i32" if name == "perms" else "i64"
        return f"array<{element}: {', '.join(map(str, value))}>"
    if kind == "DType":
        return element_of(value)
    if kind == "Number":
        return number_of(value, operator.inputs[0].dtype)
    # NanMode -> #tosa.nan_mode<PROPAGATE>
    words = re.sub("(?<=.)([A-Z])", r"_\1", kind).lower()
    return f"#tosa.{words}<{_VALUES.get(str(value), value)}>"


def number_of(value: float, dtype: DType) -> str:
    """Return a number with its type as text; floats as their bits in hexadecimal."""
    if dtype is DType.FP16:
        bits = int(np.array(value, np.float16).view(np.uint16))
    elif dtype in (DType.FP32, DType.BF16):
        bits = int(np.array(value, np.float32).view(np.uint32))
    else:
        return f"{int(value)} : {element_of(dtype)}"
    # a bfloat16 is the upper half of a float32; the lower half of this number is zero
    if dtype is DType.BF16:
        bits >>= 16
    digits = 8 if dtype is DType.FP32 else 4
    return f"0x{bits:0{digits}X} : {element_of(dtype)}"
