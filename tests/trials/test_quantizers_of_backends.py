"""The command line quantizes to int8 for backends without a quantizer of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import delegraph
import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # the operators quantized_decomposed
from delegraph.errors import PluginUnavailable
from torch import nn

BACKENDS = {"openvino": "openvino", "iree": "iree.compiler", "xnnpack": "executorch"}
MODEL = """
import torch
from torch import nn


def make():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)]
    return nn.Sequential(*layers).eval(), (torch.randn(1, 3, 8, 8),)
"""


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    ).eval()


@pytest.mark.parametrize("backend", BACKENDS)
def test_backends_run_the_programs_that_they_quantize(backend: str) -> None:
    pytest.importorskip(BACKENDS[backend])
    model = small()
    batches = [(torch.randn(1, 3, 8, 8),) for _ in range(8)]
    program = delegraph.quantize(model, batches, backend=backend)
    lowered = delegraph.lower(program, backends=[backend])
    assert lowered.report.delegates

    expected = program.module()(*batches[0])
    # an element in the middle between two steps may be rounded to the other one
    assert (lowered(*batches[0]) - expected).abs().max() <= 0.02 * expected.abs().max()

    exact = model(*batches[0])
    assert (expected - exact).abs().max() < 0.1 * exact.abs().max()

    integers = [v.dtype for v in program.state_dict.values()] + [
        v.dtype for v in program.constants.values()
    ]
    assert torch.int8 in integers or "quantize_per" in str(program.graph)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_command_line_quantizes_for_a_backend(backend: str, tmp_path: Path) -> None:
    pytest.importorskip(BACKENDS[backend])
    (tmp_path / "m.py").write_text(MODEL)
    images = torch.randn(8, 1, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    np.savez(tmp_path / "data.npz", input=images.numpy())

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "delegraph", *arguments]
        completed = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True
        )
        assert completed.returncode == 0, completed.stderr
        return completed.stdout

    data = ("--backend", backend)
    run("quantize", "m.py:make", *data, "--calibration", "data.npz", "-o", "q.pt2")
    assert "delegate" in run("lower", "q.pt2", *data, "--verify", "--tolerance", "0.05")
    assert "delegate" in run(
        "lower", "m.py:make", *data, "--quantize", "data.npz", "-o", "m.pte"
    )

    program = torch.export.load(tmp_path / "q.pt2")
    actual = delegraph.load(tmp_path / "m.pte")(images[0])
    expected = program.module()(images[0])
    assert (actual - expected).abs().max() <= 0.02 * expected.abs().max()


@pytest.mark.parametrize("backend", ["openvino", "iree"])
def test_the_hint_names_the_distribution_with_the_quantizer(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(BACKENDS[backend])
    from delegraph.discovery import registry

    monkeypatch.setattr(
        registry,
        "missing",
        lambda requires: [r for r in requires if r == "delegraph_tosa"],
    )

    with pytest.raises(PluginUnavailable, match="needs delegraph_tosa") as raised:
        delegraph.Registry().get_quantizer(backend)
    assert raised.value.hint == "pip install delegraph-tosa delegraph-quantize"
