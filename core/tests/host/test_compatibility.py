"""A runtime decides by the header whether a stored blob can run, before it is loaded."""

import delegraph
import pytest
import torch
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.discovery.registry import Registry
from delegraph.errors import ContractViolation, FormatError, OptionError, PluginFailed
from delegraph.formats import DelegateFormat, ProgramFormat, StoredBlob
from delegraph.host.blob_compatibility import ProgramCompatibility
from delegraph.partitioner import CapabilityPartitioner
from delegraph.plugin import (
    BackendSpec,
    FormatSpec,
    PartitionerSpec,
    RuntimeSpec,
    hookimpl,
)
from delegraph.runtime import BackendRuntime, BlobHeader, Compatibility

LOADED = []
ASKED = []


class HalvingBackend(BackendDetails):
    @staticmethod
    def fingerprint(compile_specs):
        return "halver 1.5"

    @staticmethod
    def preprocess(edge_program, compile_specs):
        return PreprocessResult(b"half" + bytes(5000))


class HalvingPartitioner(CapabilityPartitioner):
    def __init__(self):
        super().__init__(lambda node: None, "HalvingBackend")


class HalvingRuntime(BackendRuntime):
    answer = None

    @staticmethod
    def compatible(header, compile_specs, device=None):
        ASKED.append((header, list(compile_specs), device))
        if isinstance(HalvingRuntime.answer, Exception):
            raise HalvingRuntime.answer
        return HalvingRuntime.answer

    @staticmethod
    def load(processed_bytes, compile_specs, named_data):
        LOADED.append(processed_bytes)
        return lambda x: (x / 2,)


class HalfFormat(DelegateFormat):
    backend_id = "HalvingBackend"


class Plugin:
    @hookimpl
    def delegraph_backends(self):
        return [BackendSpec("half", f"{__name__}:HalvingBackend", "HalvingBackend", 1)]

    @hookimpl
    def delegraph_partitioners(self):
        return [
            PartitionerSpec(
                "half", "half", f"{__name__}:HalvingPartitioner", default=True
            )
        ]

    @hookimpl
    def delegraph_runtimes(self):
        return [RuntimeSpec("half", f"{__name__}:HalvingRuntime")]

    @hookimpl
    def delegraph_formats(self):
        return [FormatSpec(".half", f"{__name__}:HalfFormat")]


class Half(torch.nn.Module):
    def forward(self, x):
        return x * 0.5


@pytest.fixture
def saved(tmp_path):
    """Return a registry and a file that its plugin saved."""
    registry = Registry(discover=False)
    registry.register(Plugin())
    lowered = delegraph.lower(
        Half().eval(), (torch.ones(2),), backends=["half"], registry=registry
    )
    lowered.save(tmp_path / "m.half")
    yield registry, tmp_path / "m.half", lowered
    HalvingRuntime.answer = None
    del LOADED[:], ASKED[:]


def test_compatibility_is_decided_without_loading(saved):
    registry, path, lowered = saved
    assert lowered.delegates[0].fingerprint == "halver 1.5"

    HalvingRuntime.answer = Compatibility("rebuild", "version 2 is faster")
    loaded = delegraph.load(path, registry=registry)
    answer = loaded.compatible("npu1")
    assert answer.verdict == "rebuild"
    assert LOADED == []

    header, specs, device = ASKED[-1]
    assert header.backend_id == "HalvingBackend"
    assert header.size == 5004
    assert len(header.beginning) == 4096
    assert specs == []
    assert device == "npu1"
    assert (
        str(answer)
        == "can run here: rebuild\n  forward  HalvingBackend  rebuild: version 2 is"
        " faster"
    )
    assert torch.equal(loaded(torch.ones(2))[0], torch.full((2,), 0.5))
    assert ASKED[-1][2] is None


