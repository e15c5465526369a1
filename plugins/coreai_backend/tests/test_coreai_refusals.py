"""Refusals of Core AI that name no call."""

import delegraph
import pytest
import torch
from delegraph.errors import FormatError
from torch import nn

pytest.importorskip("coreai_torch")
from delegraph_coreai import backend


class Waves(nn.Module):
    def forward(self, x):
        low = torch.sin(x) * 2
        high = torch.tanh(low)
        return high @ x.t(), torch.cos(high)


def lower(model, *args):
    return delegraph.lower(model.eval(), args, backends=["coreai"])


def test_a_refusal_without_a_call_keeps_the_other_calls(monkeypatch):
    """Core AI's compiler fails on the whole program, and does not say where."""
    load = backend.load_model

    def fail(bytecode):
        parts = list(bytecode)
        if any(b"tanh" in bytes(part) for part in parts):
            raise FormatError("format-invalid", "Core AI: it failed")
        return load(parts)

    monkeypatch.setattr(backend, "load_model", fail)
    x = torch.randn(3, 3)
    lowered = lower(Waves(), x)
    (refused,) = lowered.report.refusals
    assert refused.operator == "aten.tanh.default"
    assert "Core AI: it failed" in str(refused.reason)
    assert lowered.host_operators == 1 and len(lowered.delegates) == 2
    assert lowered.verify(x).relative_error < 1e-6
