"""The recorded support of operators by target is current; docs/op-support.md shows it."""

from __future__ import annotations

import json

import pytest
import torch

from .support import op_support
from .support.op_support import GROUPS, RECORD, RULE, TARGETS, stale_rules, verdicts

pytestmark = pytest.mark.filterwarnings("ignore")  # what torch says of some rows
AGAIN = (
    "python -m plugins.tosa_backend.tests.support.op_support {} && python"
    " docs/generate.py"
)


@pytest.mark.parametrize(
    "group",
    [
        name if name == "attention" else pytest.param(name, marks=pytest.mark.slow)
        for name in GROUPS
    ],
)
def test_the_record_equals_current_support(group):
    found = verdicts(GROUPS[group]())
    recorded = json.loads(RECORD.read_text())[group]
    # the record's; others decompose into other types, which reasons name
    if not torch.__version__.startswith("2.13."):
        found = count_taken_samples(found)
        recorded = count_taken_samples(recorded)
    assert found == recorded, f"run {AGAIN.format(group)}"


OLDER = {"TOSA-1.0+FP": "TOSA-0.80+MI", "TOSA-1.0+INT": "TOSA-0.80+BI"}
"""Target -> that of TOSA 0.80 which takes the same calls."""


@pytest.mark.parametrize(
    "group",
    [
        name if name == "noop" else pytest.param(name, marks=pytest.mark.slow)
        for name in GROUPS
    ],
)
def test_older_targets_support_at_least_newer_ones(group, monkeypatch):
    monkeypatch.setattr(op_support, "TARGETS", (*OLDER, *OLDER.values()))
    for name, row in verdicts(GROUPS[group]()).items():
        for new, old in OLDER.items():
            assert row[old].get("", 0) >= row[new].get("", 0), (
                f"{name}: {old} says {row[old]}"
            )


def count_taken_samples(verdicts):
    """How many samples of each operator are taken, by target."""
    return {
        name: {target: row[target].get("", 0) for target in TARGETS}
        for name, row in verdicts.items()
    }


def test_no_rule_is_newer_than_its_row():
    stale = stale_rules(json.loads(RECORD.read_text()))
    again = AGAIN.format(" ".join(sorted(set(stale.values()))))
    assert not stale, (
        f"of {', '.join(sorted(stale))} the record knows no rule: run {again} (seconds)"
    )


def test_rules_newer_than_the_record_are_stale():
    record = json.loads(RECORD.read_text())
    record["activation"]["aten.relu.default"][RULE] = False
    del record["pool"]["aten.max_pool2d.default"]
    assert stale_rules(record) == {
        "aten.relu.default": "activation",
        "aten.max_pool2d.default": "pool",
    }
