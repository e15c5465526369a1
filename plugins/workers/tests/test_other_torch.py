"""A worker with another version of torch compiles the same blobs.

DELEGRAPH_TORCH_2_15 names the Python of an environment with torch 2.15, delegraph, its
workers and delegraph-tosa.
"""

import os
import subprocess
import sys
from pathlib import Path

import delegraph
import pytest
import torch
from delegraph.formats import join
from delegraph_tosa.backend import TOSABackend
from delegraph_workers import environments, plugin

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))
import mobilenet_v2
import transformer

from core.tests.support.registries import registry_of

VARIABLE = "DELEGRAPH_TORCH_2_15"


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A registry that has the TOSA of the other environment, as ``far``."""
    python = os.environ.get(VARIABLE)
    if not python:
        pytest.skip(
            f"{VARIABLE} names no Python with torch 2.15: its wheels for Linux need"
            " CUDA's libraries"
        )
    completed = subprocess.run(
        [python, "-c", "import torch; print(torch.__version__)"],
        capture_output=True,
        text=True,
    )
    assert completed.stdout.startswith("2.15."), completed
    folder = tmp_path_factory.mktemp("torch")
    (folder / "delegraph.toml").write_text(
        f'[backends.far]\npython = "{python}"\nbackend = "tosa"\n'
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DELEGRAPH_CONFIG", str(folder / "delegraph.toml"))
        patch.setenv("XDG_CACHE_HOME", str(folder))
        plugin.described.cache_clear()
        yield registry_of("delegraph-workers")
    plugin.described.cache_clear()


def quantized():
    """Return a quantized model and its inputs, as the functions of the examples do."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 4),
    ).eval()
    inputs = (torch.randn(1, 3, 16, 16),)
    program = delegraph.quantize(
        model, [inputs], backend="tosa", registry=registry_of("delegraph-tosa")
    )
    return program, inputs


MODELS = pytest.mark.parametrize(
    "make", [mobilenet_v2.mobilenet_v2, transformer.bert_base, quantized]
)


@pytest.mark.slow
@MODELS
def test_a_backend_with_another_torch_computes_as_eager(make, other):
    model, inputs = make()

    lowered = delegraph.lower(model, inputs, backends=["far"], registry=other)

    assert lowered.delegates
    assert lowered.verify(*inputs).agrees()


@pytest.mark.slow
@MODELS
def test_another_torch_version_compiles_equal_blobs(make, other, monkeypatch):
    model, inputs = make()
    environment = environments.environment("far")
    compile_here = TOSABackend.preprocess
    equal = []

    def compile_in_both(edge_program, compile_specs):
        """Compile here, and record whether the other environment gives an equal blob."""
        (there,) = environment.workers.compile(
            "TOSABackend",
            environment.backend,
            {},
            {"": [edge_program]},
            {"": [compile_specs]},
        )[""]
        here = compile_here(edge_program, compile_specs)
        equal.append(join(there.processed_bytes) == join(here.processed_bytes))
        return here

    monkeypatch.setattr(TOSABackend, "preprocess", staticmethod(compile_in_both))
    delegraph.lower(
        model, inputs, backends=["tosa"], registry=registry_of("delegraph-tosa")
    )

    assert equal
    assert all(equal)
