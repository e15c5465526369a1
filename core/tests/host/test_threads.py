"""Threads may call one program at once. Calls that write state run one after the other."""

from __future__ import annotations

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import delegraph
import pytest
import torch
from delegraph.discovery.registry import Registry
from delegraph.errors import InputError
from delegraph.partitioner import CapabilityPartitioner
from delegraph.runtime import BackendRuntime
from delegraph_engines import tag_mutated_buffer
from delegraph_programs import TRACING
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from programs.tests.support import aliasing_programs as programs

from ..conftest import EchoBackend, EchoRuntime
from ..support.random_support import MASK, lowered_program
from ..support.stateful_backend import Keeper, KeeperRuntime, Tagged

aten = torch.ops.aten
THREADS = 4


def run_in_threads(work, arguments):
    """Return ``work(argument)`` for each argument, in threads that start together."""
    start = threading.Barrier(len(arguments), timeout=60)

    def run(argument):
        start.wait()
        return work(argument)

    with ThreadPoolExecutor(len(arguments)) as pool:
        return list(pool.map(run, arguments))


def registry_with_runtime(runtime):
    registry = Registry(discover=False)
    registry.register(EchoBackend, runtime=runtime)
    return registry


def partitioner_for(*operators):
    return CapabilityPartitioner(
        lambda n: None if n.target in operators else "not mine", "EchoBackend"
    )


class Around(torch.nn.Module):
    """A sine on the delegate, between calls on the host that share values."""

    def forward(self, x):
        y = x * 3
        return torch.sin(y) + y - x


@pytest.mark.parametrize("inside", ["delegate", "branch"])
def test_two_calls_at_once_have_their_own_values(inside):
    """The barrier passes only if both calls are in the delegate at once."""
    both = threading.Barrier(2, timeout=60)

    class Meeting(BackendRuntime):
        thread_safe = True

        @staticmethod
        def load(processed_bytes, compile_specs, named_data):
            def call(x):
                both.wait()
                return (torch.sin(x),)

            return call

    class Branch(torch.nn.Module):
        def forward(self, x):
            return torch.cond(
                x.sum() > -1e9, lambda x: torch.sin(x * 3) + x, lambda x: x + 0, (x,)
            )

    module = {"delegate": Around(), "branch": Branch()}[inside].eval()
    lowered = delegraph.lower(
        module,
        (torch.zeros(5),),
        backends=[partitioner_for(aten.sin.default)],
        registry=registry_with_runtime(Meeting),
    )
    inputs = [torch.full((5,), float(k)) for k in (1, 2)]

    torch.testing.assert_close(
        run_in_threads(lowered, inputs), [module(x) for x in inputs], rtol=0, atol=0
    )


@torch.library.custom_op("delegraph_threads::meet", mutates_args=())
def meet(x: torch.Tensor) -> torch.Tensor:
    MEETING.wait()
    return x.clone()


@meet.register_fake
def _(x):
    return torch.empty_like(x)


MEETING = threading.Barrier(2, timeout=60)


def test_two_calls_at_once_without_a_backend():
    class Host(torch.nn.Module):
        def forward(self, x):
            y = x * 3
            return meet(y) + y - x

    lowered = delegraph.lower(Host().eval(), (torch.zeros(5),), backends=[])
    inputs = [torch.full((5,), float(k)) for k in (1, 2)]
    torch.testing.assert_close(
        run_in_threads(lowered, inputs), [x * 5 for x in inputs], rtol=0, atol=0
    )


def test_threads_load_a_delegate_once():
    loads = []
    entered = threading.Event()

    class Slow(EchoRuntime):
        thread_safe = True

        @staticmethod
        def load(*args):
            loads.append(1)
            entered.wait(0.2)  # nobody sets it: time for the others to come here too
            return EchoRuntime.load(*args)

    lowered = delegraph.lower(
        Around().eval(),
        (torch.zeros(5),),
        backends=[partitioner_for(aten.sin.default)],
        registry=registry_with_runtime(Slow),
    )
    run_in_threads(lowered, [torch.ones(5)] * THREADS)

    assert len(loads) == 1


class Reusing(BackendRuntime):
    """Writes every result to one buffer, and fails if two calls are inside at once."""

    @staticmethod
    def load(processed_bytes, compile_specs, named_data):
        buffer = torch.zeros(5)
        inside = threading.Lock()

        def call(x):
            assert inside.acquire(blocking=False), "two calls at once"
            try:
                buffer.copy_(torch.sin(x))
                threading.Event().wait(0.001)
                return (buffer,)
            finally:
                inside.release()

        return call


def test_a_later_call_does_not_change_earlier_results():
    lowered = lower_for_reusing_runtime(Sine())
    first = lowered(torch.ones(5))
    kept = first.clone()

    lowered(torch.full((5,), 2.0))

    torch.testing.assert_close(first, kept, rtol=0, atol=0)


def lower_for_reusing_runtime(module):
    return delegraph.lower(
        module.eval(),
        (torch.zeros(5),),
        backends=[partitioner_for(aten.sin.default)],
        registry=registry_with_runtime(Reusing),
    )


