"""Checks that a graph is legal TOSA for a target.

Lists every violation with the operator and the user's source line.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

from delegraph.errors import DelegraphError

from .ir.graph import LONGEST_NAME, Graph, Operator, Value, infer_all
from .ir.operators import CUSTOM, OPERATORS, VARIABLE, VARIABLE_READ, VARIABLE_WRITE
from .ir.operators.shape import ShapeOperator
from .ir.rulebook import section
from .ir.types import BlockSize, DType, NanMode, ResizeMode, RoundingMode, Type
from .spec import TosaSpec
from .spec.levels import OF_TYPED_OPERATORS, Breach

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
    """A rule of ``ir.rulebook`` that a graph breaks.

    ``where`` names the operator by number, or the input, output or constant.
    """

    where: str
    problem: str
    rule: str
    operator: Operator | None = None

    @property
    def section(self) -> str:
        """The section of the specification that has the rule."""
        return section(self.rule, self.operator.name if self.operator else None)

    def __str__(self) -> str:
        source = ""
        if self.operator and self.operator.source:
            source = f"\n    at {self.operator.source}"
        return f"{self.where}: {self.problem} [{self.rule}: {self.section}]{source}"


LISTED = 100
"""Number of violations in the text of an error. A small file can have thousands."""


class InvalidGraph(DelegraphError, ValueError):
    """Raised for a graph that is not legal TOSA for its target.

    ``violations`` lists all reasons.
    """

    def __init__(self, violations: list[Violation], spec: TosaSpec) -> None:
        listed = "\n".join(f"  {violation}" for violation in violations[:LISTED])
        if len(violations) > LISTED:
            listed += f"\n  and {len(violations) - LISTED} more"
        super().__init__(
            "tosa/invalid-graph", f"{len(violations)} violations of {spec}:\n{listed}"
        )
        self.violations = violations


def validate(graph: Graph, spec: TosaSpec) -> None:
    """Raise InvalidGraph with all violations, if there are any."""
    if found := violations(graph, spec):
        raise InvalidGraph(found, spec)


def violations(graph: Graph, spec: TosaSpec) -> list[Violation]:
    """Return all reasons why ``graph`` is not legal for ``spec``.

    Checks the structure, inferred types, target, level and names.
    """
    graphs = graph.reachable()
    check = _Check(spec, graphs)
    found: list[Violation] = []
    for number, g in enumerate(graphs):
        found += check.graph(g, _place(g, number))
    # Counted as tosa-opt does. The specification's pseudocode can be read as one more.
    if (depth := _depth(graph, {})) >= spec.max_nesting:
        how = "without end" if depth == _ENDLESS else f"{depth} deep"
        text = (
            f"control flow is nested {how}, the program counts as well and MAX_NESTING"
            f" is {spec.max_nesting}"
        )
        found.append(Violation("graph", text, "level-nesting"))
    return found


def _place(graph: Graph, number: int) -> str:
    """Return a prefix that names a graph of control flow; "" for the program itself."""
    if not number:
        return ""
    name = graph.name[:LONGEST_NAME] if graph.name != "main" else number
    return f"graph {name}, "


_ENDLESS = math.inf


def _depth(graph: Graph, known: dict[Graph, float]) -> float:
    """Return how deep graphs of control flow are nested; infinite for a cycle."""
    if graph not in known:
        # A cycle finds this entry. Files cannot express one, but graphs can.
        known[graph] = _ENDLESS
        known[graph] = max(
            (1 + _depth(body, known) for body in graph.bodies()), default=0
        )
    return known[graph]


class _Check:
    """Checks the graphs of a program for a target.

    ``legal`` holds the kinds of operators that passed. Layers of a network repeat, so
    most operators have a known kind.
    """

    def __init__(self, spec: TosaSpec, graphs: list[Graph]) -> None:
        self.spec = spec
        self.variables = _Variables(graphs)
        self.legal: set[Hashable] = set()

    def graph(self, graph: Graph, within: str) -> Iterator[Violation]:
        opaque = {
            v
            for op in graph.operators
            if isinstance(op, CUSTOM)
            for v in (*op.inputs, *op.outputs)
        }
        # The writer puts an IDENTITY between an input and the same output.
        opaque -= {*graph.inputs} & {*graph.outputs}
        yield from self.inputs(graph, opaque, within)
        defined = set(graph.inputs)
        for number, operator in enumerate(graph.operators):
            found = self.operator(operator, defined)
            if found:
                where = f"{within}operator {number} ({operator.name})"
                yield from (
                    Violation(where, text, rule, operator) for rule, text in found
                )
            defined.update(operator.outputs)
        yield from self.constants(graph, within)
        yield from self.outputs(graph, defined, opaque, within)
        yield from _duplicate_names(graph, within)

    def inputs(
        self, graph: Graph, opaque: set[Value], within: str
    ) -> Iterator[Violation]:
        for position, value in enumerate(graph.inputs):
            where = f"{within}input {position}"
            if value in graph.inputs[:position]:
                yield Violation(where, "the value is an input already", "input-once")
            if value.constant is not None or value.producer is not None:
                text = "an input cannot be a constant or the result of an operator"
                yield Violation(where, text, "input-from-outside")
            yield from self.boundary(value, value in opaque, where)

    def boundary(self, value: Value, opaque: bool, where: str) -> Iterator[Violation]:
        """Check a value that enters or leaves. ``opaque`` values belong to CUSTOM."""
        if value.dtype is DType.SHAPE:
            yield Violation(
                where, "a shape cannot cross the boundary of a graph", "shape-inside"
            )
            return
        for rule, text in self.spec.type_breaches("tensor", value.type):
            if not (opaque and rule in OF_TYPED_OPERATORS):
                yield Violation(where, text, rule)

    def constants(self, graph: Graph, within: str) -> Iterator[Violation]:
        constants = graph.constants()
        broken = {
            t: list(self.spec.type_breaches("constant", t))
            for t in {value.type for value in constants}
        }
        for number, value in enumerate(constants):
            where = f"{within}constant {value.name or number}"
            yield from (
                Violation(where, text, rule) for rule, text in broken[value.type]
            )

    def outputs(
        self, graph: Graph, defined: set[Value], opaque: set[Value], within: str
    ) -> Iterator[Violation]:
        for position, value in enumerate(graph.outputs):
            where = f"{within}output {position}"
            if value not in defined and value.constant is None:
                yield Violation(where, f"{value!r} is not defined", "operand-defined")
            yield from self.boundary(value, value in opaque, where)

    def operator(self, operator: Operator, defined: set[Value]) -> list[Breach]:
        """Return the rule and the text of everything that is wrong with an operator."""
        if OPERATORS.get(operator.name) is not type(operator):
            return [("operator-known", "it is not a TOSA operator")]
        found = [
            *_undefined_operands(operator, defined),
            *_results_defined_before(operator, defined),
        ]
        malformed = [*_operand_count(operator), *_attributes(operator)]
        if malformed:
            return [*found, *malformed]
        kind = _kind(operator)
        if kind in self.legal:
            return [*found, *self.variables.breaches(operator)]
        broken = [*_inference(operator), *self.variables.breaches(operator)]
        if self.spec.why_not(operator):
            broken += self.spec.breaches(operator)
        if not broken:
            self.legal.add(kind)
        return [*found, *broken]


def _kind(operator: Operator) -> Hashable:
    """Return a key of everything that ``infer`` and the target see of an operator.

    Constants and shapes count by identity, other operands by type. Shape operators
    compute a shape in ``infer``, and CUSTOM can do anything, so each of them has its
    own key.
    """
    if isinstance(operator, (ShapeOperator, CUSTOM)):
        return operator
    seen = [
        v.type if v.constant is None and v.type.dtype is not DType.SHAPE else v
        for v in operator.inputs
    ]
    results = [v.type for v in operator.outputs]
    attributes = [getattr(operator, name) for name in operator.attributes]
    return type(operator), tuple(seen), tuple(results), tuple(attributes)


def _undefined_operands(operator: Operator, defined: set[Value]) -> list[Breach]:
    return [
        (
            "operand-defined",
            f"operand {position} ({value!r}) is not defined before it is used",
        )
        for position, value in enumerate(operator.inputs)
        if value.constant is None and value not in defined
    ]


def _results_defined_before(operator: Operator, defined: set[Value]) -> list[Breach]:
    return [
        ("result-once", f"result {position} ({value!r}) is defined already")
        for position, value in enumerate(operator.outputs)
        if value in defined
        or value.constant is not None
        or value in operator.outputs[:position]
    ]


class _Variables:
    """The variables of a program, by name. Its control flow graphs share them."""

    def __init__(self, graphs: list[Graph]) -> None:
        operators = [op for graph in graphs for op in graph.operators]
        self.declared = {
            _variable(op): op
            for op in reversed(operators)
            if isinstance(op, VARIABLE) and op.inputs
        }
        self.later = {id(op) for graph in graphs for op in _before_declarations(graph)}

    def breaches(self, operator: Operator) -> list[Breach]:
        if isinstance(operator, VARIABLE):
            if self.declared.get(operator.variable) is not operator:
                return [
                    (
                        "variable-once",
                        f"variable {operator.variable!r} is declared already",
                    )
                ]
        elif isinstance(operator, VARIABLE_READ | VARIABLE_WRITE):
            return self._access(operator, _accessed(operator))
        return []

    def _access(
        self, operator: VARIABLE_READ | VARIABLE_WRITE, type: Type | None
    ) -> list[Breach]:
        declaration = self.declared.get(operator.variable)
        if declaration is None or id(operator) in self.later:
            return [
                (
                    "variable-declared",
                    f"variable {operator.variable!r} is not declared before",
                )
            ]
        wanted = declaration.initial_value.type
        if type in (None, wanted):
            return []
        return [
            (
                "variable-type",
                f"variable {operator.variable!r} has type {wanted}, but is accessed as {type}",
            )
        ]


def _accessed(operator: VARIABLE_READ | VARIABLE_WRITE) -> Type | None:
    """Return the type that a variable is read or written with."""
    if isinstance(operator, VARIABLE_WRITE):
        return operator.input1.type
    return operator.types[0] if len(operator.types) == 1 else None


def _before_declarations(graph: Graph) -> Iterator[Operator]:
    """Return accesses to variables that the same graph declares later."""
    later: set[str] = set()
    for operator in reversed(graph.operators):
        if isinstance(operator, VARIABLE):
            later.add(_variable(operator))
        elif (
            isinstance(operator, VARIABLE_READ | VARIABLE_WRITE)
            and _variable(operator) in later
        ):
            yield operator


def _variable(operator: Operator) -> str:
    """Return the variable's name as text; a malformed operator may have none."""
    return str(vars(operator).get("variable"))


