"""``observe`` with a ``Timer`` passes on the times that a runtime's profile reports."""

from typing import NamedTuple

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
    """Doubles its input; ``profile`` reports the times in ``spent``."""

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


class Reported(NamedTuple):
    """The times of one call of a delegate."""

    delegate: str
    seconds: float
    of_operators: dict


class Timer:
    """Collects what it is told about calls of delegates."""

    def __init__(self):
        self.reported = []

    def begin(self, values): ...
    def see(self, node, value): ...
    def enter(self, owner, module, inputs): ...
    def leave(self): ...
    def inside(self, delegate, values): ...
    def end(self): ...

    def spent(self, delegate, seconds, read):
        self.reported.append(Reported(delegate.name, seconds, dict(read())))


class Double(torch.nn.Module):
    def forward(self, x):
        return x + x


def observe_once(spent):
    """Return what a timer gets for a call of a delegate whose runtime reports ``spent``."""
    registry = Registry(discover=False)
    registry.register(Plugin())
    lowered = delegraph.lower(
        Double().eval(), (torch.ones(2),), backends=["slow"], registry=registry
    )
    timer = Timer()
    SlowRuntime.spent = spent
    result = lowered.observe(timer, torch.ones(2))
    assert torch.equal(result, torch.full((2,), 2.0))
    [reported] = timer.reported
    return reported


COPY_OF_RESULT = Border("output", 0)
"""The key of the time to copy a result of a runtime that is not thread-safe."""


@pytest.mark.parametrize("is_function", [False, True])
@pytest.mark.parametrize(
    "spent", [{7: {"seconds": 0.5, "cycles": 3}, None: {"seconds": 0}}, {}]
)
def test_timers_get_times_of_operators_and_of_copies(spent, is_function):
    """A runtime returns its times, or a function that reads them later."""
    reported = observe_once((lambda: spent) if is_function else spent)

    assert reported.delegate == "lowered_module_0"
    assert reported.seconds > 0
    assert reported.of_operators.pop(COPY_OF_RESULT)["seconds"] > 0
    assert reported.of_operators == spent


def test_thread_safe_runtimes_report_no_copies(monkeypatch):
    monkeypatch.setattr(SlowRuntime, "thread_safe", True)

    reported = observe_once({7: {"seconds": 0.5}})

    assert reported.delegate == "lowered_module_0"
    assert reported.seconds > 0
    assert reported.of_operators == {7: {"seconds": 0.5}}


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
        observe_once(spent)


def test_errors_while_reading_times_name_the_plugin():
    with pytest.raises(PluginFailed, match="profile of SlowRuntime"):
        observe_once(lambda: 1 / 0)
