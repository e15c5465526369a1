"""Backends of other environments compile, quantize and run like local ones.

The worker of the other environment is this process, so no process is started.
"""

import gc
import inspect
import json
import os
import sys

import delegraph
import numpy as np
import pytest
import torch
from delegraph.backend import BackendDetails, CompileSpec, PreprocessResult
from delegraph.errors import (
    FormatError,
    InputError,
    Unsupported,
)
from delegraph.formats import Quantization, QuantizationParameters
from delegraph.host import FileFormat
from delegraph.partitioner import CapabilityPartitioner
from delegraph.runtime import BlobHeader
from delegraph_devkit.doctor.report import build_report
from delegraph_tosa.format import TosaFormat
from delegraph_tosa.quantizer import TOSAQuantizer
from delegraph_workers import (
    Compiler,
    annotations,
    arrays,
    config,
    describe,
    environments,
    execute,
    formats,
    kept,
    message,
    plugin,
    quantizer,
    serve,
    tensors,
    workers,
)
from delegraph_workers.forms import write
from torch import nn
from torchao.quantization.pt2e import MinMaxObserver
from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, QuantizationSpec

from core.tests.support.registries import registry_of


class WorkerInThisProcess:
    """Stands in for ``WorkerProcess`` and does its jobs in this process."""

    def __init__(self, folder, python=None):
        self.pid = os.getpid()
        self.alive = True
        self.grown = 0

    def run(self, job, limits):
        return execute.execute(job), "printed"

    def close(self):
        pass


@pytest.fixture
def far(monkeypatch):
    """Return a registry with TOSA as "far", the backend of another environment.

    That environment is this process.
    """
    description = describe.describe("tosa")
    monkeypatch.setattr(workers, "WorkerProcess", WorkerInThisProcess)
    monkeypatch.setattr(environments, "WorkerProcess", WorkerInThisProcess)
    known = {"far": (config.Setting("far", sys.executable, "tosa"), description)}
    for module in (plugin, environments, quantizer, formats):
        monkeypatch.setattr(module, "described", lambda: known)
    monkeypatch.setattr(plugin, "is_installed", lambda distribution: False)
    yield registry_of("delegraph-workers")
    environments._environment.cache_clear()
    environments._backend.cache_clear()
    environments._partitioner.cache_clear()
    environments._runtime.cache_clear()
    quantizer._quantizer.cache_clear()
    formats._format.cache_clear()


class Waves(nn.Module):
    def forward(self, x):
        return torch.cos(torch.sin(torch.sin(x + 1)) * 2)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 24)
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        q, k, v = self.inner(self.norm(x)).chunk(3, -1)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.linalg.cholesky_ex(mixed @ mixed.mT + torch.eye(4))[0] + x.sum()


CONVOLUTIONS = nn.Sequential(
    nn.Conv2d(3, 8, 3),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
)


MODELS = pytest.mark.parametrize(
    ("model", "x"),
    [
        (Attention().eval(), torch.randn(1, 4, 8)),
        (CONVOLUTIONS.eval(), torch.randn(2, 3, 8, 8)),
    ],
    ids=["attention", "convolutions"],
)


def lower_far_and_here(far, model, x):
    """Return a lowering for TOSA of the other environment, and one for TOSA here."""
    options = {"spec": "TOSA-1.0+FP"}
    there = delegraph.lower(
        model, (x,), backends=["far"], registry=far, options={"far": options}
    )
    here = delegraph.lower(model, (x,), backends=["tosa"], options={"tosa": options})
    return there, here


@MODELS
def test_other_environments_compile_the_same_blobs(model, x, far):
    there, here = lower_far_and_here(far, model, x)

    assert here.delegates
    assert [bytes(delegate.processed_bytes) for delegate in there.delegates] == [
        bytes(delegate.processed_bytes) for delegate in here.delegates
    ]
    assert there.verify(x).agrees()


