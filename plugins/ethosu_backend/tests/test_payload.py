"""Payloads for Ethos-U equal those of ExecuTorch's packer, and its reader reads them."""

import importlib.util
import json
import struct
import sys

import delegraph
import numpy as np
import pytest
import torch
from delegraph.backend import NamedDataStore
from delegraph.errors import FormatError, NoRuntime
from delegraph_ethosu.payload import blocks, pack
from delegraph_tosa.borders import integer_borders

ACCELERATORS = ("ethos-u55-128", "ethos-u65-256", "ethos-u85-256")


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, x, y):
        z = torch.relu(self.conv(x) + y)
        return self.linear(z.mean((2, 3))), z


INPUTS = torch.randn(1, 3, 8, 8), torch.randn(1, 8, 8, 8)


@pytest.fixture(scope="module")
def vela_compile():
    """ExecuTorch's packer, loaded from its file alone.

    An import of the package around it takes up to half a minute.
    """
    folder = importlib.util.find_spec("executorch").submodule_search_locations[0]
    spec = importlib.util.spec_from_file_location(
        "arm_vela", f"{folder}/backends/arm/arm_vela.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules["arm_vela"] = module
    spec.loader.exec_module(module)
    yield module.vela_compile
    del sys.modules["arm_vela"]


@pytest.fixture(scope="module")
def program():
    torch.manual_seed(0)
    return delegraph.quantize(Network().eval(), [INPUTS], backend="ethosu")


def lower(program, transforms=(), **options):
    return delegraph.lower(
        program, backends=["ethosu"], options={"ethosu": options}, transforms=transforms
    )


@pytest.fixture(scope="module", params=ACCELERATORS)
def lowered(request, program):
    return lower(program, accelerator=request.param, keep_tosa=True)


def tosa_of(lowered):
    """Return the TOSA file that was kept with the payload."""
    [file] = [
        buffer for buffer in lowered.named_data.buffers if bytes(buffer[4:8]) == b"TOSA"
    ]
    return bytes(file)


def flags_of(lowered):
    """Return the flags with which ExecuTorch calls the compiler."""
    [text] = [
        spec.value
        for spec in lowered.delegates[0].compile_specs
        if spec.key == "ethosu_flags"
    ]
    return [*json.loads(text), "--output-format=raw"]


def test_the_payload_is_that_of_executorchs_packer(lowered, vela_compile, capsys):
    [delegate] = lowered.delegates

    packed = vela_compile(tosa_of(lowered), flags_of(lowered))
    assert bytes(delegate.processed_bytes) == packed.processed_bytes


@pytest.fixture(scope="module")
def lowered_with_external_data(program):
    """A lowered program whose weights and commands go into files of their own."""
    return lower(
        program,
        [integer_borders],
        keep_tosa=True,
        weights_tag="weights",
        commands_tag="commands",
    )


def test_external_data_is_that_of_executorchs_packer(
    lowered_with_external_data, vela_compile, capsys
):
    lowered = lowered_with_external_data
    placements = {"cmd_data": "commands", "weight_data": "weights"}

    packed = vela_compile(
        tosa_of(lowered), flags_of(lowered), block_placements=placements
    )

    assert bytes(lowered.delegates[0].processed_bytes) == packed.processed_bytes
    for block in packed.external_blocks:
        [(key, entry)] = lowered.named_data.external_data[block.placement].items()
        assert key == block.key
        assert entry.alignment == block.alignment
        assert bytes(lowered.named_data.buffers[entry.buffer_index]) == block.payload


def test_weights_and_commands_may_be_external_files(
    lowered_with_external_data, tmp_path
):
    lowered_with_external_data.save(tmp_path / "m.pte")

    assert {path.name for path in tmp_path.iterdir()} == {
        "m.pte",
        "m.weights.ptd",
        "m.commands.ptd",
        "m.delegraph_tosa.ptd",
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # ExecuTorch's imports warn
@pytest.mark.parametrize("accelerator", ACCELERATORS)
def test_executorchs_reader_finds_settings_and_scratch_size(
    accelerator, program, tmp_path, capsys
):
    from executorch.backends.arm.ethosu import EthosUCompileSpec
    from executorch.backends.arm.scripts.get_ethosu_scratch_from_pte import (
        get_scratch_from_pte,
        iter_vela_blocks,
    )

    lowered = lower(program, [integer_borders], accelerator=accelerator)
    lowered.save(tmp_path / "m.pte")

    flags = {*flags_of(lowered)} - {"--optimise=Performance"}  # Vela's default
    assert flags == {*EthosUCompileSpec(accelerator).compiler_flags}
    payload = bytes(lowered.delegates[0].processed_bytes)
    assert list(blocks(payload)) == list(iter_vela_blocks(payload))
    sizes = dict(iter_vela_blocks(payload))["scratch_size"]
    scratch_size = int.from_bytes(sizes, "little")
    assert scratch_size > 0
    assert get_scratch_from_pte(tmp_path / "m.pte") == scratch_size


def test_a_payload_that_was_cut_off_is_refused(lowered):
    payload = bytes(lowered.delegates[0].processed_bytes)
    assert len(list(blocks(payload))) == 7

    for end in range(0, len(payload), len(payload) // 50):
        with pytest.raises(FormatError, match="truncated"):
            list(blocks(payload[:end]))


def test_the_host_computes_the_tosa_file_that_was_kept(lowered, program):
    by_tosa = delegraph.lower(
        program, backends=["tosa"], options={"tosa": {"spec": "TOSA-1.0+INT"}}
    )

    for ours, expected in zip(lowered(*INPUTS), by_tosa(*INPUTS), strict=True):
        assert torch.equal(ours, expected)


def test_running_without_a_kept_tosa_file_is_refused(program):
    message = "TOSA file of the payload was not kept"
    with pytest.raises(NoRuntime, match=message) as caught:
        lower(program)(*INPUTS)

    assert "ethosu.keep_tosa=true" in caught.value.hint


def test_shapes_of_four_dimensions_are_padded_to_six():
    """Vela wrote four dimensions up to some release, and payloads have six."""
    tensor = {
        "shape": np.array([[1, 3, 8, 8]]),
        "elem_size": np.array([1]),
        "offset": np.array([0]),
        "region": [2**64 - 1],  # -1 as uint64
    }
    arrays = {
        "cmd_data": np.zeros(4, np.uint8),
        "weight_data": np.zeros(4, np.uint8),
        "scratch_shape": np.array([64]),
    }
    for field, value in tensor.items():
        arrays[f"input_{field}"] = value
        arrays[f"output_{field}"] = value

    found = dict(blocks(pack(arrays, {}, NamedDataStore())))

    count, *shape, element_size, offset, region = struct.unpack("<10i", found["inputs"])
    assert count == 1
    assert shape == [1, 1, 1, 3, 8, 8]
    assert element_size == 1
    assert offset == 0
    assert region == -1
