"""Programs as VGF files: what is compiled, what is refused and why, and what runs where
there is a Vulkan driver.
"""

import os
import subprocess
import sys

import delegraph
import pytest
import torch
from delegraph.errors import FormatError, InputError, NoRuntime, OptionError
from delegraph.runtime import BlobHeader
from delegraph_engines import Signature, unseal
from delegraph_vgf import vulkan
from delegraph_vgf.backend import VgfBackend
from delegraph_vgf.content import MARK
from delegraph_vgf.format import VgfFormat
from delegraph_vgf.runtime import VgfRuntime


@pytest.fixture
def here():
    """Skips, with the reason, where no VGF file can be run."""
    if (why := vulkan.why_not()) is not None:
        pytest.skip(f"{why}; {vulkan.INSTALL}")


class Network(torch.nn.Module):
    """Several types at the border, a 0-d input and a 0-d result."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)

    def forward(self, x, scale, mask):
        y = torch.where(mask, torch.relu(self.conv(x)) * scale, float("nan"))
        return (
            y,
            y.isnan(),
            y.amax((2, 3)).argmax(1).to(torch.int32),
            scale * 2,
            y.half(),
        )


MODEL = Network().eval()
INPUTS = (torch.randn(2, 3, 8, 8), torch.tensor(2.0), torch.rand(2, 4, 6, 6) > 0.2)


@pytest.fixture(scope="module")
def lowered():
    return delegraph.lower(MODEL, INPUTS, backends=["vgf"], require_full=True)


def test_equal_programs_have_equal_files(lowered):
    again = delegraph.lower(MODEL, INPUTS, backends=["vgf"], require_full=True)
    assert again.delegates[0].processed_bytes == lowered.delegates[0].processed_bytes


def test_a_damaged_file_is_refused_before_it_runs(lowered):
    blob = lowered.delegates[0].processed_bytes
    for place in range(0, len(blob), len(blob) // 100):
        with pytest.raises(FormatError):
            unseal(blob[:place] + bytes([blob[place] ^ 1]) + blob[place + 1 :], MARK)
        with pytest.raises(FormatError):
            unseal(blob[:place], MARK)
    unseal(blob, MARK)


def test_a_converter_that_refuses_gives_the_partition_to_the_host():
    model = torch.nn.Linear(2, 2).eval()
    x = torch.ones(1, 2)
    lowered = delegraph.lower(
        model, (x,), backends=["vgf"], options={"vgf": {"flags": "--no-such-flag"}}
    )
    assert not lowered.delegates
    [refused] = lowered.report.given_back
    assert "model-converter exited with status " in refused.reason
    assert "--no-such-flag" in refused.reason
    torch.testing.assert_close(lowered(x), model(x))


def test_a_file_that_is_called_otherwise_is_refused():
    options = {"vgf": {"flags": "--type-narrowing full"}}
    lowered = delegraph.lower(
        torch.nn.ReLU(), (torch.ones(2),), backends=["vgf"], options=options
    )
    [refused] = lowered.report.given_back
    assert "float16" in refused.reason
    assert "float32" in refused.reason


def test_a_target_that_vgf_has_not_is_refused_at_once():
    with pytest.raises(OptionError, match=r"TOSA-0\.80.*must be TOSA 1\.0"):
        delegraph.lower(
            torch.nn.ReLU(),
            (torch.ones(2),),
            backends=["vgf"],
            options={"vgf": {"spec": "TOSA-0.80+MI"}},
        )


@pytest.mark.parametrize(
    "flags, told",
    [("'", "No closing quotation"), ("a\0b", "character"), ("\udc80", "character")],
)
def test_flags_with_invalid_characters_are_refused(flags, told):
    with pytest.raises(OptionError, match=f"'flags'.*{told}"):
        delegraph.lower(
            torch.nn.ReLU(),
            (torch.ones(2),),
            backends=["vgf"],
            options={"vgf": {"flags": flags}},
        )


class Branches(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, torch.relu, torch.neg, (x,))


@pytest.mark.parametrize(
    "model, dynamic, spec, reason",
    [
        (Branches(), None, "TOSA-1.0+FP+cf", "VGF files cannot contain COND_IF"),
        (
            torch.nn.ReLU(),
            ({0: torch.export.Dim("n", max=9)},),
            "TOSA-1.0+FP",
            "needs every size at compile time",
        ),
        (
            torch.nn.ReLU(),
            ({0: torch.export.Dim("n", max=9)},),
            "TOSA-1.1+FP+shape",
            "VGF files need fixed sizes",
        ),
    ],
)
def test_operators_that_the_converter_refuses_make_no_partition(
    model, dynamic, spec, reason
):
    program = torch.export.export(model, (torch.ones(2, 3),), dynamic_shapes=dynamic)
    report = delegraph.lower(
        program, backends=["vgf"], options={"vgf": {"spec": spec}}
    ).report
    assert not report.given_back
    assert any(reason in refusal.reason for refusal in report.refusals)


def test_inspect_shows_the_contents_of_a_file(lowered, tmp_path):
    lowered.save(tmp_path / "m.vgf")
    shown = str(VgfFormat.inspect(tmp_path / "m.vgf")).splitlines()
    assert shown[0] == f"VGF file 0.5.0: {(tmp_path / 'm.vgf').stat().st_size} bytes"
    assert "input input_1: float32[]" in shown
    assert "output output_1: bool[2, 4, 6, 6]" in shown
    assert VgfFormat.summarize(tmp_path / "m.vgf").constants == 1
    assert [(a.dtype.name, a.shape) for a in VgfFormat.sample(tmp_path / "m.vgf", 0)][
        1:
    ] == [
        ("float32", ()),
        ("bool", (2, 4, 6, 6)),
    ]


@pytest.mark.parametrize(
    "told", [("float32", [1 << 40]), ("float32", [-1]), ("complex64", [2]), ("int", [])]
)
def test_sampling_refuses_impossible_signatures(told, lowered, tmp_path):
    path = tmp_path / "m.vgf"
    path.write_bytes(unseal(lowered.delegates[0].processed_bytes, MARK)[0])
    path.write_bytes(Signature((told,), ()).seal(path, MARK))
    with pytest.raises(FormatError, match="can be drawn"):
        VgfFormat.sample(path, 0)


@pytest.mark.parametrize(
    "does, said",
    [
        ("exit 0", None),
        ("echo no driver", "no driver"),
        ("echo 'OSError: no libgcc' >&2; exit 1", "does not load: OSError: no libgcc"),
        ("exit 1", "no error message"),
        ("kill -SEGV $$", "signal 11"),
        ("exec sleep 9", "within 0.3 seconds"),
    ],
)
def test_failed_driver_trials_are_reported(does, said, tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{does}\n")
    python.chmod(0o755)
    monkeypatch.setattr(vulkan.sys, "executable", str(python))
    monkeypatch.setattr(vulkan, "_PATIENCE", 0.3 if "sleep" in does else 300)
    why = vulkan.why_not.__wrapped__()
    assert why is None if said is None else said in why


def test_the_cache_knows_the_converter():
    [specs] = [
        delegate.compile_specs
        for delegate in delegraph.lower(
            torch.nn.ReLU(), (torch.ones(2),), backends=["vgf"]
        ).delegates
    ]
    assert VgfBackend.fingerprint(list(specs)).startswith(
        "ai-ml-sdk-model-converter 0."
    )


def test_compatibility_is_decided_by_the_header(lowered):
    blob = lowered.delegates[0].processed_bytes
    assert (
        VgfRuntime.compatible(
            BlobHeader("VgfBackend", len(blob), blob[:4096]), ()
        ).verdict
        == "runs"
    )
    newer = blob[:9] + b"\x09" + blob[10:4096]
    for beginning in (newer, b"", b"VGF1"):
        assert (
            VgfRuntime.compatible(BlobHeader("VgfBackend", 9, beginning), ()).verdict
            == "cannot"
        )


@pytest.mark.parametrize("present", [False, True])
def test_missing_converters_are_named_with_an_install_command(present, tmp_path):
    """As in an environment without it: a module of that name cannot be found."""
    code = "import sys; sys.modules['model_converter'] = None\n" if not present else ""
    code += (
        "import delegraph; [b] = [b for b in delegraph.backends() if b.name == 'vgf'];"
        " print(b.status, b.hint)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert shown == (
        "ok \n" if present else "unavailable pip install 'delegraph-vgf[runtime]'\n"
    )


def test_missing_vulkan_loaders_are_named_with_a_hint(monkeypatch):
    monkeypatch.setattr(
        vulkan, "why_not", lambda: "there is no Vulkan loader (libvulkan.so.1)"
    )
    with pytest.raises(NoRuntime, match="no Vulkan loader") as error:
        VgfRuntime.is_available()
    assert "apt-get install libvulkan1 mesa-vulkan-drivers" in error.value.hint


@pytest.mark.parametrize(
    "version, error, told",
    [
        (None, None, "there is no Vulkan loader"),
        (
            (1, 3, 239),
            "requires extension: VK_ARM_tensors",
            "1.3.239 is too old for Arm's emulation layer",
        ),
        (
            (1, 4, 309),
            "Required features not supported",
            "no Vulkan driver here has the features",
        ),
        ((1, 4, 309), None, ""),
    ],
)
def test_missing_vulkan_features_are_named(monkeypatch, version, error, told):
    class Builder:
        def add_tensor(self, shape, format):
            pass

        def build(self):
            if error is not None:
                raise RuntimeError(error)

    monkeypatch.setattr(vulkan, "loader_version", lambda: version)
    monkeypatch.setattr(vulkan.scenario_runner, "ScenarioBuilder", Builder)
    line = vulkan.try_device()
    assert told in line
    assert (error or "") in line
    assert "\n" not in line


def test_the_environment_is_put_back(monkeypatch):
    monkeypatch.setenv("VK_LAYER_PATH", "/mine")
    monkeypatch.delenv("VK_INSTANCE_LAYERS", raising=False)
    with vulkan.layers():
        assert os.environ["VK_INSTANCE_LAYERS"].startswith(
            "VK_LAYER_ML_Graph_Emulation:"
        )
    assert os.environ["VK_LAYER_PATH"] == "/mine"
    assert "VK_INSTANCE_LAYERS" not in os.environ


@pytest.mark.usefixtures("here")
def test_the_results_are_those_of_eager(lowered):
    assert lowered.verify(*INPUTS).relative_error < 1e-5
    dtypes = [value.dtype for value in lowered(*INPUTS)]
    assert dtypes == [
        torch.float32,
        torch.bool,
        torch.int32,
        torch.float32,
        torch.float16,
    ]


@pytest.mark.usefixtures("here")
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
        for name in ("vgf", "tosa")
    )
    for (x,) in batches:
        assert torch.equal(ours(x), theirs(x))


@pytest.mark.usefixtures("here")
def test_results_have_new_memory(lowered):
    first = lowered(*INPUTS)[0]
    kept = first.clone()
    lowered(INPUTS[0] * 3, *INPUTS[1:])[0].zero_()
    torch.testing.assert_close(first, kept, equal_nan=True, rtol=0, atol=0)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "x", [torch.ones(2, 3, 8, 7), torch.ones(2, 3, 8, 8).double(), torch.ones(3, 8, 8)]
)
def test_an_input_of_another_type_is_refused(lowered, tmp_path, x):
    lowered.save(tmp_path / "m.vgf")
    with pytest.raises(InputError, match="input 0"):
        delegraph.load(tmp_path / "m.vgf")(x, *INPUTS[1:])
