"""Control flow, variables and custom operators work with the draft of TOSA 1.1, too."""

from __future__ import annotations

import numpy as np
import pytest
from delegraph_tosa.evaluate import evaluate
from delegraph_tosa.ir.types import BLOCK_SCALED, DType
from delegraph_tosa.serialize import TosaFile, read
from delegraph_tosa.spec import TosaSpec, required, required_version
from delegraph_tosa.text import parse, render
from delegraph_tosa.validate import violations

from ..support import reference_tools
from ..support.samples import random_inputs
from ..support.structured import structured

VERSION = (1, 1)
GRAPHS = {sample.label: sample.graph for sample in structured(VERSION)}
NEW = GRAPHS.keys() - {sample.label for sample in structured()}
SCALED = {
    f"{name}({dtype})" for name in ("COND_IF", "WHILE_LOOP") for dtype in BLOCK_SCALED
}
NOT_HANDED_OVER = {
    *SCALED,
    *(
        f"{name}({t})"
        for name in ("COND_IF", "WHILE_LOOP")
        for t in (DType.INT4, DType.INT48)
    ),
}
"""Element types that the reference model's Python binding does not take."""


def spec_of(label: str) -> TosaSpec:
    return TosaSpec(VERSION, *required(GRAPHS[label], VERSION))


def write(label: str) -> bytes:
    return TosaFile(GRAPHS[label], spec_of(label)).join()


def test_the_draft_adds_element_types():
    assert NEW == {*SCALED, "COND_IF(int64)", "WHILE_LOOP(int64)"}
    assert all(
        required_version(GRAPHS[label]) == ((1, 1) if label in NEW else (1, 0))
        for label in GRAPHS
    )


@pytest.mark.parametrize("label", GRAPHS)
def test_graphs_are_legal_only_with_their_extensions(label):
    spec = spec_of(label)
    assert [str(v) for v in violations(GRAPHS[label], spec)] == []
    for extension in spec.extensions:
        less = TosaSpec(VERSION, spec.profiles, spec.extensions - {extension})
        assert {v.rule for v in violations(GRAPHS[label], less)} == {"profile"}


@pytest.mark.parametrize("label", GRAPHS)
def test_structured_graphs_survive_files_and_text(label):
    file = write(label)
    assert TosaFile(read(file), spec_of(label)).join() == file
    assert render(parse(render(read(file)))) == render(read(file))


@pytest.mark.parametrize("label", [label for label in GRAPHS if label not in SCALED])
def test_official_validator_agrees(label):
    """Not on blocks: tosa-opt's table is of an older draft and has them for no
    IDENTITY.
    """
    file = write(label)
    spec = spec_of(label)
    reference_tools.check_strictly_for_spec(file, spec)
    for extension in spec.extensions:
        with pytest.raises(reference_tools.Refused):
            reference_tools.check_strictly_for_spec(
                file, TosaSpec(VERSION, spec.profiles, spec.extensions - {extension})
            )


def test_reference_model_computes_the_same():
    run = [
        label
        for label in GRAPHS
        if label not in NOT_HANDED_OVER and not label.startswith("CUSTOM")
    ]
    inputs = {label: random_inputs(GRAPHS[label]) for label in run}
    outputs = reference_tools.run_or_refusal_of_each(
        [(write(label), inputs[label]) for label in run]
    )
    assert len(run) > 40
    for label, theirs in zip(run, outputs, strict=True):
        ours = evaluate(GRAPHS[label], inputs[label])
        for value, a, b in zip(GRAPHS[label].outputs, ours, theirs, strict=True):
            np.testing.assert_array_equal(
                a, b.view(a.dtype), err_msg=f"{label} {value}"
            )


@pytest.mark.parametrize("label", sorted(SCALED))
def test_blocks_pass_through_control_flow(label):
    inputs = random_inputs(GRAPHS[label])
    assert evaluate(GRAPHS[label], inputs)[-1].tobytes() == inputs[-1].tobytes()
