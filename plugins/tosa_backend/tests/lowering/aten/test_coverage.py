"""Each family of lowering rules has tests, and each operator has a rule for tensors."""

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
    """The lowering finds rules for other kinds of operands only through the rule for
    ``Value``, the tensor.
    """
    without_tensor_rule = [
        str(operator) for operator, _ in RULES if (operator, Value) not in RULES
    ]
    assert without_tensor_rule == []
