"""Payloads equal those of ExecuTorch's packer, and its own reader finds in them what
Vela made.
"""

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
    """ExecuTorch's packer. Its file alone: the package around it imports for half a
    minute on a busy machine.
    """
    folder = importlib.util.find_spec("executorch").submodule_search_locations[0]
    spec = importlib.util.spec_from_file_location(
        "arm_vela", f"{folder}/backends/arm/arm_vela.py"
    )
    sys.modules["arm_vela"] = module = importlib.util.module_from_spec(spec)
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
    [file] = [
        buffer for buffer in lowered.named_data.buffers if bytes(buffer[4:8]) == b"TOSA"
    ]
    return bytes(file)


def flags_of(lowered):
    """The compiler's flags, as ExecuTorch calls it."""
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


def test_weights_and_commands_may_be_external_files(
    program, vela_compile, tmp_path, capsys
):
    lowered = lower(
        program,
        [integer_borders],
        keep_tosa=True,
        weights_tag="weights",
        commands_tag="commands",
    )
    placements = {"cmd_data": "commands", "weight_data": "weights"}
    packed = vela_compile(
        tosa_of(lowered), flags_of(lowered), block_placements=placements
    )
    assert bytes(lowered.delegates[0].processed_bytes) == packed.processed_bytes
    ours = lowered.named_data.external_data
    for block in packed.external_blocks:
        assert {block.key: block.alignment} == {
            key: entry.alignment for key, entry in ours[block.placement].items()
        }
        [entry] = ours[block.placement].values()
        assert bytes(lowered.named_data.buffers[entry.buffer_index]) == block.payload
    lowered.save(tmp_path / "m.pte")
    assert {path.name for path in tmp_path.iterdir()} == {
        "m.pte",
        "m.weights.ptd",
        "m.commands.ptd",
        "m.delegraph_tosa.ptd",
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what ExecuTorch warns of at import
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
    flags = {*flags_of(lowered)} - {"--optimise=Performance"}  # Vela's default
    assert flags == {*EthosUCompileSpec(accelerator).compiler_flags}
    lowered.save(tmp_path / "m.pte")
    payload = bytes(lowered.delegates[0].processed_bytes)
    assert list(blocks(payload)) == list(iter_vela_blocks(payload))
    sizes = dict(iter_vela_blocks(payload))["scratch_size"]
    assert (
        get_scratch_from_pte(tmp_path / "m.pte") == int.from_bytes(sizes, "little") > 0
    )


def test_a_payload_that_was_cut_is_found(lowered):
    payload = bytes(lowered.delegates[0].processed_bytes)
    assert len(list(blocks(payload))) == 7
    for end in range(0, len(payload), len(payload) // 50):
        with pytest.raises(FormatError, match="cut"):
            list(blocks(payload[:end]))


def test_the_host_computes_the_tosa_file_that_was_kept(lowered, program):
    by_tosa = delegraph.lower(
        program, backends=["tosa"], options={"tosa": {"spec": "TOSA-1.0+INT"}}
    )
    for ours, expected in zip(lowered(*INPUTS), by_tosa(*INPUTS), strict=True):
        assert torch.equal(ours, expected)


def test_running_without_a_kept_tosa_file_is_refused(program):
    with pytest.raises(
        NoRuntime, match="TOSA file of the payload was not kept"
    ) as caught:
        lower(program)(*INPUTS)
    assert "ethosu.keep_tosa=true" in caught.value.hint


def test_the_sizes_of_an_older_vela_get_ones_in_front():
    one = {
        "shape": np.array([[1, 3, 8, 8]]),
        "elem_size": np.array([1]),
        "offset": np.array([0]),
        "region": [2**64 - 1],
    }
    arrays = {
        f"{side}_{what}": value
        for side in ("input", "output")
        for what, value in one.items()
    }
    arrays |= dict.fromkeys(("cmd_data", "weight_data"), np.zeros(4, np.uint8)) | {
        "scratch_shape": np.array([64])
    }
    found = dict(blocks(pack(arrays, {}, NamedDataStore())))
    assert struct.unpack("<10i", found["inputs"]) == (1, 1, 1, 1, 3, 8, 8, 1, 0, -1)