@MODELS
def test_other_environments_refuse_for_the_same_reasons(model, x, far):
    there, here = lower_far_and_here(far, model, x)

    refusals_there, refusals_here = (
        [
            [(refusal.operator, refusal.reason) for refusal in cause.refusals]
            for cause in lowered.report.causes
        ]
        for lowered in (there, here)
    )
    assert refusals_there == refusals_here
    assert [cause.hint for cause in there.report.causes] == [
        cause.hint for cause in here.report.causes
    ]


SMALL = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
X_OF_SMALL = torch.randn(1, 4)


@pytest.fixture
def lower_with_cache(far, tmp_path):
    """Return a function that lowers ``SMALL`` for "far" with one cache."""

    def lower(**choices):
        return delegraph.lower(
            SMALL,
            (X_OF_SMALL,),
            backends=["far"],
            registry=far,
            compiler=Compiler(tmp_path, **choices),
        )

    return lower


def origin_of(lowered):
    """Return whether the only delegate was compiled or comes from the cache."""
    (row,) = lowered.report.delegates
    return row.compiled


def change_facts(monkeypatch, **changed):
    """Let the environment give other facts about its backend."""
    about = serve.about

    def changed_about(*arguments):
        facts, _ = about(*arguments)
        return {**facts, **changed}, []

    monkeypatch.setitem(serve.SERVICES, "about", changed_about)


def test_partitions_of_other_environments_are_cached(lower_with_cache):
    first = lower_with_cache()
    second = lower_with_cache()

    assert origin_of(first) == "compiled"
    assert origin_of(second) == "from the cache"
    assert first.delegates[0].processed_bytes == second.delegates[0].processed_bytes
    version = describe.describe("tosa")["version"]
    assert first.delegates[0].producer == f"delegraph-tosa {version}"


def test_isolation_does_not_change_the_keys_of_the_cache(lower_with_cache):
    lower_with_cache()

    assert origin_of(lower_with_cache(isolation="process")) == "from the cache"


def test_other_code_in_the_environment_is_compiled_again(lower_with_cache, monkeypatch):
    lower_with_cache()

    with monkeypatch.context() as patch:
        change_facts(patch, installed=["other code"])
        assert origin_of(lower_with_cache()) == "compiled"

    assert origin_of(lower_with_cache()) == "from the cache"


def test_backends_without_fingerprint_there_are_not_cached(
    lower_with_cache, monkeypatch
):
    change_facts(monkeypatch, fingerprint=None)

    notes = lower_with_cache().report.notes

    assert any("returns no fingerprint" in note for note in notes)


def test_doctor_names_the_environments(far):
    records = [
        record for record in far.plugins() if record.distribution == "delegraph-workers"
    ]

    (row,) = build_report(records, (), {}).plugins

    place = f"[backends.far] of {config.path_of_settings()}: {sys.executable}"
    assert row.environments == {"far": place}
    assert f"\n  far is in {place}" in str(row)


def test_unknown_jobs_are_refused():
    answer = execute.execute(message.pack({"do": "dance"}))

    content, _ = message.unpack(answer)
    assert "does not know the job 'dance'" in content["error"]["message"]


BLOB_HEADER = BlobHeader("TOSABackend", 9, b"something", "delegraph-tosa 0.1.0")
SPECS = [CompileSpec("tosa_spec", b"TOSA-1.0+FP")]


def test_the_environments_runtime_decides_about_compatibility(far):
    verdict = far.runtime_for("far").compatible(BLOB_HEADER, SPECS)

    assert verdict == delegraph.get_runtime("tosa").compatible(BLOB_HEADER, SPECS)
    assert verdict.verdict == "cannot"


@pytest.mark.parametrize("wrong", ["perhaps", ["perhaps", "so"], [3]])
def test_wrong_verdicts_about_compatibility_are_errors(wrong, far, monkeypatch):
    runtime = far.runtime_for("far")
    monkeypatch.setitem(
        serve.SERVICES, "compatible", lambda *arguments: ({"verdict": wrong}, [])
    )

    with pytest.raises(FormatError, match="gave an invalid answer about"):
        runtime.compatible(BLOB_HEADER, SPECS)


