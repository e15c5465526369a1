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
        """Return the section of the specification that has the rule."""
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
    found = violations(graph, spec)
    if found:
        raise InvalidGraph(found, spec)


def violations(graph: Graph, spec: TosaSpec) -> list[Violation]:
    """Return all reasons why ``graph`` is not legal for ``spec``.

    Checks the structure, inferred types, target, level and names.
    """
    graphs = graph.reachable()
    check = _Check(spec, graphs)
    found: list[Violation] = []
    for number, inner in enumerate(graphs):
        found += check.graph(inner, _prefix(inner, number))
    # counted as tosa-opt does; the specification's pseudocode can be read as one more
    depth = _depth(graph, {})
    if depth >= spec.max_nesting:
        how = "without end" if depth == _ENDLESS else f"{depth} deep"
        text = (
            f"control flow is nested {how}, the program counts as well and MAX_NESTING"
            f" is {spec.max_nesting}"
        )
        found.append(Violation("graph", text, "level-nesting"))
    return found


def _prefix(graph: Graph, number: int) -> str:
    """Return a prefix that names a graph of control flow; "" for the program itself.

    ``number`` is its index in all graphs, of which the program is the first.
    """
    if number == 0:
        return ""
    name = graph.name[:LONGEST_NAME] if graph.name != "main" else number
    return f"graph {name}, "


_ENDLESS = math.inf


def _depth(graph: Graph, known: dict[Graph, float]) -> float:
    """Return how deep graphs of control flow are nested; infinite for a cycle."""
    if graph not in known:
        # a cycle finds this entry; files cannot express one, but graphs can
        known[graph] = _ENDLESS
        known[graph] = max(
            (1 + _depth(body, known) for body in graph.bodies()), default=0
        )
    return known[graph]


class _Check:
    """Checks the graphs of a program for a target.

    ``within`` is the prefix of a graph in messages. Values are opaque if only CUSTOM
    operators read or make them: some rules do not apply to these.
    """

    def __init__(self, spec: TosaSpec, graphs: list[Graph]) -> None:
        self.spec = spec
        self.variables = _Variables(graphs)
        # kinds of operators that are legal: layers repeat, so most kinds are known
        self.legal: set[Hashable] = set()

    def graph(self, graph: Graph, within: str) -> Iterator[Violation]:
        """Yield the violations of one graph."""
        opaque: set[Value] = set()
        for operator in graph.operators:
            if isinstance(operator, CUSTOM):
                opaque.update(operator.inputs, operator.outputs)
        # the writer puts an IDENTITY between an input and the same output
        opaque -= {*graph.inputs} & {*graph.outputs}
        yield from self.inputs(graph, opaque, within)
        defined = set(graph.inputs)
        for number, operator in enumerate(graph.operators):
            for rule, text in self.operator(operator, defined):
                where = f"{within}operator {number} ({operator.name})"
                yield Violation(where, text, rule, operator)
            defined.update(operator.outputs)
        yield from self.constants(graph, within)
        yield from self.outputs(graph, defined, opaque, within)
        yield from _duplicate_names(graph, within)

    def inputs(
        self, graph: Graph, opaque: set[Value], within: str
    ) -> Iterator[Violation]:
        """Yield the violations of a graph's inputs."""
        for position, value in enumerate(graph.inputs):
            where = f"{within}input {position}"
            if value in graph.inputs[:position]:
                yield Violation(where, "the value is an input already", "input-once")
            if value.constant is not None or value.producer is not None:
                text = "an input cannot be a constant or the result of an operator"
                yield Violation(where, text, "input-from-outside")
            yield from self.boundary(value, value in opaque, where)

    def boundary(self, value: Value, opaque: bool, where: str) -> Iterator[Violation]:
        """Yield the violations of an input or output; ``where`` is its name."""
        if value.dtype is DType.SHAPE:
            yield Violation(
                where, "a shape cannot cross the boundary of a graph", "shape-inside"
            )
            return
        for rule, text in self.spec.type_breaches("tensor", value.type):
            if not (opaque and rule in OF_TYPED_OPERATORS):
                yield Violation(where, text, rule)

    def constants(self, graph: Graph, within: str) -> Iterator[Violation]:
        """Yield the violations of a graph's constants."""
        # many constants have the same type
        breaches: dict[Type, list[Breach]] = {}
        for number, value in enumerate(graph.constants()):
            if value.type not in breaches:
                found = self.spec.type_breaches("constant", value.type)
                breaches[value.type] = list(found)
            where = f"{within}constant {value.name or number}"
            for rule, text in breaches[value.type]:
                yield Violation(where, text, rule)

    def outputs(
        self, graph: Graph, defined: set[Value], opaque: set[Value], within: str
    ) -> Iterator[Violation]:
        """Yield the violations of a graph's outputs."""
        for position, value in enumerate(graph.outputs):
            where = f"{within}output {position}"
            if value not in defined and value.constant is None:
                yield Violation(where, f"{value!r} is not defined", "operand-defined")
            yield from self.boundary(value, value in opaque, where)

    def operator(self, operator: Operator, defined: set[Value]) -> list[Breach]:
        """Return all breaches of an operator. ``defined`` are the values before it."""
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
    """Return a key that is equal for operators with the same breaches.

    It has all that ``infer`` and the target read: constants and shapes themselves, and
    the types of other operands. Each shape operator is a key of its own, because its
    ``infer`` computes a shape, and so is each CUSTOM.
    """
    if isinstance(operator, (ShapeOperator, CUSTOM)):
        return operator
    operands: list[Value | Type] = []
    for value in operator.inputs:
        is_known = value.constant is not None or value.dtype is DType.SHAPE
        operands.append(value if is_known else value.type)
    results = [v.type for v in operator.outputs]
    attributes = [getattr(operator, name) for name in operator.attributes]
    return type(operator), tuple(operands), tuple(results), tuple(attributes)


