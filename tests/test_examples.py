"""The examples are what they say, and the scripts of examples/ and benchmarks/ run."""

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
def test_a_network_has_the_parameters_that_its_paper_gives_it(name):
    model, _ = run_example(name)
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_network_does_not_shrink_its_signal(name):
    model, inputs = run_example(name)
    assert not model.training
    with torch.no_grad():
        assert model(*inputs).abs().max() > 0.1


def test_examples_are_deterministic_and_keep_the_random_state():
    torch.manual_seed(7)
    (first, inputs), (second, same_inputs) = (
        run_example("resnet.py:resnet18"),
        run_example("resnet.py:resnet18"),
    )
    drawn = torch.rand(1)
    torch.manual_seed(7)
    assert torch.equal(drawn, torch.rand(1))
    assert torch.equal(*inputs, *same_inputs)
    assert all(
        torch.equal(v, second.state_dict()[k]) for k, v in first.state_dict().items()
    )


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


def test_backends_can_be_compared():
    model = ("examples/two_partitions.py:two_partitions",)
    output = run_script(
        "-m", "delegraph", "compare", *model, "--backend", "tosa", "--backend", "demo"
    )
    rows = {line.split("  ")[0]: line for line in output.splitlines()}
    assert (
        rows["tosa"].split()[1:5]
        == ["92%", "of", "13", "2"]
        == rows["tosa + demo"].split()[3:7]
    )
    assert rows["demo"].split()[1:5] == ["15%", "of", "13", "1"]
    assert any(
        line.startswith("only tosa takes: 2 x aten.flatten.using_ints") for line in rows
    )


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
        found = f"{backend}: a face 160 pixels from the left, 64 from the top"
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
