"""Compile partitions with an executor, whose workers may be lost or answer wrongly.

Most tests use an executor in this process: ``CopyingExecutor``.
"""

import logging
import multiprocessing
import os
import pickle
import signal
import threading
import time
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import delegraph
import pytest
import torch
from delegraph.backend import CompileSpec, PreprocessResult
from delegraph.errors import FormatError, OptionError, PluginFailed, Unsupported
from delegraph_workers import Compiler, execute, message
from delegraph_workers.supervise import Limits
from delegraph_workers.workers import Remote, Workers
from torch import nn


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


WEIGHT_BYTES = 512 * 1024 * 4


def lower_steps(
    registry,
    executor=None,
    names=("sin", "sin"),
    backends=("good",),
    **choices,
):
    """Lower ``Steps(*names)``; the further ``choices`` are those of ``Compiler``."""
    return delegraph.lower(
        Steps(*names).eval(),
        (torch.ones(512, 1024),),
        backends=list(backends),
        registry=registry,
        compiler=Compiler(executor=executor, **choices),
    )


def contents_of_delegates(result):
    return [
        (
            delegate.name,
            delegate.processed_bytes,
            delegate.debug_handle_map,
            delegate.facts,
        )
        for delegate in result.delegates
    ]


class CopyingExecutor:
    """An executor that runs a pickled copy of each job at once, in this process.

    ``faults`` are for the first jobs: an exception to raise, or a function from the
    right answer to a wrong one. ``jobs`` are the messages that it got, without those
    that only start a worker.
    """

    def __init__(self, *faults):
        self.faults = list(faults)
        self.jobs = []

    def submit(self, function, job):
        function, job = pickle.loads(pickle.dumps((function, job)))
        assert function in (execute.run, execute.warm)
        future: Future = Future()
        if function is execute.warm:
            future.set_result(0)
            return future
        self.jobs.append(job)
        fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, Exception):
            future.set_exception(fault)
        elif fault is None:
            future.set_result(function(job))
        else:
            future.set_result(fault(function(job)))
        return future


def test_executors_give_the_blobs_of_a_serial_lowering(registry):
    executor = CopyingExecutor()

    lowered = lower_steps(registry, executor)

    assert contents_of_delegates(lowered) == contents_of_delegates(
        lower_steps(registry)
    )
    assert len(executor.jobs) == 2


def test_jobs_do_not_contain_the_weights(registry):
    executor = CopyingExecutor()

    lower_steps(registry, executor)

    assert max(len(job) for job in executor.jobs) < WEIGHT_BYTES / 100


def test_jobs_with_a_cache_are_not_repeated(registry, tmp_path):
    executor = CopyingExecutor()
    expected = contents_of_delegates(lower_steps(registry))

    for _ in range(2):  # compiled, and from the cache
        lowered = lower_steps(registry, executor, cache=tmp_path / "cache")
        assert contents_of_delegates(lowered) == expected
        assert len(executor.jobs) == 2