@MODELS
def test_other_environments_quantize_to_the_same_program(model, x, far):
    """Annotations with derived scales, and layers without annotation, are sent."""
    batches = [(x,), (x * 2,)]
    assert [backend.has_quantizer for backend in far.backends()] == [True]

    there = delegraph.quantize(model, batches, backend="far", registry=far)

    here = delegraph.quantize(model, batches, backend="tosa")
    assert "quantize_per_tensor" in str(there.graph)
    assert write(there).key == write(here).key


class ObserverOfThisTest(MinMaxObserver):
    """An observer that is neither of torchao nor of a plugin."""


def annotate_with(observer):
    """Return a method ``annotate`` that gives all calls this observer."""

    def annotate(self, model):
        spec = QuantizationSpec(torch.int8, observer)
        for node in model.graph.nodes:
            if node.op == "call_function":
                node.meta["quantization_annotation"] = QuantizationAnnotation({}, spec)

    return annotate


def change_observers(self, model, observers):
    return None


def fail(self, model):
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("method", "function", "error"),
    [
        (
            "annotate",
            annotate_with(ObserverOfThisTest),
            "use observers of torchao, or of a plugin",
        ),
        ("annotate", annotate_with(object()), "which cannot be sent"),
        ("prepare_obs_or_fq_callback", change_observers, "changes observers"),
        ("validate", fail, "ZeroDivisionError"),
    ],
)
def test_unusable_quantizers_of_environments_are_refused(
    method, function, error, far, monkeypatch
):
    monkeypatch.setattr(TOSAQuantizer, method, function)

    with pytest.raises(delegraph.DelegraphError, match=error):
        delegraph.quantize(
            nn.ReLU().eval(), [(torch.randn(2, 2),)], backend="far", registry=far
        )


@pytest.mark.parametrize(
    "annotations_sent",
    [
        3,
        [[["spec", "str", {"dict": []}]], []],
        [[["observer", "OwnObserver"]], []],
        [[["spec", "QuantizationSpec", {"row": 1}]], []],
        [[], [["nobody", {"dict": []}]]],
        [[], [["relu", {"dict": [["other", 1]]}]]],
    ],
)
def test_invalid_annotations_of_messages_are_refused(annotations_sent):
    graph = torch.export.export(nn.ReLU(), (torch.ones(1),)).graph

    with pytest.raises(
        FormatError, match="annotations from another environment are invalid"
    ):
        annotations.apply_annotations(graph, annotations_sent, None)


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "delegraph_tosa.nothing:Observer",
        "delegraph_tosa.quantizer.observer:BINS",
        "delegraph_tosa:x",
    ],
)
def test_messages_may_name_only_observers_of_plugins(name):
    """A message could otherwise call any function."""
    graph = torch.export.export(nn.ReLU(), (torch.ones(1),)).graph
    shown = name.replace(":", ".")

    with pytest.raises(Unsupported, match=f"the observer {shown}, but"):
        annotations.apply_annotations(graph, [[["observer", name]], []], None)


@pytest.fixture
def saved_far(far, tmp_path):
    """Return the path of a TOSA file that the other environment saved."""
    path = tmp_path / "far.tosa"
    lowered = delegraph.lower(SMALL, (X_OF_SMALL,), backends=["far"], registry=far)
    lowered.save(path)
    return path


@pytest.fixture
def saved_here(tmp_path):
    """Return the path of a TOSA file of the same program that TOSA here saved."""
    path = tmp_path / "here.tosa"
    delegraph.lower(SMALL, (X_OF_SMALL,), backends=["tosa"]).save(path)
    return path


def test_files_of_other_environments_have_the_same_bytes(saved_far, saved_here):
    assert saved_far.read_bytes() == saved_here.read_bytes()


