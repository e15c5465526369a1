"""The typed graph: values, operators that infer their results, constants that are computed when they are written.

Imports neither torch nor flatbuffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from .blocks import paired
from .illegal import Illegal, Undecided
from .sizes import is_dynamic
from .types import DType, Type

__all__ = [
    "LONGEST_NAME", "Array", "Constant", "Deferred", "Entries", "Folded", "Graph", "Illegal", "Ints", "Literal",
    "Number", "Operator", "ResultDType", "ResultTypes", "Scaled", "Undecided", "Value", "Values", "check", "infer_all",
    "literal", "note", "shape_of", "shape_value",
]  # fmt: skip

Array = npt.NDArray[Any]


_NOTED: ContextVar[list[Illegal] | None] = ContextVar("_NOTED", default=None)
"""Where ``note`` puts what it finds; None lets it raise."""
LONGEST_NAME = 100
"""Characters of a value's name in messages and pictures; a file may name one with a megabyte, and often."""


def check(ok: bool, why: str, rule: str = "unnamed") -> None:
    """Raise ``Illegal`` unless ``ok``: the rules after this one cannot be judged without it."""
    if not ok:
        raise Illegal(why, rule)


def note(ok: bool, why: str, rule: str) -> None:
    """``check`` for a rule that those after it do not rest on: ``infer_all`` goes on and finds them too."""
    if not ok:
        broken, noted = Illegal(why, rule), _NOTED.get()
        if noted is None:
            raise broken
        noted.append(broken)


def infer_all(operator: Operator) -> tuple[tuple[Type, ...], list[Illegal]]:
    """What ``infer`` gives and every rule that it finds broken; no types that can be relied on if there is one."""
    try:
        return operator.infer(), []
    except Illegal:  # the first: once more, for all of them
        return _infer_noting(operator)


def _infer_noting(operator: Operator) -> tuple[tuple[Type, ...], list[Illegal]]:
    noted: list[Illegal] = []
    token = _NOTED.set(noted)
    try:
        return operator.infer(), noted
    except Illegal as last:
        return (), [*noted, last]
    finally:
        _NOTED.reset(token)


class Literal:
    """A constant whose elements are at hand (small ones, and those of a file that was read)."""

    __slots__ = ("array",)

    def __init__(self, array: Array) -> None:
        self.array = array

    def materialize(self) -> Array:
        return self.array


class Deferred:
    """A constant that stays where it is until it is written: a weight. ``load`` gives its elements."""

    __slots__ = ("load",)

    def __init__(self, load: Callable[[], Array]) -> None:
        self.load = load

    def materialize(self) -> Array:
        return self.load()


class Folded:
    """Result ``index`` of an operator whose operands are all constant; evaluated when it is written.

    ``elements`` keeps a small result once it was evaluated.
    """

    __slots__ = ("elements", "index", "operator")

    def __init__(self, operator: Operator, index: int = 0) -> None:
        self.operator, self.index = operator, index
        self.elements: Array | None = None


class Scaled:
    """A block-scaled constant whose values and scales are at hand, apart; ``type`` is the constant's."""

    __slots__ = ("scales", "type", "values")

    def __init__(self, values: Array, scales: Array, type: Type) -> None:
        self.values, self.scales, self.type = values, scales, type

    def materialize(self) -> Array:
        return paired(self.values, self.scales, self.type)


Constant = Literal | Deferred | Folded | Scaled


class Value:
    """One tensor or shape: its type, and its ``constant`` if it is one. Compared by identity.

    ``producer`` is the operator of the graph that computes it; None for inputs and constants. ``range`` is the least
    and the greatest element that integers can have, None if nothing is known of them.
    """

    __slots__ = ("constant", "name", "producer", "range", "type")

    def __init__(
        self, type: Type, constant: Constant | None = None, name: str = "", producer: Operator | None = None
    ) -> None:
        self.type, self.constant, self.name, self.producer = type, constant, name, producer
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
        name = self.name if len(self.name) <= LONGEST_NAME else f"{self.name[:LONGEST_NAME]}…"
        return f"%{name or '?'}: {self.type}"


def shape_of(value: Value) -> tuple[int, ...]:
    """The entries of a SHAPE value: a constant, or the result of a shape operator whose types were inferred."""
    constant = value.constant
    if value.type.dtype is DType.SHAPE:
        if isinstance(constant, Literal):
            return tuple(constant.array.tolist())
        if constant is None and value.producer is not None and value.producer.entries is not None:
            return value.producer.entries
    raise Illegal(f"{value!r} is not a constant shape", "constant-shape")


