"""Whether a graph is legal TOSA for a target: every violation, each with the operator and the user's line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from delegraph.errors import DelegraphError

from .ir.graph import Graph, Illegal, Operator, Value
from .ir.operators import OPERATORS
from .ir.types import BlockSize, DType, NanMode, ResizeMode, RoundingMode
from .spec import TosaSpec

_INT32 = range(-(1 << 31), 1 << 31)
_ATTRIBUTE_TYPES: dict[str, type | tuple[type, ...]] = {
    "int": int,
    "bool": bool,
    "Ints": tuple,
    "Number": (int, float),
    "DType": DType,
    "ResultDType": DType,
    "ResultTypes": tuple,
    "NanMode": NanMode,
    "BlockSize": BlockSize,
    "ResizeMode": ResizeMode,
    "RoundingMode": RoundingMode,
    "str": str,
    "bytes": bytes,
    "Graph": Graph,
}


class Violation(NamedTuple):
    """One rule that a graph breaks; ``where`` names the operator by number, the input, the output or the constant.

    ``rule`` is the part of the specification that says so: for operators a heading below the operator's own section.
    """

    where: str
    problem: str
    operator: Operator | None = None
    rule: str = "graphs"

    @property
    def section(self) -> str:
        """Where the specification has the rule."""
        return f"section {self.operator.name}, {self.rule}" if self.operator else self.rule

    def __str__(self) -> str:
        source = f"\n    at {self.operator.source}" if self.operator and self.operator.source else ""
        return f"{self.where}: {self.problem} [{self.section}]{source}"


class InvalidGraph(DelegraphError, ValueError):
    """A graph is no legal TOSA for its target; ``violations`` has all reasons."""

    def __init__(self, violations: list[Violation], spec: TosaSpec) -> None:
        listed = "\n".join(f"  {violation}" for violation in violations)
        super().__init__("tosa/invalid-graph", f"{len(violations)} violations of {spec}:\n{listed}")
        self.violations = violations


def validate(graph: Graph, spec: TosaSpec) -> None:
    """Raise InvalidGraph with all violations, if there are any."""
    if found := violations(graph, spec):
        raise InvalidGraph(found, spec)


def violations(graph: Graph, spec: TosaSpec) -> list[Violation]:
    """Everything that makes ``graph`` illegal for ``spec``: structure, inferred types, target, level, names."""
    check = _Check(spec)
    found = [v for number, g in enumerate(graph.reachable()) for v in check.graph(g, _place(g, number))]
    if _depth(graph, {}) > spec.max_nesting:
        text = f"control flow is nested deeper than MAX_NESTING, which is {spec.max_nesting}"
        found.append(Violation("graph", text, rule=f"level {spec.level}"))
    return found


def _place(graph: Graph, number: int) -> str:
    """What names a graph of control flow; the program itself needs no name."""
    return f"graph {graph.name if graph.name != 'main' else number}, " if number else ""


def _depth(graph: Graph, known: dict[Graph, int]) -> int:
    """How many graphs of control flow contain each other."""
    if graph not in known:
        known[graph] = 0  # one that contains itself is refused elsewhere: files cannot say it
        known[graph] = max((1 + _depth(body, known) for body in graph.bodies()), default=0)
    return known[graph]


class _Check:
    def __init__(self, spec: TosaSpec) -> None:
        self.spec = spec

    def graph(self, graph: Graph, within: str) -> Iterator[Violation]:
        yield from self.inputs(graph, within)
        defined = set(graph.inputs)
        for number, operator in enumerate(graph.operators):
            where = f"{within}operator {number} ({operator.name})"
            yield from (Violation(where, text, operator, rule) for rule, text in self.operator(operator, defined))
            defined.update(operator.outputs)
        yield from self.constants(graph, within)
        yield from self.outputs(graph, defined, within)
        yield from _duplicate_names(graph, within)

    def inputs(self, graph: Graph, within: str) -> Iterator[Violation]:
        for position, value in enumerate(graph.inputs):
            where = f"{within}input {position}"
            if value in graph.inputs[:position]:
                yield Violation(where, "the value is an input already")
            if value.constant is not None or value.producer is not None:
                yield Violation(where, "an input cannot be a constant or the result of an operator")
            if text := self.boundary(value):
                yield Violation(where, text)

    def boundary(self, value: Value) -> str | None:
        if value.dtype is DType.SHAPE:
            return "a shape cannot cross the boundary of a graph"
        return self.spec.why_not_tensor(value.type)

    def constants(self, graph: Graph, within: str) -> Iterator[Violation]:
        for number, value in enumerate(graph.constants()):
            if text := self.spec.why_not_constant(value.type):
                rule = "section CONST, supported data types and level"
                yield Violation(f"{within}constant {value.name or number}", text, rule=rule)

    def outputs(self, graph: Graph, defined: set[Value], within: str) -> Iterator[Violation]:
        for position, value in enumerate(graph.outputs):
            where = f"{within}output {position}"
            if value not in defined and value.constant is None:
                yield Violation(where, f"{value!r} is not defined")
            if text := self.boundary(value):
                yield Violation(where, text)

    def operator(self, operator: Operator, defined: set[Value]) -> Iterator[tuple[str, str]]:
        """The rule and the text of everything that is wrong with an operator."""
        kind = OPERATORS.get(operator.name)
        if kind is not type(operator):
            yield "operators", "it is no operator of TOSA"
            return
        for position, value in enumerate(operator.inputs):
            if value.constant is None and value not in defined:
                yield "dataflow", f"operand {position} ({value!r}) is not defined before it is used"
        for position, value in enumerate(operator.outputs):
            if value in defined or value.constant is not None:
                yield "dataflow", f"result {position} ({value!r}) is defined already"
        malformed = [*_operand_count(operator), *_attributes(operator)]
        yield from (("arguments", text) for text in malformed)
        if not malformed:
            yield from (("ERROR_IF", text) for text in _inference(operator))
            if self.spec.why_not(operator):
                yield from self.spec.breaches(operator)


def _operand_count(operator: Operator) -> Iterator[str]:
    given, wanted = len(operator.inputs), len(operator.operands)
    if given < wanted - 1 if operator.variadic else given != wanted:
        yield f"it has {given} operands, needs {wanted} ({', '.join(operator.operands)})"


def _attributes(operator: Operator) -> Iterator[str]:
    for name, kind in operator.attributes.items():
        value = getattr(operator, name, None)
        if not isinstance(value, _ATTRIBUTE_TYPES[kind]) or not _in_range(kind, value):
            yield f"attribute {name} is {value!r}, which is no {kind}"


def _in_range(kind: str, value: Any) -> bool:
    if kind == "int":
        return value in _INT32
    return kind != "Ints" or all(isinstance(entry, int) and entry in _INT32 for entry in value)


def _inference(operator: Operator) -> Iterator[str]:
    try:
        inferred = operator.infer()
    except Illegal as problem:
        yield str(problem)
        return
    declared = tuple(v.type for v in operator.outputs)
    if inferred != declared:
        wanted, found = ", ".join(map(str, inferred)) or "nothing", ", ".join(map(str, declared)) or "nothing"
        yield f"it gives {wanted}, its results are declared as {found}"


def _duplicate_names(graph: Graph, within: str) -> Iterator[Violation]:
    """Names of inputs and outputs are how a file's user tells them apart; other names are made unique when written."""
    names = Counter(v.name for v in dict.fromkeys([*graph.inputs, *graph.outputs]) if v.name)
    for name, count in names.items():
        if count > 1:
            yield Violation(f"{within}name {name!r}", f"{count} inputs or outputs have it")