def test_incompatible_blobs_are_refused_with_the_reason(saved):
    registry, path, _ = saved
    HalvingRuntime.answer = Compatibility(
        "cannot", "it is of version 1, and 2 is read here"
    )
    loaded = delegraph.load(path, registry=registry)

    with pytest.raises(FormatError) as caught:
        loaded(torch.ones(2))
    assert str(caught.value).startswith(
        "this blob of HalvingBackend cannot run: it is of version 1, and 2 is read here"
    )
    assert LOADED == []


def test_a_program_that_was_lowered_here_is_not_asked_about(saved):
    _, _, lowered = saved
    HalvingRuntime.answer = Compatibility("cannot", "for a file alone")
    assert torch.equal(lowered(torch.ones(2)), torch.full((2,), 0.5))
    assert ASKED == []


def test_runtime_without_an_answer_loads_the_blob(saved):
    registry, path, _ = saved
    loaded = delegraph.load(path, registry=registry)
    assert loaded.compatible().verdict is None
    assert "its runtime does not say" in str(loaded.compatible())
    assert torch.equal(loaded(torch.ones(2))[0], torch.full((2,), 0.5))


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (
            "runs",
            ContractViolation,
            "compatible returned 'runs', not a Compatibility or None",
        ),
        (
            KeyError("x"),
            PluginFailed,
            "compatible of HalvingRuntime .* raised KeyError",
        ),
    ],
)
def test_a_runtime_that_answers_wrongly_is_named(saved, answer, error, text):
    registry, path, _ = saved
    HalvingRuntime.answer = answer
    with pytest.raises(error, match=text):
        delegraph.load(path, registry=registry).compatible()


def test_file_without_its_backend_is_incompatible(saved):
    _, path, _ = saved
    other = Registry(discover=False)

    class OnlyFormat:
        @hookimpl
        def delegraph_formats(self):
            return [FormatSpec(".half", f"{__name__}:HalfFormat")]

    other.register(OnlyFormat())
    answer = delegraph.load(path, registry=other).compatible()
    assert answer.verdict == "cannot"
    assert "HalvingBackend" in answer.delegates[0][1].reason


class BareFormat(ProgramFormat):
    @staticmethod
    def read(path, load_delegate):
        return {"forward": lambda: None}


def test_names_in_a_file_cannot_add_lines_to_the_verdict():
    blob = StoredBlob(
        "fo\ncan run here: runs", BlobHeader("B\x1b[2J\n", 0, b"", "p\n1"), []
    )
    text = str(
        ProgramCompatibility(((blob, Compatibility("cannot", "of\nversion 1")),))
    )

    assert text.splitlines()[0] == "can run here: cannot"
    assert len(text.splitlines()) == 2
    assert "\x1b" not in text


def test_format_without_blobs_is_refused(tmp_path, registry):
    class Offering:
        @hookimpl
        def delegraph_formats(self):
            return [FormatSpec(".bare", f"{__name__}:BareFormat")]

    registry.register(Offering())
    (tmp_path / "m.bare").write_bytes(b"x")
    with pytest.raises(OptionError, match=r"the format of \.bare files has no blobs"):
        delegraph.load(tmp_path / "m.bare", registry=registry).compatible()


@pytest.mark.parametrize("given", [("perhaps", "so"), ("runs", None)])
def test_a_verdict_is_one_of_three(given):
    with pytest.raises(ValueError, match="a verdict is one of"):
        Compatibility(*given)


def test_a_producer_is_a_distribution_and_a_version():
    header = BlobHeader("B", 0, b"", "acme-npu 1.0 beta")
    assert header.distribution == "acme-npu"
    assert header.version == "1.0 beta"


@pytest.mark.parametrize("kind", [OptionError, FormatError])
def test_errors_of_runtimes_mean_incompatible_blobs(saved, kind):
    registry, path, _ = saved
    HalvingRuntime.answer = kind("option-invalid", "no such setting")
    answer = delegraph.load(path, registry=registry).compatible()
    assert answer.verdict == "cannot"
    assert "no such setting" in str(answer)
