"""Whether stored blobs of ExecuTorch's backends run here, by what a .pte says of who
compiled them.
"""

import dataclasses
import json

import delegraph
import pytest
import torch
from delegraph.runtime import BlobHeader
from delegraph_executorch.containers import encode_outputs
from delegraph_executorch.inspection.blobs import stored_blobs
from delegraph_executorch.program.calling import fingerprints, producers
from delegraph_executorch.program.pte_tables import ContainerMetadata
from delegraph_executorch.serialize.reader import read_program
from torch.utils import _pytree as pytree

ONE = pytree.tree_structure(0)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    pytest.importorskip("executorch")
    path = tmp_path_factory.mktemp("saved") / "m.pte"
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
    delegraph.lower(model, (torch.ones(1, 8),), backends=["xnnpack"]).save(path)
    return path


def answer_of_runtime(fingerprint, beginning=bytes(4) + b"XN01", device=None):
    header = BlobHeader(
        "XnnpackBackend", 100, beginning, "delegraph-executorch 0.1.0", fingerprint
    )
    return delegraph.get_runtime("xnnpack").compatible(header, [], device)


def test_files_name_their_executorch_version_and_run_here(saved):
    version = __import__("importlib.metadata").metadata.version("executorch")
    answer = delegraph.load(saved).compatible()
    [(blob, _)] = answer.delegates
    assert answer.verdict == "runs"
    assert blob.header.fingerprint.partition(",")[0] == f"executorch {version}"
    assert blob.header.distribution == "delegraph-executorch"
    assert blob.header.beginning[4:8] == b"XH00"


def test_the_stock_runtime_loads_saved_files(saved):
    runtime = pytest.importorskip("executorch.runtime")
    method = runtime.Runtime.get().load_program(saved).load_method("forward")
    loaded = delegraph.load(saved)
    assert torch.equal(method.execute([torch.ones(1, 8)])[0], loaded(torch.ones(1, 8)))


@pytest.mark.parametrize(
    ("fingerprint", "verdict"),
    [
        ("executorch 1.0.0", "runs"),
        ("executorch 99.1.0", "rebuild"),
        ("executorch 0.7", "rebuild"),
        ("", None),
        ("executorch", None),
        ("executorch 1.x", None),
        ("executorch " + "9" * 5000, None),
    ],
)
def test_versions_decide_whether_a_blob_is_compatible(fingerprint, verdict):
    pytest.importorskip("executorch")
    answer = answer_of_runtime(fingerprint)
    assert (answer and answer.verdict) == verdict


@pytest.mark.parametrize(
    "beginning",
    [b"", b"XN01", bytes(4096), bytes(4) + b"XN02", bytes(4) + b"XH00", b"\xff" * 20],
)
def test_blobs_that_are_no_xnnpack_graph_cannot_run(beginning):
    pytest.importorskip("executorch")
    answer = answer_of_runtime("executorch 1.0.0", beginning)
    assert answer.verdict == "cannot"
    assert "no graph of XNNPACK" in answer.reason


def test_another_device_is_refused():
    pytest.importorskip("executorch")
    assert (
        "no device 'npu'" in answer_of_runtime("executorch 1.0.0", device="npu").reason
    )


def test_file_without_fingerprints_is_unchanged():
    plain = encode_outputs(ONE, [1], ["a 1"])
    assert encode_outputs(ONE, [1], ["a 1"], [""]) == plain
    assert "fingerprints" not in plain
    told = ContainerMetadata(
        "", encode_outputs(ONE, [1, 1], ["a 1", "b 2"], ["", "acmec 4"])
    )
    assert producers(told) == ["a 1", "b 2"]
    assert fingerprints(told) == ["", "acmec 4"]


@pytest.mark.parametrize(
    ("listed", "read"),
    [
        ([1, "x"], ["", "x"]),
        ([["x"], None], ["", ""]),
        ("x", []),
        ({}, []),
        (None, []),
        (["\x1b[2J"], ["\\x1b[2J"]),
    ],
)
def test_hostile_texts_stay_in_their_place(listed, read):
    assert (
        fingerprints(ContainerMetadata("", json.dumps({"fingerprints": listed})))
        == read
    )


def test_a_text_of_any_length_is_cut():
    assert (
        len(
            fingerprints(
                ContainerMetadata("", json.dumps({"fingerprints": ["x" * 10**6]}))
            )[0]
        )
        == 500
    )


def test_metadata_of_delegates_is_read_once_for_each_method(saved, monkeypatch):
    """Read anew for each of 10,000 delegates, it took two minutes."""
    file = read_program(saved.read_bytes())
    (plan,) = file.program.plans
    outputs = json.dumps({"producers": ["a 1", 2, "c 3"], "fingerprints": ["x"]})
    container = ContainerMetadata(plan.container.inputs, outputs)
    several = dataclasses.replace(
        plan, delegates=plan.delegates * 4, container=container
    )
    decoded = []
    monkeypatch.setattr(
        json, "loads", lambda text, read=json.loads: decoded.append(text) or read(text)
    )
    headers = [blob.header for blob in stored_blobs(file, several)]
    assert [(h.producer, h.fingerprint) for h in headers] == [
        ("a 1", "x"),
        ("", ""),
        ("c 3", ""),
        ("", ""),
    ]
    assert len(decoded) == 2


def test_text_common_to_all_delegates_is_stored_once():
    told = ContainerMetadata("", encode_outputs(ONE, [1, 2, 1], ["a 1"] * 3, ["b"] * 3))
    assert told.outputs.count("a 1") == told.outputs.count('"b"') == 1
    assert producers(told) == ["a 1"] * 3
    assert fingerprints(told) == ["b"] * 3


@pytest.mark.parametrize("outputs", ["3", None, {"1": 1}])
def test_a_text_of_all_delegates_needs_their_number(outputs):
    container_metadata = ContainerMetadata(
        "", json.dumps({"producers": "a 1", "delegate_outputs": outputs})
    )
    assert producers(container_metadata) == []
