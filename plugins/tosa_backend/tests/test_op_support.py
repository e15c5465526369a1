"""The record of what each target takes, of which docs/op-support.md is made."""

from __future__ import annotations

import json

import pytest
import torch
from delegraph_tosa.lowering import RULES

from .support.op_support import GROUPS, RECORD, TARGETS, verdicts

pytestmark = pytest.mark.filterwarnings("ignore")  # what torch says of some rows
AGAIN = (
    "run python -m plugins.tosa_backend.tests.support.op_support with the names of its groups, then docs/generate.py"
)


@pytest.mark.parametrize(
    "group", [name if name == "attention" else pytest.param(name, marks=pytest.mark.slow) for name in GROUPS]
)
def test_the_record_is_what_is_taken(group):
    found, recorded = verdicts(GROUPS[group]()), json.loads(RECORD.read_text())[group]
    if not torch.__version__.startswith("2.13."):  # the record's; others decompose into other types, which reasons name
        found, recorded = taken(found), taken(recorded)
    assert found == recorded, AGAIN


def taken(verdicts):
    """How many samples of each operator are taken, by target."""
    return {name: {target: reasons.get("", 0) for target, reasons in row.items()} for name, row in verdicts.items()}


def test_every_rule_is_in_the_record_as_taken():
    names = {
        name
        for group in json.loads(RECORD.read_text()).values()
        for name, targets in group.items()
        if any("" in targets[target] for target in TARGETS)
    }
    assert {str(overload) for overload, _ in RULES} - names == set(), AGAIN
