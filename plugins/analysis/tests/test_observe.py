"""An observer that gets times: delegates run as their runtimes profile them."""

import delegraph
import pytest
import torch
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.discovery.registry import Registry
from delegraph.errors import ContractViolation, PluginFailed
from delegraph.partitioner import CapabilityPartitioner
from delegraph.plugin import BackendSpec, PartitionerSpec, RuntimeSpec, hookimpl
from delegraph.runtime import BackendRuntime, Border


class SlowBackend(BackendDetails):
    @staticmethod
    def preprocess(edge_program, compile_specs):
        return PreprocessResult(b"")


class SlowPartitioner(CapabilityPartitioner):
    def __init__(self):
        super().__init__(lambda node: None, "SlowBackend")


class SlowRuntime(BackendRuntime):
    spent = None

    @staticmethod
    def load(processed_bytes, compile_specs, named_data):
        return lambda x: (x * 2,)

    @staticmethod
    def profile(processed_bytes, compile_specs, named_data):
        return lambda x: ((x * 2,), SlowRuntime.spent)


class Plugin:
    @hookimpl
    def delegraph_backends(self):
        return [BackendSpec("slow", f"{__name__}:SlowBackend", "SlowBackend", 1)]

    @hookimpl
    def delegraph_partitioners(self):
        return [
            PartitionerSpec("slow", "slow", f"{__name__}:SlowPartitioner", default=True)
        ]

    @hookimpl
    def delegraph_runtimes(self):
        return [RuntimeSpec("slow", f"{__name__}:SlowRuntime")]


class Timer:
    def __init__(self):
        self.found = []

    def begin(self, values): ...
    def see(self, node, value): ...
    def enter(self, owner, module, inputs): ...
    def leave(self): ...
    def inside(self, delegate, values): ...
    def end(self): ...

    def spent(self, delegate, seconds, read):
        self.found.append((delegate.name, seconds > 0, dict(read())))


class Double(torch.nn.Module):
    def forward(self, x):
        return x + x


def observed_times(spent):
    registry = Registry(discover=False)
    timer = Timer()
    registry.register(Plugin())
    SlowRuntime.spent = spent
    lowered = delegraph.lower(
        Double().eval(), (torch.ones(2),), backends=["slow"], registry=registry
    )
    assert torch.equal(lowered.observe(timer, torch.ones(2)), torch.full((2,), 2.0))
    return timer.found


COPIED = Border("output", 0)
"""What copying the result of a runtime took that is not thread-safe."""


@pytest.mark.parametrize(
    "spent", [{7: {"seconds": 0.5, "cycles": 3}, None: {"seconds": 0}}, {}]
)
def test_timers_get_times_of_operators_and_of_copies(spent):
    for given in (spent, lambda: spent):
        [(name, is_positive, found)] = observed_times(given)
        assert found.pop(COPIED)["seconds"] > 0
        assert (name, is_positive, found) == ("lowered_module_0", True, spent)


def test_thread_safe_runtimes_report_no_copies(monkeypatch):
    monkeypatch.setattr(SlowRuntime, "thread_safe", True)
    assert observed_times({7: {"seconds": 0.5}}) == [
        ("lowered_module_0", True, {7: {"seconds": 0.5}})
    ]


@pytest.mark.parametrize(
    "spent",
    [
        None,
        [1],
        {1: 2.0},
        {1: {"seconds": -1}},
        {1: {"seconds": float("nan")}},
        {1: {"seconds": 10**400}},
        {1: {"seconds": True}},
        {1: {"intervals": 1.0}},
        {1: {"intervals": [(2.0, 1.0)]}},
        {1: {"intervals": [(1.0,)]}},
        {1: {"intervals": [(1.0, "2")]}},
    ],
)
def test_wrong_times_name_the_runtime(spent):
    with pytest.raises(
        ContractViolation,
        match="profile of the runtime of SlowBackend makes a delegate that returned",
    ):
        observed_times(spent)


def test_errors_while_reading_times_name_the_plugin():
    with pytest.raises(PluginFailed, match="profile of SlowRuntime"):
        observed_times(lambda: 1 / 0)