@pytest.mark.parametrize("with_cache", [False, True])
def test_progress_names_the_partition_and_its_process(
    with_cache, registry, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(registry.get_backend("good"), "keeps_names", not with_cache)
    choices = {"cache": tmp_path / "cache"} if with_cache else {}

    with caplog.at_level(logging.INFO, "delegraph.progress"):
        lower_steps(registry, CopyingExecutor(), **choices)

    text = "GoodBackend_0 of forward, GoodBackend, compiled by process"
    assert any(text in line for line in caplog.messages)


def test_workers_without_the_folder_get_weights_with_jobs(registry, monkeypatch):
    fetch_from = execute.fetch_from
    monkeypatch.setattr(
        execute,
        "fetch_from",
        lambda folder, inline: fetch_from(folder and "/nowhere", inline),
    )
    executor = CopyingExecutor()

    lowered = lower_steps(registry, executor, names=("sin",))

    expected = lower_steps(registry, names=("sin",))
    assert contents_of_delegates(lowered) == contents_of_delegates(expected)
    first, second = executor.jobs
    assert len(first) < WEIGHT_BYTES
    assert len(second) > WEIGHT_BYTES


def test_a_partition_of_a_lost_worker_is_sent_again(registry):
    executor = CopyingExecutor(OSError("the worker is gone"))

    lowered = lower_steps(registry, executor)

    assert contents_of_delegates(lowered) == contents_of_delegates(
        lower_steps(registry)
    )
    assert len(executor.jobs) == 2 + 1


def test_partitions_lost_twice_run_on_the_host(registry):
    lost = OSError("the worker is gone")
    executor = CopyingExecutor(lost, lost)

    lowered = lower_steps(registry, executor, names=("sin",))

    assert not lowered.delegates
    assert len(executor.jobs) == 2
    assert (
        "the executor failed twice while it compiled: OSError: the worker is gone"
        in str(lowered.report)
    )


@pytest.mark.parametrize(
    ("backend", "operator", "reason"),
    [("refusing", "sinh", "no plan for it"), ("failing", "cosh", "a defect")],
)
def test_reasons_of_workers_are_those_of_a_serial_lowering(
    backend, operator, reason, registry
):
    serial = lower_steps(registry, None, (operator,), (backend,))
    remote = lower_steps(registry, CopyingExecutor(), (operator,), (backend,))

    [given_back] = serial.report.given_back
    assert reason in given_back.reason
    assert str(remote.report.given_back) == str(serial.report.given_back)


def test_workers_of_another_version_are_refused(registry, monkeypatch):
    versions_of = execute.versions_of
    monkeypatch.setattr(
        execute, "versions_of", lambda name: versions_of(name) | {"torch": "2.9"}
    )

    with pytest.raises(
        delegraph.errors.DelegraphError, match=r"has other versions .*torch 2\.9, not"
    ):
        lower_steps(registry, CopyingExecutor())


def flip_last_bit(answer):
    return answer[:-1] + bytes([answer[-1] ^ 1])


def with_two_results(answer):
    """Return a valid message with the result of the only partition twice."""
    header, parts = message.unpack(answer)
    return message.pack(header, [*parts, *parts])


def with_other_protocol(answer):
    return answer.replace(b"\x01", b"\x02", 1)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (flip_last_bit, "truncated or damaged"),
        (with_two_results, "2 results for 1 partitions"),
        (with_other_protocol, "has protocol 2"),
        (lambda answer: answer[:20], "are not a message"),
        (lambda answer: None, "returned NoneType"),
        (
            lambda answer: message.pack({"error": {"kinds": 3}}),
            "error of a worker process cannot be read",
        ),
        (
            lambda answer: message.pack({}, [b"delegraph entry2" + bytes(40)]),
            "damaged, truncated or no entry",
        ),
    ],
)
def test_wrong_answers_of_workers_are_errors(change, error, registry):
    with pytest.raises((FormatError, PluginFailed), match=error):
        lower_steps(registry, CopyingExecutor(change), names=("sin",))


def test_executors_that_fork_are_refused(registry, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    fork = multiprocessing.get_context("fork")

    with ProcessPoolExecutor(1, mp_context=fork) as pool:
        with pytest.raises(OptionError, match="forks its processes") as error:
            lower_steps(registry, pool)

    assert "get_context('spawn')" in error.value.hint
    assert list(tmp_path.iterdir()) == []


class AddColumn(nn.Module):
    """Adds a constant that is not contiguous in memory."""

    def __init__(self, value):
        super().__init__()
        self.column = torch.full((8, 2), value)[:, 0]

    def forward(self, x):
        return torch.sinh(x + self.column)


@pytest.fixture
def executor():
    return CopyingExecutor()


@pytest.fixture
def compile_refused(registry, executor):
    """Return ``Workers``, and a function that compiles a program with them.

    The backend refuses the program, which adds a constant of this ``value``.
    """
    workers = Workers(executor)

    def compile_program(value, seconds):
        program = torch.export.export(AddColumn(value), (torch.ones(8),), strict=False)
        with pytest.raises(Unsupported, match="no plan for it") as error:
            workers.compile(
                "RefusingBackend",
                "troubled/refusing",
                {},
                {"": [program]},
                {"": [[]]},
                Limits(seconds),
            )
        assert error.value.hint == "none"

    yield workers, compile_program
    workers.close()


def test_an_equal_program_is_refused_without_another_job(compile_refused, executor):
    _, compile_program = compile_refused

    compile_program(value=1.0, seconds=1)
    compile_program(value=1.0, seconds=1)

    assert len(executor.jobs) == 1


def test_other_constants_or_limits_are_another_job(compile_refused, executor):
    _, compile_program = compile_refused

    compile_program(value=1.0, seconds=1)
    compile_program(value=2.0, seconds=1)
    compile_program(value=1.0, seconds=9)

    assert len(executor.jobs) == 3


def test_refusals_can_be_forgotten(compile_refused, executor):
    workers, compile_program = compile_refused

    compile_program(value=1.0, seconds=1)
    workers.forget()
    compile_program(value=1.0, seconds=1)

    assert len(executor.jobs) == 2


@pytest.fixture
def pool_of_two():
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=spawn) as pool:
        yield pool


