"""Lowering in threads: partitions in an executor, and several lowerings at once."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import threading
import warnings
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace

import delegraph
import pytest
import torch
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.discovery.registry import Registry
from delegraph.errors import OptionError
from delegraph.formats import ProgramFormat
from delegraph.host.files import FileFormat
from delegraph.partitioner import CapabilityPartitioner
from delegraph.plugin import FormatSpec, hookimpl
from delegraph.runtime import BackendRuntime
from delegraph_executorch.edge import ExecutorchProgramManager, to_edge
from delegraph_programs import TRACING
from delegraph_programs.tracing_lock import unlogged
from delegraph_workers import Compiler
from torch._subclasses.fake_tensor import FakeTensorMode

aten = torch.ops.aten
MAIN = threading.main_thread()


class Steps(torch.nn.Module):
    """``count`` additions, each followed by a sine, which separates the partitions."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x):
        for k in range(self.count):
            x = (x + k).sin()
        return x


def make_backend(thread_safe, work=lambda text: None, name="SideBackend", joint=False):
    """Return a backend that calls ``work`` and whose blob is the text of its program."""
    seen: list[threading.Thread] = []

    def preprocess(edge_program, compile_specs):
        seen.append(threading.current_thread())
        text = str(edge_program.graph)
        work(text)
        return PreprocessResult(text.encode())

    body = {
        "preprocess": staticmethod(preprocess),
        "thread_safe": thread_safe,
        "seen": seen,
    }
    if joint:
        body["preprocess_multimethod"] = classmethod(
            lambda cls, programs, specs: BackendDetails.preprocess_multimethod.__func__(
                cls, programs, specs
            )
        )
    return type(name, (BackendDetails,), body)


def partitioner_for_additions(backend_id="SideBackend"):
    return CapabilityPartitioner(
        lambda n: None if n.target is aten.add.Tensor else "no addition", backend_id
    )


def lower_steps(made, count=4, executor=None, partitioners=None):
    registry = Registry(discover=False)
    for each in made if isinstance(made, list) else [made]:
        registry.register(each)
    who = partitioners or [partitioner_for_additions()]
    compiler = None if executor is None else Compiler(executor=executor)
    return delegraph.lower(
        Steps(count).eval(),
        (torch.ones(3),),
        backends=who,
        registry=registry,
        compiler=compiler,
    )


def blobs_of(result):
    return [delegate.processed_bytes for delegate in result.delegates]


@pytest.fixture
def pool():
    with ThreadPoolExecutor(2) as made:
        yield made


def test_independent_partitions_run_side_by_side(pool):
    """The barrier passes only if both threads are in ``preprocess`` at once."""
    barrier = threading.Barrier(2, timeout=120)
    made = make_backend(True, lambda text: barrier.wait())
    side = lower_steps(made, 4, pool)
    assert len({t for t in made.seen}) == 2
    assert MAIN not in made.seen
    assert blobs_of(side) == blobs_of(lower_steps(make_backend(True), 4))


def test_without_an_executor_nothing_leaves_the_thread():
    made = make_backend(True)
    lower_steps(made)
    assert set(made.seen) == {threading.current_thread()}


def test_backends_run_on_the_callers_thread_by_default(pool):
    made = make_backend(False)
    lower_steps(made, executor=pool)
    assert set(made.seen) == {threading.current_thread()}


def test_a_joint_step_is_one_call_of_the_executor(pool):
    made = make_backend(True, joint=True)
    side = lower_steps(made, 4, pool)
    assert len(made.seen) == 4
    assert len(set(made.seen)) == 1
    assert MAIN not in made.seen
    assert blobs_of(side) == blobs_of(lower_steps(make_backend(True), 4))


def test_the_first_error_is_raised_after_all_threads_end(pool):
    running = []

    def work(text):
        running.append(text)
        if ", 1)" in text or ", 2)" in text:
            raise OptionError("option-invalid", f"refused {text}")

    with pytest.raises(OptionError) as error:
        lower_steps(make_backend(True, work), 6, pool)
    assert ", 1)" in str(error.value)

    count = len(running)
    assert pool.submit(lambda: len(running)).result() == count


