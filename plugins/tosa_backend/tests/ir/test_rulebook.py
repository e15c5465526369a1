"""One illegal graph for each rule and each operator that can break it: it breaks that
rule and no other.

The outside judges are asked as well: by default about some of them, with -m slow about
all.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import itertools
import json
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType

import delegraph_tosa
import pytest
from delegraph_tosa.ir.graph import Graph, Operator
from delegraph_tosa.ir.operators import OPERATORS
from delegraph_tosa.ir.rulebook import OF_OPERATORS, RULES
from delegraph_tosa.spec.levels import RULE_OF_LIMIT
from delegraph_tosa.spec.operator_table import rows
from delegraph_tosa.validate import violations

from ..support.breaking import EVERYTHING, Broken, broken
from ..support.breaking.changing import Change
from ..support.breaking.judging import opinions, record
from ..support.breaking.table import BREAKS
from ..support.samples import samples

SOURCES = Path(delegraph_tosa.__file__).parent
NAMES_A_RULE = {"check": 2, "note": 2, "Illegal": 1}
"""Function -> position of the argument that names a rule."""


# -- the table and the code ------------------------------------------------------------


def rules_named_in(tree: ast.AST) -> Iterator[str]:
    for call in ast.walk(tree):
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id in NAMES_A_RULE
        ):
            named = call.args[NAMES_A_RULE[call.func.id] :]
            yield (
                named[0].value
                if named and isinstance(named[0], ast.Constant)
                else "unnamed"
            )


def test_every_check_of_an_operator_names_a_rule():
    for file in (SOURCES / "ir" / "operators").glob("*.py"):
        named = set(rules_named_in(ast.parse(file.read_text())))
        assert named <= RULES.keys(), (file.name, named - RULES.keys())


def test_no_rule_is_without_code():
    strings = {
        node.value
        for file in SOURCES.rglob("*.py")
        if file.name != "rulebook.py"
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert RULES.keys() <= strings


# -- what each operator can report -----------------------------------------------------


def reported_by(kind: type[Operator]) -> set[str]:
    """The rules that ``infer`` of an operator can name, found by following its calls
    through the source.
    """
    found: set[str] = set()
    seen: set[FunctionType] = set()
    waiting: list[Callable] = [kind.infer]
    while waiting:
        function = inspect.unwrap(waiting.pop())
        if (
            isinstance(function, FunctionType)
            and function not in seen
            and "delegraph_tosa.ir" in function.__module__
        ):
            seen.add(function)
            tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
            found.update(rules_named_in(tree))
            waiting += called(tree, function, kind)
    return found - {"unnamed"}  # of ``note`` and ``check`` themselves


def called(
    tree: ast.AST, function: FunctionType, kind: type[Operator]
) -> Iterator[Callable]:
    for call in ast.walk(tree):
        if isinstance(call, ast.Call):
            if isinstance(call.func, ast.Name):
                yield function.__globals__.get(call.func.id, len)
            elif isinstance(call.func, ast.Attribute) and isinstance(
                call.func.value, ast.Name
            ):
                yield getattr(
                    kind if call.func.value.id == "self" else object,
                    call.func.attr,
                    len,
                )


def reported_for_targets(kind: type[Operator]) -> set[str]:
    """The rules that every operator has, and those of the specification's table."""
    row = rows((1, 0) if kind.__name__ in rows() else (1, 1))[kind.__name__]
    limits = {
        name
        for argument in row.arguments
        for _, name in argument.get("level_limits", ())
    }
    tensors = any(row.inputs[i] != "shape" for i, _ in row.constants)
    return {
        *(RULE_OF_LIMIT[name] for name in limits),
        *(["operand-count"] if not kind.variadic or len(kind.operands) > 1 else []),
        *(["attribute-type"] if kind.attributes else []),
        *(["result-type"] if row.outputs else []),
        # DIM asks for the shape only
        *(["constant-operand"] if tensors and kind.__name__ != "DIM" else []),
        *(["data-types"] if row.variables - {"shape_t"} else []),
    }