@pytest.mark.slow
def test_a_pool_of_processes_gives_the_blobs_of_a_serial_lowering(
    registry, pool_of_two
):
    names = ("sin", "cos", "sin")

    lowered = lower_steps(registry, pool_of_two, names)

    expected = lower_steps(registry, names=names)
    assert contents_of_delegates(lowered) == contents_of_delegates(expected)


@pytest.mark.slow
def test_a_compiler_that_crashes_ends_the_pool_but_not_the_lowering(
    registry, pool_of_two
):
    lowered = lower_steps(
        registry, pool_of_two, ("sin", "cos", "sin"), ("crashing", "good")
    )

    assert "SIGSEGV" in lowered.report.given_back[0].reason
    with pytest.raises(BrokenProcessPool):
        pool_of_two.submit(print)


@pytest.fixture
def dask_client(folder, monkeypatch):
    """Return a client of a cluster with two worker processes."""
    distributed = pytest.importorskip("distributed", reason="pip install distributed")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("TROUBLED_SECONDS", "5")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.mark.slow
def test_dask_gives_the_blobs_of_a_serial_lowering(registry, dask_client):
    lowered = lower_steps(registry, dask_client.get_executor())

    assert contents_of_delegates(lowered) == contents_of_delegates(
        lower_steps(registry)
    )


@pytest.mark.slow
def test_dask_gives_the_job_of_a_killed_worker_to_another(registry, dask_client):
    expected = contents_of_delegates(lower_steps(registry))
    pids = dask_client.run(os.getpid)
    killed = []

    def kill_a_busy_worker():
        busy = []
        while not busy:
            time.sleep(0.1)
            processing = dask_client.processing()
            busy = [worker for worker, tasks in processing.items() if tasks]
        time.sleep(1)  # so that it compiles: that takes 5 seconds
        pid = pids[busy[0]]
        killed.append(pid)
        os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_a_busy_worker)
    killer.start()
    lowered = lower_steps(registry, dask_client.get_executor())
    killer.join()

    assert contents_of_delegates(lowered) == expected
    assert len(killed) == 1
    assert killed[0] not in dask_client.run(os.getpid).values()


@pytest.mark.slow
def test_loky_replaces_a_killed_worker(registry, folder, monkeypatch):
    loky = pytest.importorskip("loky", reason="pip install loky")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    expected = contents_of_delegates(lower_steps(registry))

    with loky.ProcessPoolExecutor(2) as pool:
        assert contents_of_delegates(lower_steps(registry, pool)) == expected
        os.kill(next(iter(pool._processes)), signal.SIGKILL)
        assert contents_of_delegates(lower_steps(registry, pool)) == expected


@pytest.mark.slow
def test_submitit_runs_one_job_for_each_partition(
    registry, folder, monkeypatch, tmp_path
):
    """Jobs of submitit have ``result()``, but are not ``concurrent.futures.Future``."""
    submitit = pytest.importorskip("submitit", reason="pip install submitit")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    executor = submitit.LocalExecutor(tmp_path / "jobs")
    executor.update_parameters(timeout_min=5)

    lowered = lower_steps(registry, executor)

    assert contents_of_delegates(lowered) == contents_of_delegates(
        lower_steps(registry)
    )
    assert len(list((tmp_path / "jobs").glob("*_result.pkl"))) == 2


