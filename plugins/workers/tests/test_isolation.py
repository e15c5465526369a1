"""``isolation="process"`` compiles in worker processes, which may crash or hang."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import delegraph
import pytest
import torch
from delegraph.discovery.registry import Registry
from delegraph.errors import NotFullyDelegated, OptionError, PluginUnavailable
from delegraph.partitioner import CapabilityPartitioner
from delegraph_workers import Compiler, workers
from torch import nn

ISOLATED = {"isolation": "process"}


class Steps(nn.Module):
    """Applies operators by name, each to the sum of a value and a weight.

    The backend "good" compiles the additions; each is a partition of its own.
    """

    def __init__(self, *names):
        super().__init__()
        self.names = names
        self.weight = nn.Parameter(torch.linspace(0, 1, 512 * 1024).reshape(512, 1024))

    def forward(self, x):
        for name in self.names:
            x = getattr(torch, name)(x + self.weight)
        return x


X = torch.ones(512, 1024)


def lower_steps(names, registry, *backends, require_full=False, **choices):
    """Lower ``Steps(*names)`` for these backends and for "good".

    ``choices`` are those of ``Compiler``.
    """
    return delegraph.lower(
        Steps(*names).eval(),
        (X,),
        backends=[*backends, "good"],
        registry=registry,
        require_full=require_full,
        compiler=Compiler(**choices),
    )


def blobs_of(lowered):
    return [
        (delegate.name, delegate.processed_bytes, delegate.debug_handle_map)
        for delegate in lowered.delegates
    ]


@pytest.fixture
def with_crash(registry):
    """Return a lowering with a compiler that crashes and one that refuses."""
    return lower_steps(["sin", "sinh"], registry, "crashing", "refusing", **ISOLATED)


def test_a_crash_is_reported_with_its_place_and_output(with_crash):
    crashed, _ = with_crash.report.given_back

    assert crashed.backend == "crashing"
    assert "its process was killed by SIGSEGV" in crashed.reason
    assert "crashing soon" in crashed.reason  # the compiler printed it
    assert "troubled.py" in crashed.reason
    assert " s;" in crashed.reason  # the time that it took


def test_a_crash_loses_only_its_own_partition(with_crash, registry):
    _, refused = with_crash.report.given_back
    without_crash = lower_steps(["sin", "sinh"], registry, "refusing")

    assert refused.backend == "refusing"
    assert "no plan for it" in refused.reason
    assert blobs_of(with_crash) == blobs_of(without_crash)


def test_reports_have_what_isolated_compilers_print(with_crash):
    delegate = with_crash.report.delegates[0]

    assert delegate.backend == "good"
    assert delegate.output == "compiled well"
    text = with_crash.report.to_text(verbose=True)
    assert "compiler printed: compiled well" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "operator", "reasons"),
    [
        ("crashing", "sin", ["was killed by SIGSEGV"]),
        ("exiting", "cos", ["ended with exit code 0"]),
        # the compiler printed "patience"
        ("hanging", "tan", ["was stopped after 3 s", "patience", "troubled.py"]),
        ("greedy", "exp", ["needs more than 1000 MB"]),
        ("leaving", "tanh", ["its compiler exited: no licence"]),
    ],
)
def test_misbehaving_compilers_lose_only_their_partition(
    backend, operator, reasons, registry
):
    limits = {"time_limit": 3.0, "memory_limit": 1_000_000_000}

    lowered = lower_steps([operator], registry, backend, **ISOLATED, **limits)

    [given_back] = lowered.report.given_back
    assert given_back.backend == backend
    for reason in reasons:
        assert reason in given_back.reason
    assert blobs_of(lowered) == blobs_of(lower_steps([operator], registry))


@pytest.mark.slow
def test_require_full_raises_if_a_compiler_is_stopped(registry):
    with pytest.raises(NotFullyDelegated, match="was stopped after 1 s"):
        lower_steps(["tan"], registry, "hanging", require_full=True, time_limit=1)


@pytest.fixture
def prepared(monkeypatch):
    """Return the list of backends for which workers are prepared."""
    prepared = []

    class RecordedWorkers(workers.Workers):
        def prepare(self, backends):
            prepared.append(list(backends))

    monkeypatch.setattr("delegraph_workers.compiler.Workers", RecordedWorkers)
    return prepared


def test_only_backends_that_declare_isolation_are_isolated(registry, prepared):
    """The backend "leaving" declares ``isolated=True``, and "good" does not."""
    lower_steps(["sin"], registry, "leaving")

    assert prepared == [["troubled/leaving"]]


def test_without_backends_no_worker_is_started(registry, prepared):
    delegraph.lower(
        Steps("sin").eval(),
        (X,),
        backends=[],
        registry=registry,
        compiler=Compiler(**ISOLATED),
    )

    assert prepared == []


def test_backends_registered_in_this_process_cannot_be_isolated(registry):
    """A worker process does not know them."""
    import troubled

    backend = type("HereBackend", (troubled.GoodBackend,), {"__module__": "troubled"})
    partitioner = CapabilityPartitioner(
        lambda node: None if node.target is torch.ops.aten.add.Tensor else "no",
        "HereBackend",
    )

    with (
        registry.register(backend),
        pytest.raises(OptionError, match="HereBackend was registered in this process"),
    ):
        delegraph.lower(
            Steps("sin").eval(),
            (X,),
            backends=[partitioner],
            registry=registry,
            compiler=Compiler(**ISOLATED),
        )


@pytest.mark.parametrize(
    ("choices", "text"),
    [
        ({"isolation": "thread"}, "isolation is 'process' or None, not 'thread'"),
        ({"time_limit": 0}, "time_limit is a finite number above 0, not 0"),
        (
            {"time_limit": float("nan")},
            "time_limit is a finite number above 0, not nan",
        ),
        (
            {"memory_limit": float("inf")},
            "memory_limit is a finite number above 0, not inf",
        ),
        ({"memory_limit": 1}, "memory_limit is 1 bytes, but a worker itself uses"),
        ({"memory_limit": "1G"}, "memory_limit is a finite number above 0, not '1G'"),
    ],
)
def test_wrong_options_of_isolation_are_refused(choices, text, registry):
    with pytest.raises(OptionError, match=text):
        lower_steps(["sin"], registry, **choices)


def test_isolation_without_the_workers_plugin_is_an_error(registry, monkeypatch):
    monkeypatch.setattr(Registry, "declared", lambda self, kind: [])
    with pytest.raises(
        PluginUnavailable, match="comes with delegraph-workers"
    ) as error:
        delegraph.lower(
            Steps("sin").eval(),
            (X,),
            backends=["leaving"],
            registry=registry,
        )
    assert error.value.hint == "pip install delegraph-workers"


@pytest.mark.slow
def test_jobs_of_executors_can_be_isolated(registry):
    """A worker of the executor then starts a process for the compiler."""
    with ThreadPoolExecutor(1) as threads:

        class CopyingExecutor:
            def submit(self, function, job):
                function, job = pickle.loads(pickle.dumps((function, job)))
                return threads.submit(function, job)

        lowered = lower_steps(
            ["sin"], registry, "crashing", executor=CopyingExecutor(), **ISOLATED
        )

    assert "SIGSEGV" in lowered.report.given_back[0].reason
    assert blobs_of(lowered) == blobs_of(lower_steps(["sin"], registry))
    assert lowered.report.delegates[0].output == "compiled well"


@pytest.mark.slow
def test_workers_read_quantized_programs():
    """Operators of quantized programs exist only after the import of a torch module.

    No rule imports that module, so the worker has to do it.
    """
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    x = torch.randn(2, 4)
    quantized = delegraph.quantize(model, [(x,)], backend="tosa")

    isolated = delegraph.lower(
        quantized, backends=["tosa"], compiler=Compiler(**ISOLATED)
    )

    here = delegraph.lower(quantized, backends=["tosa"])
    assert here.delegates
    assert [delegate.processed_bytes for delegate in isolated.delegates] == [
        delegate.processed_bytes for delegate in here.delegates
    ]


def test_isolated_partitions_are_cached(registry, tmp_path):
    first = lower_steps(["sin"], registry, cache=tmp_path, **ISOLATED)
    again = lower_steps(["sin"], registry, cache=tmp_path, **ISOLATED)
    assert [delegate.fingerprint for delegate in first.delegates] == ["1"]
    assert blobs_of(again) == blobs_of(first)
    assert ", from the cache" in again.report.to_text(verbose=True)
