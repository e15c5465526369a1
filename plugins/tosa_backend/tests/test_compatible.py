"""Whether the host's runtime takes a stored TOSA file, by its beginning."""

import struct

import delegraph
import pytest
import torch
from delegraph.backend import CompileSpec
from delegraph.errors import FormatError
from delegraph.runtime import BlobHeader
from delegraph_tosa.runtime import TOSARuntime
from delegraph_tosa.serialize import stated_version


def lower_and_save(folder, spec, **options):
    chosen = {"tosa": {"spec": spec, **options}}
    lowered = delegraph.lower(
        torch.nn.Linear(40, 40).eval(), (torch.ones(1, 40),), options=chosen
    )
    lowered.save(folder / "m.tosa")
    return lowered, folder / "m.tosa"


def answer_of_runtime(data, specs=(), size=None, device=None):
    return TOSARuntime.compatible(
        BlobHeader("TOSABackend", len(data) if size is None else size, data),
        specs,
        device,
    )


@pytest.mark.parametrize(
    ("spec", "verdict", "text"),
    [
        ("TOSA-1.0+FP", "runs", "this runtime runs TOSA 1.0"),
        ("TOSA-0.80+MI", "runs", "this runtime runs TOSA 0.80"),
        ("TOSA-1.1+FP", "rebuild", "TOSA 1.1 is a draft"),
    ],
)
def test_saved_files_name_their_producer_and_tosa_version(
    tmp_path, spec, verdict, text
):
    lowered, path = lower_and_save(tmp_path, spec)
    answer = delegraph.load(path).compatible()
    [(blob, why)] = answer.delegates
    assert answer.verdict == verdict
    assert blob.header.producer == lowered.delegates[0].producer
    assert text in why.reason
    assert len(blob.header.beginning) == 4096


def test_a_file_of_another_version_cannot_run(tmp_path):
    _, path = lower_and_save(tmp_path, "TOSA-1.0+FP")
    data = path.read_bytes()

    def other(place):
        return data[:place] + struct.pack("<i", 7) + data[place + 4 :]

    def says_so(place):
        try:
            return stated_version(other(place)) == (7, 0)
        except FormatError:
            return False

    place = next(filter(says_so, range(8, 400)))
    answer = answer_of_runtime(other(place)[:4096], size=len(data))
    assert answer.verdict == "cannot"
    assert "TOSA 7.0" in answer.reason


def test_named_constants_do_not_hide_the_version(tmp_path):
    lowered, _ = lower_and_save(tmp_path, "TOSA-1.0+FP", named_constants=True)
    delegate = lowered.delegates[0]
    assert delegate.processed_bytes.startswith(b"dlgrCUT2")
    assert (
        answer_of_runtime(
            delegate.processed_bytes[:4096], delegate.compile_specs
        ).verdict
        == "runs"
    )


@pytest.mark.parametrize(
    ("data", "verdict"),
    [
        (b"", "cannot"),
        (bytes(4096), "cannot"),
        (b"\xff" * 4096, "cannot"),
        (b"\xff\xff\xff\x7fTOSA", "cannot"),
        (b"dlgrCUT2", "cannot"),
        (b"dlgrCUT2\xff\xff\xff\xff\xff\xff\xff\xff", None),
        (b"dlgrCUT2\0\0\0\0\0\0\0\0" + bytes(100), None),
    ],
)
def test_hostile_beginnings_give_an_answer(data, verdict):
    answer = answer_of_runtime(data)
    assert (answer and answer.verdict) == verdict


def test_versions_beyond_the_header_are_unknown():
    assert answer_of_runtime(b"\xff\xff\0\0TOSA" + bytes(4088), size=1 << 20) is None


def test_specs_and_devices_that_are_not_known_cannot_run(tmp_path):
    lowered, _ = lower_and_save(tmp_path, "TOSA-1.0+FP")
    blob = lowered.delegates[0].processed_bytes
    assert (
        answer_of_runtime(blob, [CompileSpec("tosa_spec", b"\xff")]).verdict == "cannot"
    )
    assert "no device 'npu'" in answer_of_runtime(blob, device="npu").reason
