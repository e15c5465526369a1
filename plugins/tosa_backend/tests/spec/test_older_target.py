"""Targets of TOSA 0.80 are parsed and applied, and cost nothing for other targets."""

from __future__ import annotations

import subprocess
import sys

import pytest
from delegraph.errors import OptionError
from delegraph_tosa.spec import TosaSpec, narrow, required
from delegraph_tosa.spec.operator_table import rows

from ..support.samples import samples

OLD = (0, 80)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("TOSA-0.80+BI", "TOSA-0.80+BI"),
        ("TOSA-0.80+MI+8k", "TOSA-0.80+MI"),
        ("tosa-0.80.0+mi+nolevel", "TOSA-0.80+MI+nolevel"),
        ("TOSA-0.80.1+8k+BI", "TOSA-0.80+BI"),
    ],
)
def test_texts_of_older_targets_are_read(text, canonical):
    spec = TosaSpec.parse(text)
    assert str(spec) == canonical
    assert TosaSpec.parse(canonical) == spec
    assert spec.version == OLD


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "TOSA-0.80",
            "profiles BI .integers. and MI .floats as well.: name one of them",
        ),
        ("TOSA-0.80+BI+MI", "name one of them"),
        ("TOSA-0.80+INT", "name one of them"),
        ("TOSA-0.80+MI+FP", "name one of them"),
        (
            "TOSA-0.80+MI+bf16",
            (
                "bf16 is neither a level .8k and nolevel. nor a target of an installed"
                " plugin, and TOSA 0.80 has no extensions"
            ),
        ),
        ("TOSA-0.80+BI+BI", "bi is there twice"),
        ("TOSA-0.80.draft+BI", "version 0.80 is not a draft"),
        (
            "TOSA-0.90+BI",
            "files of version 0.90 cannot be written; supported are TOSA 1.0, 0.80 and",
        ),
        (
            "TOSA-1.0+BI",
            "it names no profile: FP, INT or both; BI is a profile of TOSA 0.80",
        ),
    ],
)
def test_wrong_older_targets_are_refused(text, why):
    with pytest.raises(OptionError, match=why):
        TosaSpec.parse(text)


def test_devices_narrow_older_targets_too():
    narrow(
        "oldest", lambda operator: "it is for 1.0" if operator.name == "TABLE" else None
    )
    spec = TosaSpec.parse("TOSA-0.80+BI+oldest")
    assert str(spec) == "TOSA-0.80+BI+oldest"
    table = next(
        s.graph for s in samples(version=OLD) if s.label.startswith("TABLE(int8")
    )
    assert (
        spec.why_not(table.operators[0])
        == "TOSA TABLE: it is for 1.0; the target is TOSA-0.80+BI+oldest"
    )


def test_extensions_of_1_0_are_in_profiles_of_0_80():
    """int16, int4, bfloat16, FFT and control flow."""
    integers = TosaSpec.parse("TOSA-0.80+BI")
    floats = TosaSpec.parse("TOSA-0.80+MI")
    for sample in samples(version=OLD):
        (operator,) = sample.graph.operators
        needs_floats = any(
            not t.name.startswith(("INT", "BOOL", "SHAPE")) for t in types(sample.graph)
        )
        assert floats.why_not(operator) is None, sample.label
        assert (integers.why_not(operator) is None) is not needs_floats, sample.label
        assert required(sample.graph, OLD).extensions == frozenset()
    assert {"COND_IF", "WHILE_LOOP", "FFT2D"} <= rows(OLD).keys()


def types(graph):
    (operator,) = graph.operators
    return [v.dtype for v in (*operator.inputs, *operator.outputs)] * (
        operator.name != "CUSTOM"
    )


PROGRAM = """
import sys, torch, delegraph
from delegraph_tosa import read, narrow
narrow("newest", lambda operator: None)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
x = torch.randn(1, 3, 8, 8)
for spec in ("TOSA-1.0+FP+INT", "TOSA-0.80+MI"):
    lowered = delegraph.lower(model, (x,), backends=["tosa"], options={"tosa": {"spec": spec}})
    assert lowered.host_operators == 0
    lowered(x)
    lowered.save(sys.argv[1])
    delegraph.load(sys.argv[1])(x)
    own = [name for name in sys.modules if name.startswith("delegraph_tosa")]
    print(sum("older" in name or "single_windows" in name for name in own))
    from delegraph_tosa.spec import operator_table
    print(operator_table.load.cache_info().currsize)
"""


def test_targets_of_1_0_import_no_module_of_0_80(tmp_path):
    """Neither a module nor the table. (``narrow`` asks for the words of 1.1.)"""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path / "m.tosa")]
    completed = subprocess.run(command, capture_output=True, text=True, check=True)
    modules, tables, modules_of_0_80, all_tables = map(int, completed.stdout.split())
    assert modules == 0
    assert tables == 2
    assert all_tables == 3
    assert modules_of_0_80 >= 6
