"""Each family of rules has tests, and each rule takes tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
from delegraph_tosa.ir.graph import Value
from delegraph_tosa.lowering import FAMILIES, RULES


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_tests_that_cover_its_rules(name):
    module = Path(__file__).with_name(f"test_{name}.py").read_text("utf-8")
    assert f'FAMILY.covers("{name}")' in module


def test_every_operator_has_a_rule_for_tensors():
    """Arguments are bound for the rule on ``Value``. Rules on other kinds of operands
    are reached through it.
    """
    assert [(str(op), kind) for op, kind in RULES if (op, Value) not in RULES] == []