def test_loaded_files_compute_and_describe_the_same(far, saved_far, saved_here):
    there = delegraph.load(saved_far, registry=far)
    here = delegraph.load(saved_here)

    torch.testing.assert_close(there(X_OF_SMALL), here(X_OF_SMALL), rtol=0, atol=0)
    assert there.summary == here.summary
    assert there.compatible().verdict == here.compatible().verdict == "runs"


def test_quantization_of_files_arrives(far, saved_far, monkeypatch):
    expected = Quantization({"x": QuantizationParameters("int8", 0.1, 3)}, {"y": None})
    monkeypatch.setattr(TosaFormat, "quantization", staticmethod(lambda path: expected))

    assert delegraph.load(saved_far, registry=far).quantization == expected


@pytest.mark.parametrize("ability", ["inspect", "page", "verify", "blobs"])
def test_descriptions_of_files_are_the_same(ability, far, saved_far, saved_here):
    there = FileFormat(saved_far, far)
    here = FileFormat(saved_here, delegraph.default_registry())

    description_there = getattr(there, ability)(saved_far)
    description_here = getattr(here, ability)(saved_far)

    assert str(description_there) == str(description_here)


def test_inspections_of_files_give_the_same_json(far, saved_far, saved_here):
    there = FileFormat(saved_far, far).inspect(saved_far)
    here = FileFormat(saved_here, delegraph.default_registry()).inspect(saved_far)

    assert there.to_json() == json.loads(json.dumps(here.to_json()))


def test_files_run_with_sampled_inputs_to_the_same_results(far, saved_far, saved_here):
    there = FileFormat(saved_far, far)
    here = FileFormat(saved_here, delegraph.default_registry())

    inputs = there.sample(saved_far, 3)
    results_there = dict(there.run(saved_far, inputs))
    results_here = dict(here.run(saved_far, inputs))

    dtypes_here = [array.dtype for array in here.sample(saved_far, 3)]
    assert [array.dtype for array in inputs] == dtypes_here
    assert list(results_there) == list(results_here)
    for name, array in results_there.items():
        np.testing.assert_array_equal(array, results_here[name])


def test_remote_formats_have_the_parameters_of_the_local_format(far, saved_far):
    run = FileFormat(saved_far, far).kind.run

    assert "max_iterations" in inspect.signature(run).parameters


def test_truncated_files_are_errors_of_the_format(far, saved_far):
    saved_far.write_bytes(saved_far.read_bytes()[:40])

    with pytest.raises(FormatError):
        FileFormat(saved_far, far).inspect(saved_far)


def test_programs_with_host_operators_cannot_be_saved_as_delegate(far, tmp_path):
    lowered = delegraph.lower(
        Attention().eval(), (torch.randn(1, 4, 8),), backends=["far"], registry=far
    )

    with pytest.raises(InputError, match="one delegate and nothing of the host"):
        lowered.save(tmp_path / "far.tosa")


@pytest.mark.parametrize("answer", [{}, {"rows": 3}, {"rows": [["a"]]}])
def test_invalid_answers_of_formats_are_errors(answer, far, monkeypatch, tmp_path):
    path = tmp_path / "a.tosa"
    monkeypatch.setitem(serve.SERVICES, "format", lambda header, parts: (answer, [b""]))

    with pytest.raises(FormatError, match="gave an invalid answer"):
        FileFormat(path, far).blobs(path)


@pytest.mark.parametrize(
    "rows", [[["object", [1]]], [["float32", [3]]], [["none", [1]]], [[]]]
)
def test_invalid_arrays_of_messages_are_errors(rows):
    eight_bytes = memoryview(bytes(8))

    with pytest.raises(
        FormatError, match="array in a message of a worker process cannot be read"
    ):
        arrays.read_arrays(rows, [eight_bytes])


class SinBackend(BackendDetails):
    @staticmethod
    def preprocess(edge_program, compile_specs):
        return PreprocessResult(b"sin")


