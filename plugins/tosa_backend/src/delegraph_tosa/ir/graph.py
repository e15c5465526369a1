"""The typed graph: values, operators that infer result types, and constants.

The elements of a constant may be computed only when a file is written ("deferred").
This module imports neither torch nor flatbuffers.
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
"""The list to which ``note`` adds broken rules. If it is None, ``note`` raises."""
LONGEST_NAME = 100
"""Longest name of a value in messages; names in a file may have megabytes."""


def check(ok: bool, why: str, rule: str = "unnamed") -> None:
    """Raise ``Illegal`` unless ``ok``.

    ``infer`` calls it for rules without which its later checks make no sense.
    """
    if not ok:
        raise Illegal(why, rule)


def note(ok: bool, why: str, rule: str) -> None:
    """As ``check``, for a rule that later checks do not need.

    During ``infer_all``, it notes the broken rule and returns.
    """
    if not ok:
        note_broken(why, rule)


def note_broken(why: str, rule: str) -> None:
    """As ``note``, for a rule that is known to be broken."""
    broken = Illegal(why, rule)
    noted = _NOTED.get()
    if noted is None:
        raise broken
    noted.append(broken)


def infer_all(operator: Operator) -> tuple[tuple[Type, ...], list[Illegal]]:
    """Return the result types of ``operator``, and all rules that it breaks.

    If it breaks any, the types may be wrong.
    """
    try:
        return operator.infer(), []
    except Illegal:
        # it stopped at the first broken rule: infer again, to find all
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
    """A constant with its elements in memory."""

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
    """Result ``index`` of an operator on constants, evaluated when a file is written.

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
    None for inputs and constants. ``range``: the smallest and the largest element
    that a tensor of integers can have; None if they are not known.
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
        name = self.name or "?"
        if len(name) > LONGEST_NAME:
            name = f"{name[:LONGEST_NAME]}…"
        return f"%{name}: {self.type}"


def shape_of(value: Value) -> tuple[int, ...]:
    """Return the entries of a SHAPE value. Raises Illegal if they are unknown."""
    if value.type.dtype is DType.SHAPE:
        if isinstance(value.constant, Literal):
            return tuple(value.constant.array.tolist())
        if value.producer is not None and value.producer.entries is not None:
            return value.producer.entries
    raise Illegal(f"{value!r} is not a constant shape", "constant-shape")


class Operator:
    """One TOSA operator; the class's name is the specification's.

    A subclass declares operands, attributes and ``infer``:

    - operands are annotated ``Value``; one may be ``Values``, a list of any length;
    - attributes have any other annotation, and perhaps a default, in the order of the
      flatbuffer schema.

    Operands and attributes of its base class come first. Modules of operators need
    ``from __future__ import annotations``. Operators are compared by identity.
    """

    operands: ClassVar[tuple[str, ...]] = ()
    variadic: ClassVar[bool] = False
    attributes: ClassVar[dict[str, str]] = {}
    """Maps an attribute to its kind, in schema order.

    Kinds are int, bool, Ints, Number, DType, NanMode, ResizeMode, RoundingMode, str,
    bytes, BlockSize and Graph. ResultDType and ResultTypes are not stored in files: the
    types of results contain them.
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
        """Read the annotations, and define a property for each operand."""
        operands: list[str] = []
        attributes: dict[str, str] = {}
        annotations = vars(cls).get("__annotations__", {})
        for name, kind in annotations.items():
            if kind in ("Value", "Values"):
                operands.append(name)
            elif not kind.startswith("ClassVar"):
                attributes[name] = kind
        for index, name in enumerate(operands):
            position = len(cls.operands) + index
            # as an index from the end of all operands
            position_from_end = index - len(operands)
            if annotations[name] == "Values":
                cls.variadic = True
                operand = _list_operand(position, position_from_end)
            elif cls.variadic:
                operand = _operand(position_from_end)
            else:
                operand = _operand(position)
            setattr(cls, name, operand)
        cls.operands += tuple(operands)
        cls.attributes = cls.attributes | attributes
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
        """Return a dict of attribute name -> value, in schema order."""
        return {name: getattr(self, name) for name in self.attributes}

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(map(repr, self.inputs))})"


def _operand(position: int) -> property:
    """Return the property of a single operand.

    The position of an operand after a list is counted from the end: -1 is the last.
    """
    return property(lambda op: op.inputs[position])


def _list_operand(position: int, last_from_end: int) -> property:
    """Return the property of a list of operands.

    ``last_from_end`` is the index of its last operand, counted from the end: -1 if no
    operand follows.
    """
    return property(lambda op: op.inputs[position : len(op.inputs) + last_from_end + 1])


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
        bodies: dict[Graph, None] = {}
        for operator in self.operators:
            if operator.has_graphs:
                attributes = vars(operator).values()
                bodies.update({v: None for v in attributes if isinstance(v, Graph)})
        return list(bodies)

    def reachable(self) -> list[Graph]:
        """Return the graph itself and all graphs inside of it, each once.

        A graph comes before the graphs of its operators.
        """
        inner_first: list[Graph] = []
        visited: set[Graph] = set()

        def visit(graph: Graph) -> None:
            visited.add(graph)
            for body in reversed(graph.bodies()):
                if body not in visited:
                    visit(body)
            inner_first.append(graph)

        visit(self)
        return inner_first[::-1]

    def constants(self) -> list[Value]:
        """Return the constants used or returned, each once, in order of first use."""
        used: list[Value] = []
        for operator in self.operators:
            used += operator.inputs
        used += self.outputs
        return list(dict.fromkeys(v for v in used if v.constant is not None))


class Entries(Operator):
    """A placeholder for the shape operators that compute a dynamic SHAPE.

    It is not in the graph. Lowering rules and passes read its entries. The pass
    ``compute_shapes`` replaces it by operators of TOSA.
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
