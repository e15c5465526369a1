"""The typed graph: values, operators that infer result types, and constants.

The elements of a constant may be computed only when a file is written. This module
imports neither torch nor flatbuffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from .block_scaled_arrays import paired
from .dynamic_sizes import is_dynamic
from .illegal import Illegal, Undecided
from .types import DType, Type

__all__ = [
    "LONGEST_NAME", "Array", "Constant", "Deferred", "Entries", "Folded", "Graph", "Illegal", "Ints", "Literal",
    "Number", "Operator", "ResultDType", "ResultTypes", "Scaled", "Undecided", "Value", "Values", "check", "infer_all",
    "literal", "note", "shape_of", "shape_value",
]  # fmt: skip

Array = npt.NDArray[Any]


_NOTED: ContextVar[list[Illegal] | None] = ContextVar("_NOTED", default=None)
"""The list to which ``note`` adds broken rules; None lets it raise."""
LONGEST_NAME = 100
"""Longest name of a value in messages; names in a file may have megabytes."""


def check(ok: bool, why: str, rule: str = "unnamed") -> None:
    """Raise ``Illegal`` unless ``ok``. Later checks of ``infer`` depend on it."""
    if not ok:
        raise Illegal(why, rule)


def note(ok: bool, why: str, rule: str) -> None:
    """As ``check``, for a rule that later checks do not need.

    In ``infer_all``, ``infer`` goes on after it.
    """
    if not ok:
        broken = Illegal(why, rule)
        noted = _NOTED.get()
        if noted is None:
            raise broken
        noted.append(broken)


def infer_all(operator: Operator) -> tuple[tuple[Type, ...], list[Illegal]]:
    """Return the result types of ``infer``, and all rules that it finds broken.

    If there are any, the types may be wrong.
    """
    try:
        return operator.infer(), []
    except Illegal:  # the first broken rule: infer again, to find all
        return _infer_noting(operator)


def _infer_noting(operator: Operator) -> tuple[tuple[Type, ...], list[Illegal]]:
    """As ``infer_all``, for an operator that breaks a rule."""
    noted: list[Illegal] = []
    token = _NOTED.set(noted)
    try:
        return operator.infer(), noted
    except Illegal as last:
        return (), [*noted, last]
    finally:
        _NOTED.reset(token)


class Literal:
    """A constant with elements in memory: small, or from a file."""

    __slots__ = ("array",)

    def __init__(self, array: Array) -> None:
        self.array = array

    def materialize(self) -> Array:
        return self.array


class Deferred:
    """A constant that ``load`` reads or computes when a file is written."""

    __slots__ = ("load",)

    def __init__(self, load: Callable[[], Array]) -> None:
        self.load = load

    def materialize(self) -> Array:
        return self.load()


class Folded:
    """Result ``index`` of an operator on constants, evaluated when written.

    ``elements`` caches a small result.
    """

    __slots__ = ("elements", "index", "operator")

    def __init__(self, operator: Operator, index: int = 0) -> None:
        self.operator = operator
        self.index = index
        self.elements: Array | None = None


class Scaled:
    """A block-scaled constant with values and scales in two arrays."""

    __slots__ = ("scales", "type", "values")

    def __init__(self, values: Array, scales: Array, type: Type) -> None:
        self.values = values
        self.scales = scales
        self.type = type

    def materialize(self) -> Array:
        return paired(self.values, self.scales, self.type)


Constant = Literal | Deferred | Folded | Scaled


class Value:
    """One tensor or shape: its type, and its ``constant`` if it is one.

    Compared by identity. ``producer`` is the operator of the graph that computes it;
    None for inputs and constants. ``range`` is the smallest and the largest element
    that integers can have; None if it is not known.
    """

    __slots__ = ("constant", "name", "producer", "range", "type")

    def __init__(
        self,
        type: Type,
        constant: Constant | None = None,
        name: str = "",
        producer: Operator | None = None,
    ) -> None:
        self.type = type
        self.constant = constant
        self.name = name
        self.producer = producer
        self.range: tuple[int, int] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def rank(self) -> int:
        return len(self.type.shape)

    def __repr__(self) -> str:
        name = (
            self.name
            if len(self.name) <= LONGEST_NAME
            else f"{self.name[:LONGEST_NAME]}…"
        )
        return f"%{name or '?'}: {self.type}"


def shape_of(value: Value) -> tuple[int, ...]:
    """Return the entries of a SHAPE value. Raises Illegal if they are unknown."""
    constant = value.constant
    if value.type.dtype is DType.SHAPE:
        if isinstance(constant, Literal):
            return tuple(constant.array.tolist())
        if (
            constant is None
            and value.producer is not None
            and value.producer.entries is not None
        ):
            return value.producer.entries
    raise Illegal(f"{value!r} is not a constant shape", "constant-shape")


class Operator:
    """One TOSA operator; the class's name is the specification's.

    A subclass declares its operands (annotated ``Value``; one may be ``Values``, a list
    of all remaining operands), its attributes (any other annotation, in the flatbuffer
    schema's order, perhaps with a default), and ``infer``. Operands and attributes of
    its base class come first. Modules of operators need ``from __future__ import
    annotations``. Operators are compared by identity.
    """

    operands: ClassVar[tuple[str, ...]] = ()
    variadic: ClassVar[bool] = False
    attributes: ClassVar[dict[str, str]] = {}
    """Maps an attribute to its kind, in schema order.

    Kinds are int, bool, Ints, Number, DType, NanMode, ResizeMode, RoundingMode, str,
    bytes, BlockSize and Graph. ResultDType and ResultTypes are not stored: the types of
    results contain them.
    """
    has_graphs: ClassVar[bool] = False
    """Whether an attribute is a Graph."""

    entries: tuple[int, ...] | None = None
    """The entries that a shape operator computes, after ``infer``.

    None for all other operators.
    """

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    source: Any

    def __init_subclass__(cls) -> None:
        own = {
            k: v
            for k, v in vars(cls).get("__annotations__", {}).items()
            if not v.startswith("ClassVar")
        }
        operands = tuple(k for k, v in own.items() if v in ("Value", "Values"))
        for position, name in enumerate(operands, start=len(cls.operands)):
            after = (
                len(operands) - 1 - operands.index(name)
                if "Values" in own.values()
                else 0
            )
            setattr(
                cls,
                name,
                _operand(position, own[name] == "Values", after, cls.variadic),
            )
            cls.variadic = cls.variadic or own[name] == "Values"
        cls.operands += operands
        cls.attributes = cls.attributes | {
            k: v for k, v in own.items() if k not in operands
        }
        cls.has_graphs = "Graph" in cls.attributes.values()

    def __init__(
        self, inputs: Sequence[Value], source: Any = None, **attributes: Any
    ) -> None:
        self.inputs = tuple(inputs)
        self.outputs = ()
        self.source = source
        self.__dict__.update(attributes)

    @property
    def name(self) -> str:
        return type(self).__name__

    def infer(self) -> tuple[Type, ...]:
        """Return the types of the results.

        Raises ``Illegal`` for conditions that the specification marks ERROR_IF.
        """
        raise NotImplementedError

    def attribute_values(self) -> dict[str, Any]:
        """Attribute name -> value, in schema order."""
        return {name: getattr(self, name) for name in self.attributes}

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(map(repr, self.inputs))})"


def _operand(position: int, is_list: bool, after: int, after_list: bool) -> property:
    """Return the property of an operand.

    ``after`` is the number of operands after it, by which those after a list are found.
    ``is_list``: whether it is the list of ``Values``; ``after_list``: whether it comes
    after one.
    """
    if is_list:
        return property(lambda op: op.inputs[position : len(op.inputs) - after])
    if after_list:
        return property(lambda op: op.inputs[-1 - after])
    return property(lambda op: op.inputs[position])


Values = tuple[Value, ...]
Ints = tuple[int, ...]
Number = float | int
ResultDType = DType
"""Element type of a result that operands do not determine (CAST, MATMUL)."""
ResultTypes = tuple[Type, ...]
"""Types of results that cannot be inferred (CUSTOM, VARIABLE_READ)."""


class Graph:
    """Operators in topological order, with named inputs and outputs in calling order.

    A constant is no operator but a ``Value`` with a ``constant``; the writer emits
    CONST and CONST_SHAPE for those that are used.
    """

    def __init__(
        self,
        inputs: Iterable[Value],
        outputs: Iterable[Value],
        operators: Iterable[Operator],
        name: str = "main",
    ) -> None:
        self.inputs = list(inputs)
        self.outputs = list(outputs)
        self.operators = list(operators)
        self.name = name

    def bodies(self) -> list[Graph]:
        """Return the graphs of its control flow operators, each once."""
        attributes = (
            v for op in self.operators if op.has_graphs for v in vars(op).values()
        )
        return list(dict.fromkeys(v for v in attributes if isinstance(v, Graph)))

    def reachable(self) -> list[Graph]:
        """Return the graph itself and all graphs inside of it, each once.

        A graph comes before the graphs of its operators.
        """
        done: dict[Graph, None] = {}
        visited: set[Graph] = set()

        def visit(graph: Graph) -> None:
            visited.add(graph)
            for body in reversed(graph.bodies()):
                if body not in visited:
                    visit(body)
            done[graph] = None

        visit(self)
        return list(reversed(done))

    def constants(self) -> list[Value]:
        """Return the constants used or returned, each once, in order of first use."""
        used = [v for op in self.operators for v in op.inputs] + self.outputs
        return list(dict.fromkeys(v for v in used if v.constant is not None))


class Entries(Operator):
    """A placeholder for the shape operators that compute a dynamic SHAPE.

    Rules and passes read its entries. The pass ``compute_shapes`` replaces it by
    operators of TOSA.
    """

    def __init__(self, entries: tuple[int, ...]) -> None:
        super().__init__(())
        self.entries = entries
        self.outputs = (Value(Type((len(entries),), DType.SHAPE), producer=self),)

    def infer(self) -> tuple[Type, ...]:
        return (self.outputs[0].type,)


def shape_value(entries: Sequence[int]) -> Value:
    """Return a SHAPE with these entries: a constant if they are known."""
    if any(map(is_dynamic, entries)):
        return Entries(tuple(entries)).outputs[0]
    return literal(entries, DType.SHAPE, np.int64)


def literal(elements: Any, dtype: DType, numpy_dtype: npt.DTypeLike) -> Value:
    """Return a constant value from Python or numpy elements."""
    array = np.asarray(elements, numpy_dtype)
    return Value(Type(array.shape, dtype), Literal(array))
