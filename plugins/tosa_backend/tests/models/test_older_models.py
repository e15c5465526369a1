"""Networks lower for TOSA 0.80 as far as for TOSA 1.0, with the same results."""

from __future__ import annotations

import delegraph
import pytest
import torch
from delegraph_tosa.ir.operators import COS, SIN
from delegraph_tosa.quantizer import Precision, TOSAQuantizer
from delegraph_tosa.serialize import read, target_of
from torch.utils._pytree import tree_leaves

from ..support.quantized_networks import NETWORKS, network
from . import sequences, tokens, vision

QUICK = {"GRU with attention", "temporal"}


def rows(*names):
    return [
        pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow)
        for name in names
    ]


@pytest.mark.parametrize("name", rows(*vision.MODELS, *sequences.MODELS))
# torch.export says so of every recurrent layer
@pytest.mark.filterwarnings("ignore:The tensor attributes self")
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_networks_of_floats(name):
    model, inputs = (vision if name in vision.MODELS else sequences).built(name)
    assert_targets_agree(
        torch.export.export(model, inputs), [inputs], "TOSA-0.80+MI", "TOSA-1.0+FP+INT"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", tokens.MODELS)
def test_networks_of_tokens(name):
    torch.manual_seed(0)
    model, inputs = tokens.MODELS[name]
    assert_targets_agree(
        torch.export.export(model().eval(), inputs),
        [inputs],
        "TOSA-0.80+MI",
        "TOSA-1.0+FP+INT",
    )


@pytest.mark.parametrize("name", rows(*NETWORKS))
@pytest.mark.parametrize(
    "activations", [torch.int8, pytest.param(torch.int16, marks=pytest.mark.slow)]
)
def test_networks_of_integers(name, activations):
    module, batches = network(name, 4)
    program = delegraph.quantize(
        module, batches, quantizer=TOSAQuantizer(Precision(activations))
    )
    target = "TOSA-1.0+INT" if activations is torch.int8 else "TOSA-1.0+INT+int16"
    assert_targets_agree(program, batches, "TOSA-0.80+BI", target)


def assert_targets_agree(program, batches, older, newer):
    """Check that both targets take the same operators and compute equal results.

    0.80 lacks SIN and COS and computes them otherwise, so results with them may differ
    by rounding.
    """
    lowered, expected = (
        delegraph.lower(program, backends=["tosa"], options={"tosa": {"spec": spec}})
        for spec in (older, newer)
    )
    assert refusals(lowered) == refusals(expected), lowered.report
    has_waves = False
    for delegate, other in zip(lowered.delegates, expected.delegates, strict=True):
        data = bytes(delegate.processed_bytes)
        assert target_of(data, read(data)).version == (0, 80)
        has_waves |= any(
            isinstance(op, SIN | COS)
            for op in read(bytes(other.processed_bytes)).operators
        )
    with torch.no_grad():
        for batch in batches:
            for ours, theirs in zip(
                tree_leaves(lowered(*batch)), tree_leaves(expected(*batch)), strict=True
            ):
                torch.testing.assert_close(
                    ours, theirs, rtol=0, atol=1e-6 if has_waves else 0
                )


def refusals(lowered):
    return sorted(row.operator for row in lowered.report.refusals)
