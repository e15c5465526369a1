"""``inspect`` shows the needs of a device; ``compare`` explains missing figures."""

import re

import delegraph
import pytest
import torch
from delegraph.host import FileFormat
from torch import nn


def quantized_network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval()
    image = torch.randn(1, 3, 8, 8)
    return delegraph.quantize(model, [(image,)], backend="ethosu")


def inspect_file(path):
    return FileFormat(path, delegraph.default_registry()).inspect(path)


@pytest.fixture(scope="module")
def npu_file(tmp_path_factory):
    from delegraph_tosa.borders import integer_borders

    program = quantized_network()
    options = {"ethosu": {"accelerator": "ethos-u85-256"}}
    lowered = delegraph.lower(
        program,
        backends=["ethosu"],
        options=options,
        transforms=[integer_borders],
        require_full=True,
    )
    path = tmp_path_factory.mktemp("npu") / "model.pte"
    lowered.save(path)
    return path


def test_inspect_shows_values_of_compile_specs_and_scales(npu_file):
    shown = str(inspect_file(npu_file))
    assert "compile spec ethosu_accelerator: ethos-u85-256" in shown
    assert re.search(r"input \w+: int8, scale 0\.\d+, zero point -?\d+", shown)
    assert "output 0: int8, scale " in shown


def test_facts_of_a_delegate_are_in_the_json(npu_file):
    (method,) = inspect_file(npu_file).to_json()["methods"]
    (delegate,) = method["delegates"]
    assert delegate["compile_specs"]["ethosu_accelerator"] == "ethos-u85-256"
    assert delegate["facts"]["target"] == "ethos-u85-256"


def test_compare_explains_a_missing_file_and_missing_runs():
    class Complex(nn.Module):
        def forward(self, x):
            return torch.view_as_complex(x)

    program = torch.export.export(Complex().eval(), (torch.ones(3, 2),))
    program._example_inputs = None
    compared = delegraph.compare(program, backends=["tosa"])
    (row,) = compared.candidates

    assert row.missing["a run"] == "the program has no example inputs"
    assert (
        "tosa has no 'first call, a run, from ... to, memory, largest error':"
        in str(compared)
    )
    assert row.file_bytes is not None or "as .pte" in row.missing
