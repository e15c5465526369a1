"""Convolutional networks become one TOSA delegate, which other tools accept and run."""

import hashlib
import importlib.util
import os
import subprocess
import sys
from collections import Counter
from itertools import chain
from pathlib import Path

import delegraph
import numpy as np
import pytest
import torch
from delegraph_tosa.backend import TOSABackend
from delegraph_tosa.lowering import Tosa, lower_program
from delegraph_tosa.options import Options
from delegraph_tosa.passes import PASSES
from delegraph_tosa.serialize import read
from delegraph_tosa.spec import TosaSpec
from delegraph_tosa.tools import figures
from torch import nn

ROOT = Path(__file__).parent.parent


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference_tools = load(ROOT / "plugins/tosa_backend/tests/support/reference_tools.py")
SPEC = TosaSpec.parse("TOSA-1.0+FP")
MODELS = {
    "mobilenet_v2": ("mobilenet_v2.py", "mobilenet_v2"),
    "resnet18": ("resnet.py", "resnet18"),
    "resnet50": ("resnet.py", "resnet50"),
}


def build(name):
    file, function = MODELS[name]
    return getattr(load(ROOT / "examples" / file), function)()


def lowered(name, **options):
    torch.set_num_threads(1)
    module, inputs = build(name)
    program = delegraph.lower(
        module,
        inputs,
        options={"tosa": {"spec": "TOSA-1.0+FP", **options}},
        require_full=True,
    )
    return module, inputs, program


def relative_error(got, wanted):
    return (
        np.abs(got.astype(np.float64) - wanted.astype(np.float64)).max()
        / np.abs(wanted).max()
    )


@pytest.mark.parametrize("name", MODELS)
def test_each_network_is_one_delegate_that_agrees_with_eager(name):
    _, inputs, program = lowered(name)
    assert len(program.delegates) == 1
    assert program.report.host_operators == 0
    assert program.verify(*inputs).relative_error < 1e-5


@pytest.mark.parametrize("name", MODELS)
def test_the_strict_validator_accepts_each_network(name):
    reference_tools.check_strictly(
        lowered(name)[2].delegates[0].processed_bytes, profiles="pro_fp"
    )


LARGE = ("resnet18", "resnet50")
"""7 and 20 s in the reference model."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n in LARGE else n for n in MODELS],
)
def test_the_reference_model_agrees_with_eager(name):
    module, inputs, program = lowered(name)
    arrays = [x.numpy() for x in inputs]
    outputs = reference_tools.run_reference_model(
        program.delegates[0].processed_bytes, arrays
    )
    with torch.no_grad():
        expected = module(*inputs).numpy()

    assert np.abs(expected).max() > 0.05, "an output of zeros would hide errors"
    assert relative_error(outputs[0], expected) < 1e-5


@pytest.mark.parametrize("after", range(len(PASSES) + 1))
def test_every_operator_of_mobilenet_names_a_line_of_the_model(
    after, mobilenet_partition
):
    graph = lower_program(mobilenet_partition, Tosa(SPEC))
    for run in PASSES[:after]:
        graph = run(graph, SPEC)
    lost = [
        op.name
        for op in graph.operators
        if "examples/mobilenet_v2.py:" not in str(op.source)
    ]

    assert graph.operators
    assert not lost


def test_debug_handles_of_mobilenet_cover_every_compiled_call(mobilenet_partition):
    specs = Options(SPEC).compile_specs()
    result = TOSABackend.preprocess(mobilenet_partition, specs)

    calls = [
        node for node in mobilenet_partition.graph.nodes if node.op == "call_function"
    ]
    handles = set(chain.from_iterable(result.debug_handle_map.values()))
    assert handles <= {node.meta["debug_handle"] for node in calls}

    without_handle = {
        str(node.target) for node in calls if node.meta["debug_handle"] not in handles
    }
    # in TOSA, dropout does nothing, and flatten is undone by the linear layer
    assert without_handle <= {"aten.dropout.default", "aten.flatten.using_ints"}


@pytest.fixture(scope="module")
def mobilenet_partition():
    return lowered("mobilenet_v2")[2].delegates[0].module.original_module


def test_the_file_of_mobilenet_is_small():
    graph = read(lowered("mobilenet_v2")[2].delegates[0].processed_bytes)
    counts = Counter(op.name for op in graph.operators)
    assert counts["TRANSPOSE"] <= 2, counts
    assert len(graph.operators) <= 110, counts


def test_mobilenet_has_the_figures_of_its_paper():
    """The paper has 300 million multiply-accumulates. The scales of norms are folded
    into the weights, and one zero point is added.
    """
    _, _, program = lowered("mobilenet_v2")
    found = figures(read(program.delegates[0].processed_bytes))

    parameters_of_module = 3_504_872
    scales_of_norms = 17_056
    zero_points = 1
    assert found.multiply_accumulates == 300_774_272
    assert found.parameters == parameters_of_module - scales_of_norms + zero_points
    assert found.computed_bytes.keys() == {"fp32"}

    # the input and the output of the clamp after the first wide convolution
    bytes_of_activation = 4 * 96 * 112 * 112
    assert found.largest_live_bytes == 2 * bytes_of_activation


DIGEST = """
import sys, hashlib, torch
sys.path.insert(0, "examples")
import delegraph, {module}
model, inputs = {module}.{function}()
blob = delegraph.lower(model, inputs, backends=["tosa"]).delegates[0].processed_bytes
print(hashlib.sha256(blob).hexdigest())
"""


def _digesting(code, seed):
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    "name", ["resnet18", pytest.param("mobilenet_v2", marks=pytest.mark.slow)]
)
def test_two_processes_write_equal_bytes(name):
    file, function = MODELS[name]
    code = DIGEST.format(module=Path(file).stem, function=function)
    processes = [_digesting(code, seed) for seed in ("1", "2")]
    digests = [p.communicate()[0] for p in processes]
    assert [p.returncode for p in processes] == [0, 0]
    assert digests[0] == digests[1]
    assert len(digests[0].strip()) == hashlib.sha256().digest_size * 2


def test_relu_keeps_inf_and_nan():
    x = torch.tensor([-1.0, 0.0, -0.0, 2.0, float("inf"), float("-inf"), float("nan")])
    module = nn.ReLU().eval()
    program = delegraph.lower(module, (x,), backends=["tosa"], require_full=True)
    expected = module(x).numpy()
    [of_reference_model] = reference_tools.run_reference_model(
        program.delegates[0].processed_bytes, [x.numpy()]
    )

    np.testing.assert_array_equal(program(x).numpy(), expected)
    np.testing.assert_array_equal(of_reference_model, expected)


def test_weights_that_change_before_saving_are_noticed(tmp_path):
    module = nn.Linear(4, 4).eval()
    program = delegraph.lower(module, (torch.randn(2, 4),), backends=["tosa"])
    with torch.no_grad():
        module.weight.add_(1)
    with pytest.raises(delegraph.errors.ContractViolation, match="weight"):
        program.save(tmp_path / "m.tosa")
    assert os.listdir(tmp_path) == []
