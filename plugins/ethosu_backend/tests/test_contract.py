"""The conformance kit of backends, and the compatibility of stored blobs."""

from pathlib import Path

import delegraph
import pytest
import torch
from delegraph.runtime import BlobHeader
from delegraph_devkit import BackendContract
from delegraph_devkit.model_file import load_example

EXAMPLE = Path(__file__).parents[1] / "example.py"


class _Contract(BackendContract):
    """The kit for an accelerator; ``keep_tosa`` lets the host compute the delegates."""

    backend = "ethosu"
    tolerance = 0.02  # a step of int8

    @staticmethod
    def example():
        return load_example(str(EXAMPLE))


@pytest.mark.slow
class TestU55(_Contract):
    options = {"keep_tosa": True, "accelerator": "ethos-u55-128"}  # noqa: RUF012


@pytest.mark.slow
class TestU85(_Contract):
    options = {"keep_tosa": True}  # noqa: RUF012


del _Contract  # pytest would run it as well


@pytest.fixture(scope="module")
def program():
    torch.manual_seed(0)
    return delegraph.quantize(
        torch.nn.Linear(4, 4).eval(), [(torch.randn(1, 4),)], backend="ethosu"
    )


def compile_specs(program, **options):
    """Return the compile specs of the only partition of ``program``."""
    partitioner = delegraph.get_partitioner("ethosu", **options)
    [spec] = partitioner(program).partition_tags.values()
    return list(spec.compile_specs)


def compatibility(specs, device):
    header = BlobHeader("EthosUBackend", 0, b"")
    return delegraph.get_runtime("ethosu").compatible(header, specs, device)


@pytest.mark.parametrize(
    ("device", "verdict"),
    [
        ("ethos-u55-128", "runs"),
        ("ethos-u55-256", "cannot"),
        ("no such device", "cannot"),
    ],
)
def test_a_blob_runs_only_on_its_accelerator(device, verdict, program):
    specs = compile_specs(program, accelerator="ethos-u55-128")

    assert compatibility(specs, device).verdict == verdict


def test_the_compatibility_with_an_unnamed_device_is_unknown(program):
    specs = compile_specs(program, accelerator="ethos-u55-128")

    assert compatibility(specs, device=None) is None


@pytest.mark.parametrize("device", ["ethos-u55-128", "no such device", None])
def test_the_compatibility_of_a_blob_without_settings_is_unknown(device):
    assert compatibility([], device) is None


def fingerprint_of(program, **options):
    specs = compile_specs(program, **options)
    return delegraph.get_backend("ethosu").fingerprint(specs)


def test_fingerprints_depend_on_the_content_of_config_files(program, tmp_path):
    file = tmp_path / "own.ini"
    without_file = fingerprint_of(program)
    file.write_text("[System_Config.A]")
    with_file = fingerprint_of(program, config=str(file))
    file.write_text("[System_Config.B]")
    with_changed_file = fingerprint_of(program, config=str(file))

    assert len({without_file, with_file, with_changed_file}) == 3


def test_fingerprints_name_the_release_of_vela(program, monkeypatch):
    before = fingerprint_of(program)

    monkeypatch.setattr("delegraph_ethosu.backend.version", lambda name: "9.9")

    assert fingerprint_of(program) == "ethos-u-vela 9.9"
    assert before != "ethos-u-vela 9.9"
