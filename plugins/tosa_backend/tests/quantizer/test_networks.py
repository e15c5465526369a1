"""Small quantized networks become one delegate of integers, close to the quantized graph
in eager torch.
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
QUICK = ("temporal", "super-resolution")
"""Networks that run without -m slow."""
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
def test_quantized_networks_become_one_delegate(name, activations):
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
    with torch.no_grad():
        results = [tree_leaves(lowered(*batch)) for batch in batches]
        expected = [tree_leaves(eager(*batch)) for batch in batches]
    least_decibels = 35 if activations is SHORT else 70
    for output in range(len(expected[0])):
        signal = torch.stack([outputs[output] for outputs in expected])
        noise = torch.stack([outputs[output] for outputs in results]) - signal
        assert noise.norm() * 10 ** (least_decibels / 20) <= signal.norm()
