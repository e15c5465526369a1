"""The conformance kit, and what is said of a stored blob."""

from pathlib import Path

import delegraph
import pytest
import torch
from delegraph.runtime import BlobHeader
from delegraph_devkit import BackendContract
from delegraph_devkit.model_file import load_example

EXAMPLE = Path(__file__).parents[1] / "example.py"


class _Contract(BackendContract):
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


del _Contract


@pytest.fixture(scope="module")
def program():
    torch.manual_seed(0)
    return delegraph.quantize(
        torch.nn.Linear(4, 4).eval(), [(torch.randn(1, 4),)], backend="ethosu"
    )


def compile_specs(program, **options):
    [spec] = delegraph.get_partitioner("ethosu", **options)(
        program
    ).partition_tags.values()
    return list(spec.compile_specs)


DEVICES = {
    "ethos-u55-128": "runs",
    "ethos-u55-256": "cannot",
    "no such device": "cannot",
    None: None,
}


@pytest.mark.parametrize("device", DEVICES)
def test_a_blob_fits_the_accelerator_that_it_was_compiled_for(device, program):
    specs = compile_specs(program, accelerator="ethos-u55-128")
    header = BlobHeader("EthosUBackend", 0, b"")
    answer = delegraph.get_runtime("ethosu").compatible(header, specs, device)
    assert (answer and answer.verdict) == DEVICES[device]
    assert delegraph.get_runtime("ethosu").compatible(header, [], device) is None


def test_fingerprints_depend_on_vela_and_its_files(program, tmp_path, monkeypatch):
    fingerprint = delegraph.get_backend("ethosu").fingerprint
    plain = fingerprint(compile_specs(program))
    file = tmp_path / "own.ini"
    found = []
    for text in ("[System_Config.A]", "[System_Config.B]"):
        file.write_text(text)
        found.append(fingerprint(compile_specs(program, config=str(file))))
    assert len({plain, *found}) == 3
    monkeypatch.setattr("delegraph_ethosu.backend.version", lambda name: "9.9")
    assert fingerprint(compile_specs(program)) == "ethos-u-vela 9.9" != plain