def refuse_all_but_sin(node):
    return None if node.target is torch.ops.aten.sin.default else "only sin"


def test_remote_and_local_backends_share_a_program(far):
    partitioner = CapabilityPartitioner(refuse_all_but_sin, "SinBackend")

    with far.register(SinBackend, partitioner=partitioner):
        lowered = delegraph.lower(
            Waves().eval(),
            (torch.linspace(-1, 1, 6),),
            backends=["sinbackend", "far"],
            registry=far,
        )

    assert sorted(delegate.backend_id for delegate in lowered.delegates) == [
        "SinBackend",
        "TOSABackend",
        "TOSABackend",
    ]


@pytest.mark.parametrize(
    "answer",
    [{"tags": {"nobody": "a"}}, {"tags": {}, "marks": {}, "partitions": [["a"]]}, {}],
)
def test_invalid_answers_of_partitioners_are_errors(answer, far, monkeypatch):
    monkeypatch.setitem(
        execute.SERVICES, "partition", lambda header, parts: (answer, [])
    )

    with pytest.raises(FormatError, match="gave an invalid answer"):
        delegraph.lower(
            Waves().eval(), (torch.ones(3),), backends=["far"], registry=far
        )


class MarkingPartitioner(CapabilityPartitioner):
    """Supports everything, and leaves a mark in each node for its backend."""

    def __init__(self, mark):
        super().__init__(lambda node: None, "TOSABackend")
        self.mark = mark

    def partition(self, exported_program):
        result = super().partition(exported_program)
        for node in exported_program.graph.nodes:
            node.meta["mark"] = self.mark
            # these two are not for the backend
            node.meta["local:mark"] = object()
            node.meta["torch_fn"] = object()
        return result


def test_marks_of_remote_partitioners_arrive(far, monkeypatch):
    mark = [0.5, (1, None), {"a": 2}]
    monkeypatch.setattr(serve, "_partitioner", lambda header: MarkingPartitioner(mark))
    program = torch.export.export(Waves().eval(), (torch.ones(3),))

    far.get_partitioner("far").partition(program)

    nodes = list(program.graph.nodes)
    for node in nodes:
        assert node.meta["mark"] == mark
        assert "local:mark" not in node.meta
    assert type(nodes[0].meta["mark"][1]) is tuple


def test_marks_that_cannot_be_sent_refuse_the_program(far, monkeypatch):
    """Without a mark, the backend would compile something else."""
    mark = object()
    monkeypatch.setattr(serve, "_partitioner", lambda header: MarkingPartitioner(mark))
    program = torch.export.export(Waves().eval(), (torch.ones(3),))

    result = far.get_partitioner("far").partition(program)

    assert not result.partition_tags
    assert len(result.refusals) == 5
    assert "the partitioner set on x cannot be sent" in result.refusals[0].reason


@pytest.mark.parametrize(
    "rows",
    [
        [["tensor", "float32", [3]]],
        [["tensor", "Tensor", [1]]],
        [["tensor", "float32", [1 << 70]]],
        [["plain", "text"]],
        [["float", "0x1p9999"]],
        3,
    ],
)
def test_invalid_values_of_messages_are_errors(rows):
    eight_bytes = memoryview(bytes(8))

    with pytest.raises(FormatError, match="a message of a worker process is invalid"):
        tensors.read_values(rows, [eight_bytes])


def send(value):
    """Return a value after its way through a message."""
    rows, parts = tensors.write_values([value])
    [received] = tensors.read_values(
        json.loads(json.dumps(rows)), [memoryview(part) for part in parts]
    )
    return received