def _undefined_operands(operator: Operator, defined: set[Value]) -> Iterator[Breach]:
    """Yield a breach for each operand that is not defined before ``operator``."""
    for position, value in enumerate(operator.inputs):
        if value.constant is None and value not in defined:
            text = f"operand {position} ({value!r}) is not defined before it is used"
            yield "operand-defined", text


def _results_defined_before(
    operator: Operator, defined: set[Value]
) -> Iterator[Breach]:
    """Yield a breach for each result that is defined before ``operator``, or twice."""
    for position, value in enumerate(operator.outputs):
        is_repeated = value in operator.outputs[:position]
        if value in defined or value.constant is not None or is_repeated:
            yield "result-once", f"result {position} ({value!r}) is defined already"


class _Variables:
    """The variables of a program, by name. Its control flow graphs share them."""

    def __init__(self, graphs: list[Graph]) -> None:
        # name -> first declaration
        self.declared: dict[str, VARIABLE] = {}
        # accesses that come before the declaration in their graph
        self.too_early: set[Operator] = set()
        for graph in graphs:
            self.too_early.update(_before_declarations(graph))
            for operator in graph.operators:
                if isinstance(operator, VARIABLE) and operator.inputs:
                    self.declared.setdefault(_variable(operator), operator)

    def breaches(self, operator: Operator) -> Iterator[Breach]:
        """Yield the breach of a declaration or access of a variable, if any."""
        if isinstance(operator, VARIABLE):
            if self.declared.get(operator.variable) is not operator:
                text = f"variable {operator.variable!r} is declared already"
                yield "variable-once", text
        elif isinstance(operator, VARIABLE_READ | VARIABLE_WRITE):
            yield from self._breaches_of_access(operator)

    def _breaches_of_access(
        self, operator: VARIABLE_READ | VARIABLE_WRITE
    ) -> Iterator[Breach]:
        """Yield a breach if the variable is not declared, or has another type."""
        declaration = self.declared.get(operator.variable)
        if declaration is None or operator in self.too_early:
            text = f"variable {operator.variable!r} is not declared before"
            yield "variable-declared", text
            return
        wanted = declaration.initial_value.type
        type = _accessed(operator)
        if type not in (None, wanted):
            text = (
                f"variable {operator.variable!r} has type {wanted}, but is accessed as"
                f" {type}"
            )
            yield "variable-type", text


def _accessed(operator: VARIABLE_READ | VARIABLE_WRITE) -> Type | None:
    """Return the type that a variable is read or written with.

    None for a malformed VARIABLE_READ, which ``infer`` reports.
    """
    if isinstance(operator, VARIABLE_WRITE):
        return operator.input1.type
    return operator.types[0] if len(operator.types) == 1 else None


def _before_declarations(graph: Graph) -> Iterator[Operator]:
    """Yield accesses to variables that the same graph declares later."""
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


def _operand_count(operator: Operator) -> Iterator[Breach]:
    """Yield a breach if the number of operands is wrong."""
    given = len(operator.inputs)
    wanted = len(operator.operands)
    # a list of operands may be empty
    is_right = given >= wanted - 1 if operator.variadic else given == wanted
    if not is_right:
        names = ", ".join(operator.operands)
        text = f"it has {given} operands instead of {wanted} ({names})"
        yield "operand-count", text


def _attributes(operator: Operator) -> Iterator[Breach]:
    """Yield a breach for each attribute of a wrong type or range."""
    for name, kind in operator.attributes.items():
        value = getattr(operator, name, None)
        if not isinstance(value, _ATTRIBUTE_TYPES[kind]) or not _in_range(kind, value):
            text = f"attribute {name} is {value!r}, not of type {kind}"
            yield "attribute-type", text


def _in_range(kind: str, value: Any) -> bool:
    """Return whether all integers of an attribute have 32 bits."""
    if kind == "int":
        return _is_int32(value)
    if kind == "Ints":
        return all(isinstance(entry, int) and _is_int32(entry) for entry in value)
    return True


def _is_int32(value: int) -> bool:
    """Return whether an integer has 32 bits."""
    # ``in range`` would iterate for members of an enumeration
    return -(1 << 31) <= value < 1 << 31


def _inference(operator: Operator) -> list[Breach]:
    """Return the rules that ``infer`` finds broken, or a wrong type of the results."""
    inferred, broken = infer_all(operator)
    declared = tuple([v.type for v in operator.outputs])
    if broken or inferred == declared:
        return [(illegal.rule, str(illegal)) for illegal in broken]
    wanted = ", ".join(map(str, inferred)) or "nothing"
    found = ", ".join(map(str, declared)) or "nothing"
    text = f"it computes {wanted}, but its results are declared as {found}"
    return [("result-type", text)]


def _duplicate_names(graph: Graph, within: str) -> Iterator[Violation]:
    """Yield inputs and outputs with the same name, because users call them by name.

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
