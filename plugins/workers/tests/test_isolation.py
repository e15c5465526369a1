"""Compilers that end their process, or do not end: what it costs, and what the report
says.
"""

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

aten = torch.ops.aten
APART = {"isolation": "process"}


class Steps(nn.Module):
    """Operators by name, with an addition of a weight before each of them."""

    def __init__(self, *names):
        super().__init__()
        self.names = names
        self.weight = nn.Parameter(torch.linspace(0, 1, 512 * 1024).reshape(512, 1024))

    def forward(self, x):
        for name in self.names:
            x = getattr(torch, name)(x + self.weight)
        return x


def lower_steps(names, registry, *backends, require_full=False, **choices):
    model = Steps(*names).eval()
    inputs = (torch.ones(512, 1024),)
    used = [*backends, "good"]
    return delegraph.lower(
        model,
        inputs,
        backends=used,
        registry=registry,
        require_full=require_full,
        compiler=Compiler(**choices),
    )


def blobs_of(result):
    return [
        (delegate.name, delegate.processed_bytes, delegate.debug_handle_map)
        for delegate in result.delegates
    ]


def test_crash_loses_only_one_partition(registry):
    """Two workers: one that dies, and the one that the others are compiled in."""
    result = lower_steps(
        ["sin", "sinh"], registry, "crashing", "refusing", isolation="process"
    )
    crashed, refused = result.report.given_back
    assert crashed.backend == "crashing"
    assert refused.backend == "refusing"
    assert "its process was killed by SIGSEGV" in crashed.reason
    assert "crashing soon" in crashed.reason
    assert "troubled.py" in crashed.reason
    assert " s;" in crashed.reason
    assert "no plan for it" in refused.reason
    lowered = lower_steps(["sin", "sinh"], registry, "refusing")
    assert blobs_of(result) == blobs_of(lowered)
    row = result.report.delegates[0]
    assert row.backend == "good"
    assert row.output == "compiled well"
    assert "compiler printed: compiled well" in result.report.to_text(verbose=True)


@pytest.mark.slow
def test_four_ways_to_misbehave(registry):
    names = ["sin", "cos", "tan", "exp", "tanh"]
    troubled = ["crashing", "exiting", "hanging", "greedy", "leaving"]
    limits = {"time_limit": 3.0, "memory_limit": 1_000_000_000}
    result = lower_steps(names, registry, *troubled, isolation="process", **limits)
    reasons = {row.backend: row.reason for row in result.report.given_back}
    assert list(reasons) == troubled
    assert "was killed by SIGSEGV" in reasons["crashing"]
    assert "ended with exit code 0" in reasons["exiting"]
    assert "was stopped after 3 s" in reasons["hanging"]
    assert "patience" in reasons["hanging"]
    assert "time.sleep" in reasons["hanging"] or "troubled.py" in reasons["hanging"]
    assert "needs more than 1000 MB" in reasons["greedy"]
    assert "its compiler exited: no licence" in reasons["leaving"]
    assert blobs_of(result) == blobs_of(lower_steps(names, registry))
    with pytest.raises(NotFullyDelegated, match="was stopped after 1 s"):
        lower_steps(["tan"], registry, "hanging", require_full=True, time_limit=1)


def test_only_backends_that_declare_isolation_are_isolated(registry, monkeypatch):
    """``isolated=True``; the others are compiled here. Nothing is started, since nobody
    answers.
    """
    begun = []

    class Recorded(workers.Workers):
        def prepare(self, backends):
            begun.append(list(backends))

    monkeypatch.setattr("delegraph_workers.compiler.Workers", Recorded)
    lower_steps(["sin"], registry, "leaving")
    assert begun == [["troubled/leaving"]]
    delegraph.lower(
        Steps("sin").eval(),
        (torch.ones(512, 1024),),
        backends=[],
        registry=registry,
        compiler=Compiler(**APART),
    )
    assert len(begun) == 1  # there is nothing to compile


def test_a_registered_backend_is_refused(registry):
    import troubled

    made = type("HereBackend", (troubled.GoodBackend,), {"__module__": "troubled"})
    additions = CapabilityPartitioner(
        lambda n: None if n.target is aten.add.Tensor else "no", "HereBackend"
    )
    with (
        registry.register(made),
        pytest.raises(OptionError, match="HereBackend was registered in this process"),
    ):
        delegraph.lower(
            Steps("sin").eval(),
            (torch.ones(512, 1024),),
            backends=[additions],
            registry=registry,
            compiler=Compiler(**APART),
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


def test_missing_workers_distribution_is_one_error(registry, monkeypatch):
    monkeypatch.setattr(Registry, "declared", lambda self, kind: [])
    with pytest.raises(
        PluginUnavailable, match="comes with delegraph-workers"
    ) as error:
        delegraph.lower(
            Steps("sin").eval(),
            (torch.ones(512, 1024),),
            backends=["leaving"],
            registry=registry,
        )
    assert error.value.hint == "pip install delegraph-workers"


@pytest.mark.slow
def test_an_executor_may_isolate_too(registry):
    """What the executor is given starts a process of its own, and watches over it."""
    with ThreadPoolExecutor(1) as threads:

        class Face:
            def submit(self, function, job):
                return threads.submit(*pickle.loads(pickle.dumps((function, job))))

        result = lower_steps(
            ["sin"], registry, "crashing", executor=Face(), isolation="process"
        )
    assert "SIGSEGV" in result.report.given_back[0].reason
    assert blobs_of(result) == blobs_of(lower_steps(["sin"], registry))
    assert result.report.delegates[0].output == "compiled well"


@pytest.mark.slow
def test_a_worker_reads_a_quantized_program():
    """torch registers the operators of quantized programs when a module of it is
    imported, which no rule needs here.
    """
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    x = torch.randn(2, 4)
    quantized = delegraph.quantize(model, [(x,)], backend="tosa")
    apart, here = (
        delegraph.lower(quantized, backends=["tosa"], compiler=c)
        for c in (Compiler(**APART), None)
    )
    assert (
        [delegate.processed_bytes for delegate in apart.delegates]
        == [delegate.processed_bytes for delegate in here.delegates]
        != []
    )


def test_isolated_partitions_have_a_fingerprint_and_are_cached(registry, tmp_path):
    first = lower_steps(["sin"], registry, cache=tmp_path, **APART)
    again = lower_steps(["sin"], registry, cache=tmp_path, **APART)
    assert [delegate.fingerprint for delegate in first.delegates] == ["1"]
    assert blobs_of(again) == blobs_of(first)
    assert ", from the cache" in again.report.to_text(verbose=True)
