"""Runs the conformance kit (``delegraph check acme-npu``), and tests the example."""

from __future__ import annotations

import delegraph
from delegraph_devkit import BackendContract

from example import model


class TestAcmeNpu(BackendContract):
    backend = "acme-npu"
    example = staticmethod(model)


def test_the_example_is_one_part_and_a_softmax_on_the_host() -> None:
    module, inputs = model()
    lowered = delegraph.lower(module, inputs, backends=["acme-npu"])
    assert len(lowered.delegates) == 1
    assert lowered.verify(*inputs).relative_error < 1e-6
    [refusal] = lowered.report.refusals
    assert refusal.operator == "aten.softmax.int"
    assert "acme-npu has no " in refusal.reason