def test_temporary_files_are_removed_after_lowering(registry, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    lower_steps(registry, CopyingExecutor())

    assert list(tmp_path.iterdir()) == []


class BrokenPool:
    """A pool of two whose processes have ended."""

    _max_workers = 2

    def submit(self, function, given):
        raise BrokenProcessPool("a process in the pool was terminated")


class ConcurrencyCounter:
    """A context manager; ``most`` is how many threads were in it at a time."""

    def __init__(self):
        self.now = 0
        self.most = 0
        self.lock = threading.Lock()

    def __enter__(self):
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.02)

    def __exit__(self, *_):
        with self.lock:
            self.now -= 1


def test_broken_pools_are_replaced_by_as_many_workers(registry, monkeypatch):
    """A process for each of many partitions would take all memory."""
    counter = ConcurrencyCounter()

    class WorkerInThisProcess:
        def __init__(self, folder, python=None):
            self.pid = os.getpid()
            self.alive = True

        def run(self, job, limits):
            with counter:
                return execute.execute(job), ""

        def close(self):
            pass

    monkeypatch.setattr("delegraph_workers.workers.WorkerProcess", WorkerInThisProcess)
    names = ["sin"] * 6

    lowered = lower_steps(registry, BrokenPool(), names)

    expected = lower_steps(registry, None, names)
    assert contents_of_delegates(lowered) == contents_of_delegates(expected)
    assert counter.most == 2


@pytest.fixture
def workers_of_two():
    """Return ``Workers`` with an executor that runs two jobs at a time."""
    executor = CopyingExecutor()
    executor._max_workers = 2
    workers = Workers(executor)
    yield workers
    workers.close()


def test_backends_of_other_environments_respect_the_pool_size(workers_of_two):
    counter = ConcurrencyCounter()

    class FarBackend(Remote):
        thread_safe = True

        @staticmethod
        def preprocess(edge_program, compile_specs):
            with counter:
                return PreprocessResult(b"far")

        @classmethod
        def limited(cls, limits):
            return cls

    stand_in = workers_of_two.stand_in(
        FarBackend, "delegraph-workers/far", ("delegraph-workers", "1")
    )

    def compile_one(_):
        return stand_in.preprocess(None, []).processed_bytes

    with ThreadPoolExecutor(8) as threads:
        blobs = list(threads.map(compile_one, range(8)))

    assert blobs == [b"far"] * 8
    assert counter.most == 2
    # errors of the backend name its class
    assert stand_in.__name__ == FarBackend.__name__
    assert stand_in.__module__ == FarBackend.__module__


@pytest.mark.parametrize("by_name", [True, False])
def test_executors_that_were_shut_down_are_refused(by_name, registry):
    executor = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    executor.shutdown()
    backend = "good" if by_name else registry.get_partitioner("good")

    with pytest.raises(
        OptionError,
        match="the ProcessPoolExecutor accepts no calls: RuntimeError: cannot schedule",
    ):
        lower_steps(registry, executor, ("sin",), [backend])


def test_compile_specs_follow_their_programs_in_any_method_order(
    registry, workers_of_two
):
    headers = []

    def send(header, *rest):
        headers.append(header)
        raise Unsupported("unsupported", "seen enough")

    workers_of_two.send = send
    program = torch.export.export(nn.Linear(2, 2).eval(), (torch.ones(1, 2),))
    programs = {"prefill": [program], "decode": [program, program]}
    specs = {
        "decode": [[CompileSpec("of", b"decode 0")], [CompileSpec("of", b"decode 1")]],
        "prefill": [[CompileSpec("of", b"prefill 0")]],
    }

    with pytest.raises(Unsupported, match="seen enough"):
        workers_of_two.compile("GoodBackend", "troubled/good", {}, programs, specs)

    sent = []
    for method, ((_, value), *_) in headers[0]["programs"]:
        sent.append((method, bytes.fromhex(value)))
    assert sent == [
        ("prefill", b"prefill 0"),
        ("decode", b"decode 0"),
        ("decode", b"decode 1"),
    ]