@pytest.mark.parametrize("wrong", [4, "threads", ProcessPoolExecutor])
def test_objects_that_are_no_executors_are_refused(wrong):
    with pytest.raises(OptionError, match="which cannot run calls in threads"):
        lower_steps(make_backend(True), executor=wrong)


def test_lowerings_inside_of_a_full_pool_do_not_wait():
    """All threads of the pool lower in that pool, so no thread is free for their
    partitions.
    """
    with ThreadPoolExecutor(2) as full:
        inside = [
            full.submit(lower_steps, make_backend(True), 3, full) for _ in range(4)
        ]
        results = [blobs_of(future.result(timeout=120)) for future in inside]
    assert results == [blobs_of(lower_steps(make_backend(True), 3))] * 4


def test_the_caller_compiles_partitions_of_cancelled_calls():
    class Cancelling(ThreadPoolExecutor):
        def submit(self, fn, /, *args, **kwargs):
            future: Future = Future()
            future.cancel()
            return future

    lowered = lower_steps(make_backend(True), executor=Cancelling())
    assert blobs_of(lowered) == blobs_of(lower_steps(make_backend(True)))


class PicklingExecutor(ThreadPoolExecutor):
    """Pickles each call and runs the copy, as Python's ``InterpreterPoolExecutor``
    does.
    """

    def submit(self, fn, /, *args, **kwargs):
        return ThreadPoolExecutor(1).submit(
            pickle.loads(pickle.dumps(fn)), *args, **kwargs
        )


class SkippingExecutor(ThreadPoolExecutor):
    """Reports each call as done, but never runs it in this process."""

    def submit(self, fn, /, *args, **kwargs):
        future: Future = Future()
        future.set_result(None)
        return future


class BrokenExecutor(ThreadPoolExecutor):
    """Raises an error for each call, and never runs it."""

    def submit(self, fn, /, *args, **kwargs):
        future: Future = Future()
        future.set_exception(ValueError("no worker is left"))
        return future


@pytest.mark.parametrize(
    ("executor_class", "text"),
    [
        (PicklingExecutor, "cannot be sent to another"),
        (SkippingExecutor, "the executor is a SkippingExecutor"),
        (BrokenExecutor, "no worker"),
    ],
)
def test_executors_outside_of_this_process_are_refused(executor_class, text):
    """All of them are ThreadPoolExecutors, so only a call shows where they run."""
    backend = make_backend(True)
    with pytest.raises(OptionError, match=text):
        lower_steps(backend, executor=executor_class())
    assert not backend.seen


@pytest.mark.parametrize(
    "executor_class", [PicklingExecutor, SkippingExecutor, BrokenExecutor]
)
def test_backends_without_thread_safety_never_use_the_executor(executor_class):
    """An executor that would be refused is therefore accepted."""
    backend = make_backend(False)
    lower_steps(backend, executor=executor_class())
    assert backend.seen == [threading.current_thread()] * 4


def test_an_executor_may_run_calls_at_once():
    class Here(ThreadPoolExecutor):
        def submit(self, fn, /, *args, **kwargs):
            done: Future = Future()
            done.set_result(fn(*args, **kwargs))
            return done

    lowered = lower_steps(make_backend(True), executor=Here())
    assert blobs_of(lowered) == blobs_of(lower_steps(make_backend(True)))


def test_the_report_has_the_time_of_each_delegate():
    report = lower_steps(make_backend(False)).report
    assert all(row.seconds.keys() == {"extract", "compile"} for row in report.delegates)
    together = sum(row.seconds["compile"] for row in report.delegates)
    assert 0 < together <= report.seconds["compile"]


def test_lowerings_in_two_threads_equal_lowerings_in_one():
    sizes = [2, 3, 5, 7] * 3
    alone = {n: blobs_of(lower_steps(make_backend(True), n)) for n in set(sizes)}
    with ThreadPoolExecutor(4) as threads:
        side = list(
            threads.map(lambda n: blobs_of(lower_steps(make_backend(True), n)), sizes)
        )
    assert side == [alone[n] for n in sizes]


