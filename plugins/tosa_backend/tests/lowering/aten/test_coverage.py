"""A rule without a row in its family's tests is a claim that nobody checks."""

from __future__ import annotations

from importlib import import_module

import pytest
from delegraph_tosa.lowering import FAMILIES, RULES

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")  # what torch says of a row of conv
NAMES = [family.__name__.rpartition(".")[2] for family in FAMILIES]


@pytest.mark.parametrize("name", NAMES)
def test_every_rule_is_in_a_row_of_its_family(name):
    family = import_module(f"{__package__}.test_{name}").FAMILY
    rules = {op for op, rule in RULES.items() if rule.function.__module__.rpartition(".")[2] == name}
    assert {str(op) for op in rules.difference(family.operators())} == set()
