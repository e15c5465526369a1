"""Vela 4.2, which reads TOSA 0.80, compiles integer files of convolutional networks
whole.

It needs an environment of its own:

    python -m venv vela42 && vela42/bin/pip install ethos-u-vela==4.2.0
    DELEGRAPH_VELA_4_2=vela42/bin/vela python -m pytest -m slow tests/test_vela_4_2.py
"""

import os
import subprocess
from pathlib import Path

import delegraph
import pytest
import torch

ROOT = Path(__file__).parent.parent
VELA = os.environ.get("DELEGRAPH_VELA_4_2")
NETWORKS = ("keyword spotter", "MobileNetV2", "ResNet-18")


@pytest.mark.slow
@pytest.mark.skipif(
    VELA is None, reason="DELEGRAPH_VELA_4_2 names no program of ethos-u-vela 4.2.0"
)
@pytest.mark.parametrize("accelerator", ["ethos-u85-256", "ethos-u55-128"])
@pytest.mark.parametrize("name", NETWORKS)
def test_integer_files_are_compiled_whole(name, accelerator, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from quantized import NETWORKS as BUILDERS

    module, inputs = BUILDERS[name]()
    batches = [tuple(map(torch.randn_like, inputs)) for _ in range(2)]
    program = delegraph.quantize(module, batches, backend="tosa")
    lowered = delegraph.lower(
        program, backends=["tosa"], options={"tosa": {"spec": "TOSA-0.80+BI"}}
    )
    (delegate,) = lowered.delegates
    file = tmp_path / "network.tosa"
    file.write_bytes(bytes(delegate.processed_bytes))
    command = [
        VELA,
        str(file),
        "--accelerator-config",
        accelerator,
        "--output-dir",
        str(tmp_path),
    ]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)

    assert completed.returncode == 0, completed.stderr[-1000:]
    assert "CPU operators = 0 (0.0%)" in completed.stdout
