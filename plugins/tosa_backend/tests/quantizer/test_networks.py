"""Small networks of many kinds, quantized: one delegate of integers, near the Q/DQ
graph, which tosa-opt accepts.
"""

from __future__ import annotations

import delegraph
import pytest
import torch
from delegraph_tosa.quantizer import Precision, TOSAQuantizer
from delegraph_tosa.spec import TosaSpec
from torch.utils._pytree import tree_leaves

from ..support import reference_tools
from ..support.quantized_networks import NETWORKS, network

BORDERS = {
    f"quantized_decomposed.{name}_per_tensor.default"
    for name in ("quantize", "dequantize")
}
QUICK = "temporal", "super-resolution"
SHORT = torch.int8
LONG = torch.int16
ROWS = [
    pytest.param(
        name,
        dtype,
        marks=() if name in QUICK and dtype is SHORT else pytest.mark.slow,
        id=f"{name}-{dtype}",
    )
    for name in NETWORKS
    for dtype in (SHORT, LONG)
]


@pytest.mark.parametrize(("name", "activations"), ROWS)
def test_networks_are_one_delegate_of_integers(name, activations):
    module, batches = network(name, 4)
    program = delegraph.quantize(
        module, batches, quantizer=TOSAQuantizer(Precision(activations))
    )
    spec = "TOSA-1.0+INT" if activations is SHORT else "TOSA-1.0+INT+int16"
    lowered = delegraph.lower(
        program, backends=["tosa"], options={"tosa": {"spec": spec}}
    )
    (delegate,) = lowered.delegates
    assert {refusal.operator for refusal in lowered.report.refusals} <= BORDERS
    reference_tools.check_strictly_for_spec(
        bytes(delegate.processed_bytes), TosaSpec.parse(spec)
    )
    eager = program.module(check_guards=False)
    least = 35 if activations is SHORT else 70
    with torch.no_grad():
        found, expected = (
            [tree_leaves(run(*batch)) for batch in batches] for run in (lowered, eager)
        )
    for ours, theirs in zip(
        zip(*found, strict=True), zip(*expected, strict=True), strict=True
    ):
        signal = torch.stack(theirs)
        assert (torch.stack(ours) - signal).norm() * 10 ** (least / 20) <= signal.norm()
