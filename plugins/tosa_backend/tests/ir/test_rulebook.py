"""For each rule and each operator that can break it, one illegal graph breaks that rule
and no other.

The reference tools validate the same graphs: by default a ninth of them, with -m slow all
of them.
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

from ..support.breaking import EVERYTHING, broken
from ..support.breaking.changing import Change
from ..support.breaking.judging import opinions, record
from ..support.breaking.table import BREAKS
from ..support.samples import samples

SOURCES = Path(delegraph_tosa.__file__).parent
NAMES_A_RULE = {"check": 2, "note": 2, "Illegal": 1}
"""Function -> position of the argument that names a rule."""


# -- the table and the code ------------------------------------------------------------


def rules_named_in(tree: ast.AST) -> Iterator[str]:
    """Yield the rules that calls of ``check``, ``note`` and ``Illegal`` name."""
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


def test_every_check_of_an_operator_names_a_known_rule():
    for file in (SOURCES / "ir" / "operators").glob("*.py"):
        named = set(rules_named_in(ast.parse(file.read_text())))
        assert named <= RULES.keys(), (file.name, named - RULES.keys())


def test_every_rule_is_named_in_the_sources():
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
    """Return the rules that ``infer`` of an operator can name, found by following its
    calls through the source.
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
    """Yield the functions that ``function`` of the operator ``kind`` calls."""
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
    """Return the rules of the specification's table, which depend on the target."""
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
"""Rules that the code of a base class names and these operators cannot break -> why."""


@pytest.mark.parametrize("name", OPERATORS)
def test_a_case_breaks_every_rule_that_an_operator_reports(name):
    rules = reported_by(OPERATORS[name]) | reported_for_targets(OPERATORS[name])

    untested = {
        rule for rule in rules if (rule, name) not in COVERED | IMPOSSIBLE.keys()
    }

    assert untested == set()


def test_cases_cover_every_rule():
    assert {case.rule for case in CASES} == RULES.keys()


def test_rulebook_has_enough_cases():
    assert len(COVERED) > 700
    assert len(CASES) > 1000


def test_each_case_breaks_its_rule_and_no_other():
    wrong = {}
    for case in CASES:
        broken_rules = {v.rule for v in violations(case.graph, case.spec)}
        if broken_rules != {case.rule}:
            wrong[case.label] = broken_rules

    assert wrong == {}


def test_violations_name_a_section_of_the_specification():
    for case in CASES:
        heading = RULES[case.rule].section
        for violation in violations(case.graph, case.spec):
            assert heading in str(violation)
            if violation.operator and heading in OF_OPERATORS:
                assert violation.section == f"{violation.operator.name}, {heading}"
            elif violation.operator:
                assert violation.section == heading


def test_violations_of_operator_rules_name_the_operator():
    for case in CASES:
        if case.operator and RULES[case.rule].section in OF_OPERATORS:
            found = violations(case.graph, case.spec)
            named = {v.operator.name for v in found if v.operator}
            assert case.operator in named


MALFORMED = {"operand-count", "attribute-type"}
"""The validator does not call ``infer`` if an operator breaks one of these rules."""


def first_sample_of_each_operator() -> Iterator[Operator]:
    seen = set()
    for sample in samples():
        (operator,) = sample.graph.operators
        name = sample.label.partition("(")[0]
        if name not in seen:
            seen.add(name)
            yield operator


def test_graphs_that_break_two_rules_mostly_report_both():
    """``infer`` must not crash on a graph that breaks several rules."""
    changes = {rule: c for rule, c in BREAKS.items() if rule not in MALFORMED}
    both_reported = 0
    graphs = 0

    for operator in first_sample_of_each_operator():
        for first_rule, second_rule in itertools.permutations(changes, 2):
            for graph in itertools.islice(changes[first_rule](operator), 1):
                changed_once = graph.operators[0]
                for twice in changed_again(changed_once, changes[second_rule]):
                    found = violations(twice, EVERYTHING[(1, 0)])
                    graphs += 1
                    if {first_rule, second_rule} <= {v.rule for v in found}:
                        both_reported += 1

    assert graphs > 2000
    # Sometimes the second change undoes the first.
    assert both_reported > graphs / 2


def changed_again(operator: Operator, change: Change) -> Iterator[Graph]:
    """Yield the changed graph, or nothing if the first change makes a second impossible."""
    with contextlib.suppress(IndexError, ValueError, TypeError, StopIteration):
        yield next(change(operator))


# -- the reference tools ---------------------------------------------------------------

RECORD = json.loads(
    (Path(__file__).parents[1] / "support/verdicts/breaking.json").read_text()
)
"""Verdicts of the reference tools, which
``python -m plugins.tosa_backend.tests.support.breaking`` wrote.
"""
UNOPPOSED = json.loads(
    (Path(__file__).parents[1] / "support/verdicts/unopposed.json").read_text()
)
"""Graphs that we refuse and both reference tools accept, with the sentence of the
specification that forbids them.
"""
JUSTIFIED = {
    (entry["rule"], operator) for entry in UNOPPOSED for operator in entry["operators"]
}
WRITABLE = [case for case in CASES if case.writable]


def test_additional_refusals_are_stated_in_the_specification():
    some = WRITABLE[::9]

    only_we_refuse = {
        (case.rule, case.operator)
        for case, refusals in zip(some, opinions(some), strict=True)
        if not any(refusals)
    }

    assert only_we_refuse <= JUSTIFIED


def test_the_record_contains_all_cases():
    graphs_by_rule = {rule: entry["graphs"] for rule, entry in RECORD.items()}
    files = sum(entry["files"] for entry in RECORD.values())

    assert graphs_by_rule == Counter(case.rule for case in CASES)
    assert files == len(WRITABLE)


def test_recorded_refusals_of_ours_alone_are_justified():
    only_we_refuse = set()
    for rule, entry in RECORD.items():
        only_we_refuse.update((rule, operator) for operator in entry["neither"])

    assert only_we_refuse == JUSTIFIED


@pytest.mark.slow
def test_the_record_equals_the_verdicts_of_the_tools():
    assert record(CASES) == RECORD