CASES = broken()
COVERED = {(case.rule, case.operator) for case in CASES}
IMPOSSIBLE = {
    **{("shape-overflow", f"{name}_SHAPE"): "entries are not above those of the operands" for name in (
        "MAX", "MIN", "MOD", "DIV_CEIL", "DIV_FLOOR", "LOG2_CEIL", "LOG2_FLOOR", "CONCAT", "SLICE",
    )},
    ("shape-overflow", "EXP2_SHAPE"): "exponents are at most 62",
    ("shape-overflow", "DIM"): "sizes have 32 bits",
    **{("shape-range", f"{name}_SHAPE"): "all entries are taken" for name in ("ADD", "SUB", "MUL", "MAX", "MIN")},
}  # fmt: skip
"""What the code of a base class can say and these operators cannot cause."""


@pytest.mark.parametrize("name", OPERATORS)
def test_every_rule_that_an_operator_reports_is_broken(name):
    rules = reported_by(OPERATORS[name]) | reported_for_targets(OPERATORS[name])
    assert {
        rule for rule in rules if (rule, name) not in COVERED | IMPOSSIBLE.keys()
    } == set()


def test_rulebook_has_enough_cases():
    assert {case.rule for case in CASES} == RULES.keys()
    assert len(COVERED) > 700
    assert len(CASES) > 1000


def test_each_breaks_its_rule_and_no_other():
    wrong = {
        case.label: found for case in CASES if (found := rules_of(case)) != {case.rule}
    }
    assert wrong == {}


def rules_of(case: Broken) -> set[str]:
    return {violation.rule for violation in violations(case.graph, case.spec)}


def test_each_names_the_operator_and_a_section():
    for case in CASES:
        for violation in violations(case.graph, case.spec):
            heading = RULES[case.rule].section
            own = heading in OF_OPERATORS
            assert heading in str(violation)
            if violation.operator:
                assert violation.section == (
                    f"{violation.operator.name}, {heading}" if own else heading
                )
        if case.operator and RULES[case.rule].section in OF_OPERATORS:
            assert case.operator in {
                v.operator.name for v in violations(case.graph, case.spec) if v.operator
            }


MALFORMED = {"operand-count", "attribute-type"}
"""Without these ``infer`` is not asked."""


def test_two_changes_at_once():
    """``infer`` fails in no other way than by Illegal, and most often both rules are
    told.
    """
    together = total = 0
    for _, of_one in itertools.groupby(
        samples(), lambda sample: sample.label.partition("(")[0]
    ):
        operator = next(of_one).graph.operators[0]
        well_formed = {
            rule: change for rule, change in BREAKS.items() if rule not in MALFORMED
        }
        for (rule, change), (other, second) in itertools.permutations(
            well_formed.items(), 2
        ):
            for graph in itertools.islice(change(operator), 1):
                for twice in changed_again(graph.operators[0], second):
                    found = {
                        violation.rule
                        for violation in violations(twice, EVERYTHING[(1, 0)])
                    }
                    total += 1  # now and then the second change undoes the first
                    together += {rule, other} <= found
    assert total > 2000
    assert together > total / 2


def changed_again(operator: Operator, change: Change) -> Iterator[Graph]:
    """Nothing if the change needs what the first one took away."""
    with contextlib.suppress(IndexError, ValueError, TypeError, StopIteration):
        yield next(change(operator))


# -- the outside judges ----------------------------------------------------------------

RECORD = json.loads(
    (Path(__file__).parents[1] / "support/verdicts/breaking.json").read_text()
)
"""What ``python -m plugins.tosa_backend.tests.support.breaking`` wrote."""
UNOPPOSED = json.loads(
    (Path(__file__).parents[1] / "support/verdicts/unopposed.json").read_text()
)
"""What we refuse and neither judge does, with the words of the specification."""
JUSTIFIED = {
    (entry["rule"], operator) for entry in UNOPPOSED for operator in entry["operators"]
}
WRITABLE = [case for case in CASES if case.writable]


def test_additional_refusals_are_stated_in_the_specification():
    some = WRITABLE[::9]
    alone = {
        (c.rule, c.operator)
        for c, opinion in zip(some, opinions(some), strict=True)
        if not any(opinion)
    }
    assert alone <= JUSTIFIED


def test_the_record_is_of_all_of_them():
    assert {rule: entry["graphs"] for rule, entry in RECORD.items()} == Counter(
        case.rule for case in CASES
    )
    assert sum(entry["files"] for entry in RECORD.values()) == len(WRITABLE)
    assert {
        (rule, operator)
        for rule, entry in RECORD.items()
        for operator in entry["neither"]
    } == JUSTIFIED


@pytest.mark.slow
def test_the_record_equals_the_verdicts_of_the_tools():
    assert record(CASES) == RECORD