def _operand_count(operator: Operator) -> list[Breach]:
    given = len(operator.inputs)
    wanted = len(operator.operands)
    if given >= wanted - 1 if operator.variadic else given == wanted:
        return []
    return [
        (
            "operand-count",
            f"it has {given} operands instead of {wanted} ({', '.join(operator.operands)})",
        )
    ]


def _attributes(operator: Operator) -> list[Breach]:
    found = []
    for name, kind in operator.attributes.items():
        value = getattr(operator, name, None)
        if not isinstance(value, _ATTRIBUTE_TYPES[kind]) or not _in_range(kind, value):
            found.append(
                ("attribute-type", f"attribute {name} is {value!r}, not of type {kind}")
            )
    return found


def _in_range(kind: str, value: Any) -> bool:
    if kind == "int":
        return _is_int32(value)
    return kind != "Ints" or all(
        isinstance(entry, int) and _is_int32(entry) for entry in value
    )


def _is_int32(value: int) -> bool:
    # ``in range`` would iterate for members of an enumeration.
    return -(1 << 31) <= value < 1 << 31


def _inference(operator: Operator) -> list[Breach]:
    inferred, broken = infer_all(operator)
    declared = tuple([v.type for v in operator.outputs])
    if broken or inferred == declared:
        return [(illegal.rule, str(illegal)) for illegal in broken]
    wanted = ", ".join(map(str, inferred)) or "nothing"
    found = ", ".join(map(str, declared)) or "nothing"
    return [
        (
            "result-type",
            f"it computes {wanted}, but its results are declared as {found}",
        )
    ]


def _duplicate_names(graph: Graph, within: str) -> Iterator[Violation]:
    """Find inputs and outputs with the same name. Users address them by name.

    Other values get unique names when the file is written.
    """
    names = Counter(
        v.name for v in dict.fromkeys([*graph.inputs, *graph.outputs]) if v.name
    )
    for name, count in names.items():
        if count > 1:
            yield Violation(
                f"{within}name {name!r}",
                f"{count} inputs or outputs have this name",
                "distinct-names",
            )
