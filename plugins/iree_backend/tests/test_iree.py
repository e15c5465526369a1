"""Programs compiled by IREE compute what eager computes."""

import subprocess
import sys
import sysconfig
from importlib.metadata import version
from pathlib import Path

import delegraph
import pytest
import torch
from delegraph.errors import FormatError, InputError, OptionError
from delegraph.runtime import BlobHeader
from delegraph_engines import seal, unseal
from delegraph_iree.backend import MARK
from delegraph_iree.runtime import IREERuntime


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.linear = torch.nn.Linear(4, 5)

    def forward(self, x, scale):
        y = torch.relu(self.conv(x)).amax((2, 3))
        return (
            torch.softmax(self.linear(y), 1) * scale,
            y > 0.5,
            y.argmax(1).to(torch.int32),
            y.half(),
        )


MODEL = Network().eval()
INPUTS = (torch.randn(2, 3, 8, 8), torch.tensor(2.0))


@pytest.fixture(scope="module")
def lowered():
    return delegraph.lower(MODEL, INPUTS, backends=["iree"], require_full=True)


def test_the_results_are_those_of_eager(lowered):
    assert lowered.verify(*INPUTS).relative_error < 1e-5
    dtypes = [value.dtype for value in lowered(*INPUTS)]
    assert dtypes == [torch.float32, torch.bool, torch.int32, torch.float16]