class Operator:
    """One TOSA operator; the class's name is the specification's.

    A subclass declares its operands (annotated ``Value``; one ``Values`` takes those that the others leave), then its
    attributes (any other annotation, in the flatbuffer schema's order, with a default where one is usual), and
    ``infer``; operands and attributes of its base class come first. Modules of operators need
    ``from __future__ import annotations``.
    Compared by identity.
    """

    operands: ClassVar[tuple[str, ...]] = ()
    variadic: ClassVar[bool] = False
    attributes: ClassVar[dict[str, str]] = {}
    """Attribute name -> kind, in schema order: int, bool, Ints, Number, DType, NanMode, ResizeMode, RoundingMode, str,
    bytes, BlockSize, Graph; then what no file stores because the declared results say it: ResultDType, ResultTypes."""
    has_graphs: ClassVar[bool] = False
    """Whether an attribute is a Graph."""

    entries: tuple[int, ...] | None = None
    """What a shape operator computes; None for all others."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    source: Any

    def __init_subclass__(cls) -> None:
        own = {k: v for k, v in vars(cls).get("__annotations__", {}).items() if not v.startswith("ClassVar")}
        operands = tuple(k for k, v in own.items() if v in ("Value", "Values"))
        for position, name in enumerate(operands, start=len(cls.operands)):
            after = len(operands) - 1 - operands.index(name) if "Values" in own.values() else 0
            setattr(cls, name, _operand(position, own[name] == "Values", after, cls.variadic))
            cls.variadic = cls.variadic or own[name] == "Values"
        cls.operands += operands
        cls.attributes = cls.attributes | {k: v for k, v in own.items() if k not in operands}
        cls.has_graphs = "Graph" in cls.attributes.values()

    def __init__(self, inputs: Sequence[Value], source: Any = None, **attributes: Any) -> None:
        self.inputs, self.outputs, self.source = tuple(inputs), (), source
        self.__dict__.update(attributes)

    @property
    def name(self) -> str:
        return type(self).__name__

    def infer(self) -> tuple[Type, ...]:
        """Types of the results; raises ``Illegal`` where the specification says ERROR_IF."""
        raise NotImplementedError

    def attribute_values(self) -> dict[str, Any]:
        """Attribute name -> value, in schema order."""
        return {name: getattr(self, name) for name in self.attributes}

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(map(repr, self.inputs))})"


def _operand(position: int, rest: bool, after: int, behind_rest: bool) -> property:
    """An operand by its position; one of ``after`` operands behind a list is counted from the end."""
    if rest:
        return property(lambda op: op.inputs[position : len(op.inputs) - after])
    if behind_rest:
        return property(lambda op: op.inputs[-1 - after])
    return property(lambda op: op.inputs[position])


Values = tuple[Value, ...]
Ints = tuple[int, ...]
Number = float | int
ResultDType = DType
"""Element type of the result where operands and attributes do not determine it (CAST, RESCALE, MATMUL)."""
ResultTypes = tuple[Type, ...]
"""Types of the results of an operator that this package knows nothing about (CUSTOM)."""


class Graph:
    """Operators in an order in which operands come before uses, with named inputs and outputs in calling order.

    Constants are no operators here: a ``Value`` with a ``constant``; the writer emits CONST and CONST_SHAPE for those
    that are used.
    """

    def __init__(
        self, inputs: Iterable[Value], outputs: Iterable[Value], operators: Iterable[Operator], name: str = "main"
    ) -> None:
        self.inputs, self.outputs, self.operators, self.name = list(inputs), list(outputs), list(operators), name

    def bodies(self) -> list[Graph]:
        """Graphs that its control flow operators refer to, each once."""
        found = (v for op in self.operators if op.has_graphs for v in vars(op).values())
        return list(dict.fromkeys(v for v in found if isinstance(v, Graph)))

    def reachable(self) -> list[Graph]:
        """The graph itself and all graphs inside of it, each once and before those that it refers to."""
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
        """Constants that an operator or an output uses, each once, in order of first use."""
        used = [v for op in self.operators for v in op.inputs] + self.outputs
        return list(dict.fromkeys(v for v in used if v.constant is not None))


class Entries(Operator):
    """Stands for the shape operators that compute a SHAPE with sizes that are known at run time only.

    Rules and passes see the entries; the pass ``compute_shapes`` puts the operators of TOSA in its place.
    """

    def __init__(self, entries: tuple[int, ...]) -> None:
        super().__init__(())
        self.entries = entries
        self.outputs = (Value(Type((len(entries),), DType.SHAPE), producer=self),)

    def infer(self) -> tuple[Type, ...]:
        return (self.outputs[0].type,)


def shape_value(entries: Sequence[int]) -> Value:
    """A SHAPE with these entries: a constant if they are known."""
    if any(map(is_dynamic, entries)):
        return Entries(tuple(entries)).outputs[0]
    return literal(entries, DType.SHAPE, np.int64)


def literal(elements: Any, dtype: DType, numpy_dtype: npt.DTypeLike) -> Value:
    """A constant value from Python or numpy elements."""
    array = np.asarray(elements, numpy_dtype)
    return Value(Type(array.shape, dtype), Literal(array))