def test_two_threads_decompose_at_once():
    """Fake tensors, which trace decompositions, have modes for each thread."""

    class Norm(torch.nn.Module):
        def __init__(self, size):
            super().__init__()
            self.norm = torch.nn.LayerNorm(size)

        def forward(self, x):
            return torch.nn.functional.softmax(
                self.norm(x), -1
            ) * torch.nn.functional.gelu(x)

    programs = [
        torch.export.export(Norm(4 + k).eval(), (torch.ones(2, 4 + k),))
        for k in range(4)
    ]

    def text(program):
        return str(
            delegraph.lower(program, backends=[], registry=Registry(discover=False))
            .exported_program()
            .graph
        )

    alone = [text(p) for p in programs]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(text, programs)) == alone


class Remembers(torch.nn.Module):
    """Writes through a view, and passes an int64 that a delegate takes as int32."""

    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(2, 3))

    def forward(self, x, ids):
        self.last[1].add_(x)
        return self.last.t() * 2, ids - 1


class Narrowing(CapabilityPartitioner):
    def partition(self, exported_program):
        narrow = dict.fromkeys(["ids", "sub"], torch.int32)
        return replace(super().partition(exported_program), boundary_types=narrow)


def test_one_thread_at_a_time_runs_fake_tensors(monkeypatch):
    """The fake tensors of a program share one mode, which must not be entered twice."""
    program = torch.export.export(Remembers().eval(), (torch.ones(3), torch.arange(3)))
    dispatch = FakeTensorMode.dispatch
    held = []

    def watched(mode, *args, **kwargs):
        held.append(TRACING.is_mine())
        return dispatch(mode, *args, **kwargs)

    registry = Registry(discover=False)
    registry.register(make_backend(True))
    subtractions = Narrowing(
        lambda n: None if n.target is aten.sub.Tensor else "no subtraction",
        "SideBackend",
    )
    monkeypatch.setattr(FakeTensorMode, "dispatch", watched)
    lowered = delegraph.lower(program, backends=[subtractions], registry=registry)

    assert [value.dtype for value in lowered.delegates[0].inputs] == [torch.int32]
    assert held
    assert all(held)


def another_thread_can_lower():
    """Return whether another thread can begin to lower now."""
    with ThreadPoolExecutor(1) as other:
        taken = other.submit(
            lambda: TRACING.acquire(blocking=False) and TRACING.release() is None
        )
        return taken.result()


class Noticing(CapabilityPartitioner):
    def partition(self, exported_program):
        noticed["partition"] = another_thread_can_lower()
        return super().partition(exported_program)


noticed: dict[str, bool] = {}


@pytest.fixture(autouse=True)
def nothing_noticed():
    noticed.clear()


@pytest.mark.parametrize("thread_safe", [False, True])
def test_plugins_and_transforms_may_trace(thread_safe):
    """A trace breaks a ``torch.export`` in another thread, so only thread-safe backends
    let other threads lower.
    """

    def transform(program):
        noticed["transform"] = another_thread_can_lower()
        return program

    def work(text):
        noticed["preprocess"] = another_thread_can_lower()

    registry = Registry(discover=False)
    registry.register(make_backend(thread_safe, work))
    taking = Noticing(
        lambda n: None if n.target is aten.add.Tensor else "no addition", "SideBackend"
    )
    delegraph.lower(
        Steps(1).eval(),
        (torch.ones(3),),
        backends=[taking],
        registry=registry,
        transforms=[transform],
    )

    assert noticed == {
        "transform": False,
        "partition": False,
        "preprocess": thread_safe,
    }


class NoticingFormat(ProgramFormat):
    """A format that records whether other threads can lower while it works."""

    @staticmethod
    def serialize(program, options):
        noticed["serialize"] = another_thread_can_lower()
        return b""

    @staticmethod
    def read(path, load_delegate):
        noticed["read"] = another_thread_can_lower()
        return {"forward": torch.sin}

    @staticmethod
    def load_in(runtime, path):
        return NoticingFormat.read(path, None)