CONJUGATE = torch.tensor([1 + 2j]).conj()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(2, 3).t(),
        torch.ones(0, 2),
        torch.tensor(float("nan")),
        torch.ones(2, dtype=torch.bfloat16),
        torch.tensor([True]),
        CONJUGATE,  # torch conjugates it lazily
        CONJUGATE.imag,  # torch negates it lazily
    ],
)
def test_tensors_arrive_unchanged(tensor):
    torch.testing.assert_close(send(tensor), tensor, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("number", [3, -0.0, True, None])
def test_numbers_arrive_unchanged(number):
    received = send(number)

    assert type(received) is type(number)
    assert str(received) == str(number)  # -0.0 differs from 0.0


@pytest.fixture
def name_environments(far, monkeypatch):
    """Return a function that names several environments, each of which has TOSA.

    The Python of an environment is ``/NAME/python``.
    """
    description = plugin.described()["far"][1]

    def name_all(names):
        known = {}
        for name in names:
            setting = config.Setting(name, f"/{name}/python", "tosa")
            known[name] = (setting, {**description, "prefix": f"/{name}"})
        for module in (plugin, environments):
            monkeypatch.setattr(module, "described", lambda: known)

    return name_all


def test_similar_names_have_different_identifiers(name_environments):
    """A class represents each backend, and its name has only letters and digits."""
    names = ["a-b", "a_b", "a.b", "a+b", "ab", "a_2db"]
    name_environments(names)

    assert len({plugin.identifier(name) for name in names}) == len(names)
    for spec in plugin.delegraph_partitioners():
        partitioner = getattr(environments, spec.target.partition(":")[2])
        assert partitioner.name == spec.name
    runtimes = {
        getattr(environments, spec.target.partition(":")[2])
        for spec in plugin.delegraph_runtimes()
    }
    assert len(runtimes) == len(names)


@pytest.mark.parametrize("name", ["older", "newer"])
def test_environments_with_the_same_backend_are_chosen_by_name(
    name, name_environments, monkeypatch
):
    name_environments(["older", "newer"])
    started = []

    class RecordedWorker(WorkerInThisProcess):
        def __init__(self, folder, python=None):
            super().__init__(folder)
            started.append(python)

    for module in (workers, environments):
        monkeypatch.setattr(module, "WorkerProcess", RecordedWorker)

    lowered = delegraph.lower(
        nn.ReLU().eval(),
        (torch.ones(2),),
        backends=[f"delegraph-workers/{name}"],
        registry=registry_of("delegraph-workers"),
    )
    lowered(torch.ones(2))

    (row,) = lowered.report.delegates
    assert row.facts["environment"].endswith(f" in /{name}")
    assert set(started) == {f"/{name}/python"}


def test_unused_delegates_are_freed_in_the_environment(far):
    """A process that lowers one model after another must not keep their delegates."""
    count_before = len(kept._kept)

    for _ in range(3):
        lowered = delegraph.lower(
            nn.ReLU().eval(), (torch.ones(2),), backends=["far"], registry=far
        )
        lowered(torch.ones(2))
        assert len(kept._kept) <= count_before + 1
        del lowered
        gc.collect()

    # any message frees those that are not in use
    environments.environment("far").run({"do": "about", "specs": None}, [])
    assert len(kept._kept) == count_before


@pytest.fixture
def parents_environment(far):
    return environments.environment("far")


@pytest.fixture
def closed(parents_environment, monkeypatch):
    """Return the list of closes of the parent's workers."""
    closed = []
    monkeypatch.setattr(
        parents_environment.workers, "close", lambda: closed.append("workers")
    )
    return closed


def test_forks_start_their_own_worker_processes(
    parents_environment, closed, monkeypatch
):
    """A fork must not use the pipes of its parent, nor end the parent's workers."""
    with monkeypatch.context() as patch:
        patch.setattr(environments.os, "getpid", lambda: -7)  # as in a fork
        forks_environment = environments.environment("far")
        assert forks_environment is not parents_environment
        assert forks_environment.workers.path != parents_environment.workers.path
        parents_environment.close()
        assert closed == []
        forks_environment.close()

    assert environments.environment("far") is parents_environment


def test_the_process_that_started_workers_closes_them(parents_environment, closed):
    parents_environment.close()

    assert closed == ["workers"]
