"""The example networks are correct, and the scripts in examples/ and benchmarks/ run."""

import os
import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import delegraph
import pytest
import torch

ROOT = Path(__file__).parent.parent
PARAMETERS = {
    "mobilenet_v2.py:mobilenet_v2": 3_504_872,
    "resnet.py:resnet18": 11_689_512,
    "resnet.py:resnet50": 25_557_032,
}


def run_example(name, **sizes):
    file, function = name.split(":")
    return runpy.run_path(str(ROOT / "examples" / file))[function](**sizes)


@pytest.mark.parametrize("name", PARAMETERS)
def test_networks_have_as_many_parameters_as_in_their_papers(name):
    model, _ = run_example(name)
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("name", PARAMETERS)
def test_outputs_of_networks_are_not_close_to_zero(name):
    """Small outputs would hide errors in comparisons with eager."""
    model, inputs = run_example(name)
    assert not model.training
    with torch.no_grad():
        assert model(*inputs).abs().max() > 0.1


def test_examples_are_deterministic_and_keep_the_random_state():
    torch.manual_seed(7)
    first, inputs = run_example("resnet.py:resnet18")
    second, same_inputs = run_example("resnet.py:resnet18")
    after_examples = torch.rand(1)

    torch.manual_seed(7)
    assert torch.equal(torch.rand(1), after_examples)
    torch.testing.assert_close(same_inputs, inputs, rtol=0, atol=0)
    torch.testing.assert_close(second.state_dict(), first.state_dict(), rtol=0, atol=0)


def run_script(*command):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    completed = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


@pytest.mark.slow
def test_the_partitioning_benchmark_runs():
    output = run_script(
        "benchmarks/partitioning.py", "--largest", "2000", "--repeats", "1"
    )
    assert "| dense, all taken |" in output


@pytest.mark.slow
def test_the_growth_benchmark_runs():
    output = run_script("benchmarks/growth.py", "partitions", "--repeats", "1")
    assert "| 1,000 nodes, 250 partitions | s | ratio |" in output


@pytest.mark.parametrize("name", ["vit_b16", "bert_base", "llama_8"])
def test_a_transformer_is_one_delegate(name):
    module, inputs = run_example(f"transformer.py:{name}", layers=1, width=128)
    lowered = delegraph.lower(torch.export.export(module, inputs), backends=["tosa"])
    assert len(lowered.delegates) == 1
    # of BERT's mask, which is int64
    assert {row.operator for row in lowered.report.refusals} <= {"aten.to.dtype"}
    assert lowered.verify(*inputs).relative_error < 1e-5


def test_compare_shows_each_backend_and_both_together():
    model = ("examples/two_partitions.py:two_partitions",)
    output = run_script(
        "-m", "delegraph", "compare", *model, "--backend", "tosa", "--backend", "demo"
    )
    rows = {}
    for line in output.splitlines():
        name, _, figures = line.partition("  ")
        rows[name] = figures.split()

    delegated_share_and_delegates = slice(0, 4)
    assert rows["tosa"][delegated_share_and_delegates] == ["92%", "of", "13", "2"]
    assert rows["tosa + demo"][delegated_share_and_delegates] == rows["tosa"][:4]
    assert rows["demo"][delegated_share_and_delegates] == ["15%", "of", "13", "1"]
    assert "\nonly tosa takes: 2 x aten.flatten.using_ints" in output


def run_trained(file, packages, *arguments):
    for package in packages:
        if find_spec(package) is None:
            pytest.skip(f"needs {package}: see benchmarks/trained_models.txt")
    return run_script(f"examples/{file}", *arguments)


@pytest.mark.slow
def test_backends_find_the_same_face_and_the_page_shows_it(tmp_path):
    page = tmp_path / "face.html"
    output = run_trained("find_face.py", ("facenet_pytorch", "skimage"), str(page))
    for backend in ("tosa", "xnnpack", "ethosu"):
        found = f"{backend}: a face at x = 160, y = 64"
        assert found in output
    assert "data:image/png" in page.read_text("utf-8")


@pytest.mark.slow
def test_backends_find_the_pitch_within_half_a_semitone():
    output = run_trained("find_pitch.py", ("torchcrepe",))
    found = re.findall(r"finds (\d+) Hz; \w+ has (\d+) Hz", output)
    assert len(found) == 10
    for pitch, wanted in found:
        assert int(pitch) == pytest.approx(int(wanted), rel=0.029)


@pytest.mark.slow
def test_backends_hear_the_words_that_were_said():
    output = run_trained("spot_keywords.py", ("espeakng_loader",))
    heard = re.findall(r'hears "(\w+)", \d+% sure; "(\w+)" was said', output)
    assert len(heard) == 8
    assert all(word == said for word, said in heard)
