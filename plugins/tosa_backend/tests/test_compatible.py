"""``TOSARuntime.compatible`` tells from the beginning of a file whether the runtime can run
it.
"""

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


def with_version_7(data):
    """Return the file with its version changed to 7.0. The place of the version in the
    flatbuffer is found by trying.
    """
    for place in range(8, 400):
        changed = data[:place] + struct.pack("<i", 7) + data[place + 4 :]
        try:
            version = stated_version(changed)
        except FormatError:
            continue
        if version == (7, 0):
            return changed
    raise AssertionError("the file states no version")


def test_files_of_unknown_versions_cannot_run(tmp_path):
    _, path = lower_and_save(tmp_path, "TOSA-1.0+FP")
    data = with_version_7(path.read_bytes())

    answer = answer_of_runtime(data[:4096], size=len(data))

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


@pytest.fixture
def blob(tmp_path):
    lowered, _ = lower_and_save(tmp_path, "TOSA-1.0+FP")
    return lowered.delegates[0].processed_bytes


def test_blobs_with_undecodable_specs_cannot_run(blob):
    answer = answer_of_runtime(blob, [CompileSpec("tosa_spec", b"\xff")])

    assert answer.verdict == "cannot"


def test_blobs_for_unknown_devices_cannot_run(blob):
    assert "no device 'npu'" in answer_of_runtime(blob, device="npu").reason