class OffersFormat:
    @hookimpl
    def delegraph_formats(self):
        return [
            FormatSpec(
                ".noticing", f"{__name__}:NoticingFormat", runtimes=("noticing",)
            )
        ]


@pytest.fixture
def formats():
    registry = Registry(discover=False)
    registry.register(OffersFormat())
    return registry


def test_formats_may_trace(formats, tmp_path):
    lowered = delegraph.lower(
        Steps(1).eval(), (torch.ones(3),), backends=[], registry=formats
    )
    lowered.save(tmp_path / "a.noticing")
    delegraph.load(tmp_path / "a.noticing", formats)
    assert noticed == {"serialize": False, "read": False}


def test_formats_may_trace_during_a_verification(formats):
    lowered = delegraph.lower(
        Steps(1).eval(), (torch.ones(3),), backends=[], registry=formats
    )
    assert lowered.verify(torch.ones(3), runtime="noticing").relative_error == 0
    assert noticed == {"serialize": False, "read": False}


def test_formats_may_trace_after_to_executorch(formats):
    program = torch.export.export(Steps(1), (torch.ones(3),))
    ExecutorchProgramManager(to_edge(program), FileFormat("a.noticing", formats), {})
    assert noticed == {"serialize": False}


def test_logs_of_torch_are_dropped_during_nested_lowering(caplog):
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    with unlogged():
        with unlogged():
            pass
        logger.warning("in the outer one")
    logger.warning("behind both")
    assert [record.getMessage() for record in caplog.records] == ["behind both"]


# --- forks ----------------------------------------------------------------------------


def run_in_fork(work):
    """Return what ``work`` reports from a forked process, or "hangs"."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Python 3.12: other threads run
        child = os.fork()
    if child == 0:
        signal.alarm(60)
        os.write(writing, repr(work()).encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return said or "hangs"


def error_code_of(work):
    try:
        work()
    except delegraph.DelegraphError as e:
        return e.code
    return "fine"


def test_a_fork_during_a_lowering_in_another_thread_can_lower(pool):
    inside = threading.Event()
    over = threading.Event()
    made = make_backend(False, lambda text: (inside.set(), over.wait(120)))
    other = pool.submit(lower_steps, made, 1)
    assert inside.wait(120)

    try:
        assert (
            run_in_fork(
                lambda: error_code_of(lambda: lower_steps(make_backend(False), 1))
            )
            == "'forked-at-work'"
        )
    finally:
        over.set()
    assert blobs_of(other.result())
    assert (
        run_in_fork(lambda: error_code_of(lambda: lower_steps(make_backend(False), 1)))
        == "'fine'"
    )


def test_a_fork_during_a_lowering_continues_in_both_processes():
    """A backend that compiles in its own processes forks there."""
    said = []
    lower_steps(
        make_backend(False, lambda text: said.append(run_in_fork(TRACING.is_mine))), 1
    )
    assert said == ["True"]


def test_a_fork_during_a_call_in_another_thread_can_call(pool):
    inside = threading.Event()
    over = threading.Event()

    class Runtime(BackendRuntime):
        @staticmethod
        def load(processed_bytes, compile_specs, named_data):
            def run(x):
                if threading.current_thread() is not MAIN:
                    inside.set()
                    over.wait(120)
                return (x,)

            return run

    registry = Registry(discover=False)
    registry.register(make_backend(False), runtime=Runtime)
    program = delegraph.lower(
        Steps(1).eval(),
        (torch.ones(3),),
        backends=[partitioner_for_additions()],
        registry=registry,
    )
    other = pool.submit(program, torch.ones(3))
    assert inside.wait(120)

    try:
        assert (
            run_in_fork(lambda: error_code_of(lambda: program(torch.ones(3))))
            == "'forked-at-work'"
        )
    finally:
        over.set()
    other.result()
    assert (
        run_in_fork(lambda: error_code_of(lambda: program(torch.ones(3)))) == "'fine'"
    )