def test_calls_of_a_runtime_without_thread_safety_do_not_overlap():
    lowered = lower_for_reusing_runtime(Around())
    inputs = [torch.full((5,), float(k)) for k in range(8)]
    torch.testing.assert_close(
        run_in_threads(lowered, inputs), [Around()(x) for x in inputs], rtol=0, atol=0
    )


class Sine(torch.nn.Module):
    def forward(self, x):
        return torch.sin(x)


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x):
        self.total += x
        return self.total * 2


@pytest.mark.parametrize(
    "operators", [(), (aten.mul.Tensor,), (aten.add.Tensor, aten.mul.Tensor)]
)
def test_calls_that_write_state_are_made_one_after_the_other(registry, operators):
    lowered = delegraph.lower(
        Counter().eval(),
        (torch.ones(3),),
        backends=[partitioner_for(*operators)],
        registry=registry,
    )
    results = run_in_threads(
        lambda _: [lowered(torch.ones(3))[0].item() for _ in range(25)], range(THREADS)
    )

    assert sorted(r for listed in results for r in listed) == [
        2.0 * k for k in range(1, 25 * THREADS + 1)
    ]


def test_instances_and_copies_have_their_own_state(registry):
    lowered = delegraph.lower(
        Counter().eval(),
        (torch.ones(3),),
        backends=[partitioner_for(aten.mul.Tensor)],
        registry=registry,
    )
    lowered(torch.ones(3))
    instance = lowered.instance()
    copied = copy.deepcopy(lowered)

    def next_total(program):
        return program(torch.ones(3))[0].item()

    # each call adds 1 and returns the doubled total; ``copied`` starts after one call
    assert next_total(lowered) == 4
    assert next_total(instance) == 2
    assert next_total(copied) == 4
    assert next_total(instance) == 4
    assert next_total(lowered) == 6
    assert instance.verify(torch.ones(3)).relative_error == 0
    assert instance.report is lowered.report


def test_state_kept_by_a_runtime_is_per_instance():
    """A program with such state cannot be copied."""
    registry = Registry(discover=False)
    registry.register(Keeper, runtime=KeeperRuntime)
    lowered = delegraph.lower(
        Counter().eval(),
        (torch.ones(3),),
        backends=[Tagged(lambda _: True, tag_mutated_buffer)],
        registry=registry,
    )
    assert lowered.delegates[0].module.state == ("total",)

    results = run_in_threads(
        lambda _: [lowered(torch.ones(3))[0].item() for _ in range(5)], range(THREADS)
    )
    assert sorted(r for listed in results for r in listed) == [
        2.0 * k for k in range(1, 5 * THREADS + 1)
    ]
    assert lowered.instance()(torch.ones(3))[0] == 2
    with pytest.raises(InputError, match="delegates that keep state cannot be copied"):
        copy.deepcopy(lowered)


def test_verify_waits_for_lowerings():
    """While torch traces a model, its weights are replaced."""

    class Watched(torch.nn.Module):
        tried = None

        def forward(self, x):
            if not torch.compiler.is_compiling():
                with ThreadPoolExecutor(1) as pool:
                    self.tried = pool.submit(TRACING.acquire, blocking=False).result()
            return x + 1

    module = Watched().eval()
    lowered = delegraph.lower(module, (torch.ones(2),), backends=[])
    module.tried = None

    assert lowered.verify(torch.ones(2)).relative_error == 0
    assert module.tried is False


@given(st.integers(0, 10**6), st.integers(0, 2**MASK - 1))
@settings(max_examples=8, deadline=None)
def test_calls_in_threads_equal_eager(echo_registry, seed, mask):
    threads_are_eager(echo_registry, seed, mask)


@pytest.mark.slow
@given(st.integers(0, 10**6), st.integers(0, 2**MASK - 1))
@settings(max_examples=300, deadline=None)
def test_many_calls_in_threads_equal_eager(echo_registry, seed, mask):
    threads_are_eager(echo_registry, seed, mask, threads=8, calls=6)


def threads_are_eager(registry, seed, mask, threads=THREADS, calls=2):
    """One instance a thread is eager, call by call; one for all of them is eager in
    some order of the calls.
    """
    module, _, lowered = lowered_program(seed, mask, registry)
    eager = copy.deepcopy(module)
    expected = [call_and_copy(eager, k) for k in range(calls)]
    instances = [lowered.instance() for _ in range(threads)]
    for found in run_in_threads(
        lambda p: [call_and_copy(p, k) for k in range(calls)], instances
    ):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    shared = run_in_threads(
        lambda p: [call_and_copy(p, 0) for _ in range(calls)], [lowered] * threads
    )
    serial = [call_and_copy(module, 0) for _ in range(calls * threads)]
    assert sorted(flat_lists(r) for found in shared for r in found) == sorted(
        map(flat_lists, serial)
    )


def call_and_copy(program, call):
    """Return copies of the results of a call and of its inputs after it."""
    inputs = programs.inputs(call)
    return copy.deepcopy((program(*inputs), inputs))


def flat_lists(value):
    return [repr(t.tolist()) for t in pytree.tree_leaves(value)]