def test_inputs_may_lie_in_any_order_and_hold_any_number(lowered):
    x = INPUTS[0].clone(memory_format=torch.channels_last)
    x[0, 0, 0, 0], x[1, 2, 3, 4] = float("nan"), float("inf")
    before = x.clone()
    first = lowered(x, INPUTS[1])
    again = lowered(x.flip(0).flip(0), INPUTS[1])
    for ours, other, eager in zip(first, again, MODEL(x, INPUTS[1]), strict=True):
        torch.testing.assert_close(ours, eager, equal_nan=True, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(ours, other, equal_nan=True, rtol=0, atol=0)
    torch.testing.assert_close(x, before, equal_nan=True, rtol=0, atol=0)


def test_results_have_new_memory(lowered):
    first = lowered(*INPUTS)[0]
    kept = first.clone()
    lowered(INPUTS[0] * 3, INPUTS[1])[0].zero_()
    assert torch.equal(first, kept)


def test_files_run_in_the_loader_and_iree_run_module(lowered, tmp_path):
    file = tmp_path / "m.vmfb"
    lowered.save(file)
    assert torch.equal(delegraph.load(file)(*INPUTS)[0], lowered(*INPUTS)[0])
    tool = Path(sysconfig.get_path("scripts"), "iree-run-module")
    command = [str(tool), f"--module={file}", "--function=main", "--device=local-task"]
    command += ["--input=2x3x8x8xf32=0.5", "--input=f32=2.0"]
    completed = subprocess.run(command, capture_output=True, text=True, check=True)
    shown = next(
        line for line in completed.stdout.splitlines() if line.startswith("2x5xf32=")
    )
    numbers = [
        float(n)
        for row in shown.split("=")[1].strip("[]").split("][")
        for n in row.split()
    ]
    ours = lowered(torch.full((2, 3, 8, 8), 0.5), INPUTS[1])[0]
    torch.testing.assert_close(
        torch.tensor(numbers), ours.flatten(), rtol=1e-4, atol=1e-5
    )


def test_a_damaged_module_is_refused_before_it_runs(lowered, tmp_path):
    lowered.save(tmp_path / "m.vmfb")
    blob = (tmp_path / "m.vmfb").read_bytes()
    for place in range(0, len(blob), len(blob) // 200):
        with pytest.raises(FormatError):
            unseal(blob[:place] + bytes([blob[place] ^ 1]) + blob[place + 1 :], MARK)
        with pytest.raises(FormatError):
            unseal(blob[:place], MARK)
    unseal(blob, MARK)


def load_forged(path, module, told):
    path.write_bytes(module)
    return IREERuntime.load(seal(path, MARK, told), [], {})


@pytest.mark.parametrize(
    "told",
    [
        [{"target": "llvm-cpu"}, [["load", [1]]], []],
        [{"target": "llvm-cpu"}, [["float32", [-2]]], []],
        [{"target": "gpu"}, [], []],
        [{"target": "llvm-cpu", "driver": "vulkan"}, [], []],
        [{"target": "llvm-cpu", "driver": 7}, [], []],
        7,
        [],
        ["llvm-cpu", [], []],
        [{"target": "llvm-cpu"}, 3, 4],
    ],
)
def test_a_signature_that_a_forger_wrote_is_refused(told, tmp_path):
    with pytest.raises(FormatError):
        load_forged(tmp_path / "m", b"", told)


def test_modules_that_contradict_their_signature_are_refused(lowered, tmp_path):
    """IREE raised its own exceptions, or told what lies behind its memory."""
    module, (facts, inputs, outputs) = unseal(
        lowered.delegates[0].processed_bytes, MARK
    )
    fewer = load_forged(tmp_path / "m", module, [facts, inputs[:1], outputs])
    with pytest.raises(FormatError, match="does not fit the signature"):
        fewer(INPUTS[0])
    for wrong in (
        [*outputs, ["float32", [2]]],
        [["float16", [2, 5]], *outputs[1:]],
        [["float32", [2, 50]], *outputs[1:]],
        [["int32", [2, 5]], *outputs[1:]],
    ):
        delegate = load_forged(tmp_path / "m", module, [facts, inputs, wrong])
        with pytest.raises(FormatError):
            delegate(*INPUTS)


def test_products_with_zeros_keep_nan():
    x = torch.tensor([float("nan"), float("inf"), 1.0])
    lowered = delegraph.lower(Scaled(), (x,), backends=["iree"], require_full=True)
    by_zeros, by_some = lowered(x)
    assert by_zeros.isnan().tolist() == [True, True, False]
    assert by_some.isnan().tolist() == [True, False, False]
    assert by_some[1:].tolist() == [float("inf"), 0]


class Scaled(torch.nn.Module):
    def forward(self, x):
        return x * 0, x * torch.tensor([0.0, 1.0, 0.0])


def test_compatibility_depends_on_the_compiler_release(lowered):
    header = lambda compiler: BlobHeader("IREEBackend", 9, b"", fingerprint=compiler)
    here = f"iree-base-compiler {version('iree-base-runtime')}"
    assert IREERuntime.compatible(header(here), []).verdict == "runs"
    assert (
        IREERuntime.compatible(header("iree-base-compiler 2.9.1"), []).verdict
        == "rebuild"
    )
    assert IREERuntime.compatible(header(here), [], "tpu").verdict == "cannot"
    assert IREERuntime.compatible(header(""), []) is None


@pytest.mark.parametrize(
    "x", [torch.ones(2, 3, 8, 7), torch.ones(2, 3, 8, 8).double(), torch.ones(3, 8, 8)]
)
def test_an_input_of_another_type_is_refused(lowered, tmp_path, x):
    lowered.save(tmp_path / "m.vmfb")
    with pytest.raises(InputError, match="input 0"):
        delegraph.load(tmp_path / "m.vmfb")(x, INPUTS[1])


def test_a_compiler_that_refuses_gives_the_partition_to_the_host():
    model = torch.nn.Linear(2, 2).eval()
    x = torch.ones(1, 2)
    lowered = delegraph.lower(
        model, (x,), backends=["iree"], options={"iree": {"flags": "--no-such-flag"}}
    )
    assert not lowered.delegates
    [refused] = lowered.report.given_back
    assert "iree-compile exited with status 1: " in refused.reason
    assert "--no-such-flag" in refused.reason
    torch.testing.assert_close(lowered(x), model(x))


def test_the_place_of_a_maximum_may_be_transposed():
    """IREE's compiler makes an operation of both that it refuses itself."""

    class Places(torch.nn.Module):
        def forward(self, x):
            return x.argmax(2).int().mT

    x = torch.randn(2, 3, 4, 5)
    lowered = delegraph.lower(Places(), (x,), backends=["iree"], require_full=True)
    assert lowered.verify(x).agrees()


@pytest.mark.parametrize(
    "option, text", [("flags", "--x='1"), ("flags", "a\0b"), ("cpu", "\udc80")]
)
def test_options_with_invalid_characters_are_refused(option, text):
    with pytest.raises(
        OptionError, match=f"'{option}'.*(No closing quotation|character)"
    ):
        delegraph.lower(
            torch.nn.ReLU(),
            (torch.ones(2),),
            backends=["iree"],
            options={"iree": {option: text}},
        )


def test_integers_are_those_of_tosas_host_runtime():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(288, 5),
    )
    batches = [(torch.randn(1, 3, 8, 8),) for _ in range(3)]
    program = delegraph.quantize(model.eval(), batches, backend="tosa")
    ours, theirs = (
        delegraph.lower(program, backends=[name], require_full=True)
        for name in ("iree", "tosa")
    )
    for (x,) in batches:
        assert torch.equal(ours(x), theirs(x))


def test_sizes_of_a_call():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    ).eval()
    x = torch.randn(2, 3, 8, 8)
    sizes = ({0: torch.export.Dim("batch", max=16)},)
    program = torch.export.export(model, (x,), dynamic_shapes=sizes)
    options = {"iree": {"spec": "TOSA-1.1+FP+shape"}}
    lowered = delegraph.lower(
        program, backends=["iree"], options=options, require_full=True
    )
    assert lowered.verify(torch.randn(5, 3, 8, 8)).relative_error < 1e-5


ALIVE = """
import sys, delegraph, torch
lowered = delegraph.lower(torch.nn.Linear(3, 2), (torch.ones(2, 3),), backends=["iree"])
lowered(torch.ones(2, 3))
sys.kept = [lowered]
sys.kept.append(sys.kept)
"""


def test_the_process_ends_without_a_word():
    """IREE's bindings print a page about objects that are alive when the interpreter
    ends.
    """
    completed = subprocess.run(
        [sys.executable, "-c", ALIVE], capture_output=True, text=True, check=True
    )
    assert completed.stdout + completed.stderr == ""


def test_equal_programs_have_equal_modules(lowered):
    again = delegraph.lower(MODEL, INPUTS, backends=["iree"], require_full=True)
    assert again.delegates[0].processed_bytes == lowered.delegates[0].processed_bytes
