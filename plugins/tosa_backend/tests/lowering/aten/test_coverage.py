"""A rule without a row in its family's tests is a claim that nobody checks."""

from __future__ import annotations

from importlib import import_module

import delegraph_tosa.lowering.integer  # noqa: F401 - registers the rules for quantize, too
import pytest
from delegraph_tosa.ir.graph import Value
from delegraph_tosa.lowering import FAMILIES, RULES

# what torch says of a row of conv
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")


@pytest.mark.parametrize("name", FAMILIES)
def test_every_rule_is_in_a_row_of_its_family(name):
    family = import_module(f"{__package__}.test_{name}").FAMILY
    rules = {
        op
        for (op, kind), rule in RULES.items()
        if kind is Value and rule.function.__module__.rpartition(".")[2] == name
    }
    assert {str(op) for op in rules.difference(family.operators())} == set()


def test_a_rule_on_other_kinds_of_operands_stands_beside_one_on_values():
    """Arguments are bound for the rule on ``Value``, without which the others are never
    reached.
    """
    assert [(str(op), kind) for op, kind in RULES if (op, Value) not in RULES] == []
