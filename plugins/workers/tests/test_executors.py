"""Executors of other processes and machines: which of them do, and what a lost worker
costs.

Most tests are of an executor that runs a copy of what it is given in a thread: to the
plugin it looks like any other.
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
    def __init__(self, *names):
        super().__init__()
        self.names = names
        self.weight = nn.Parameter(torch.linspace(0, 1, 512 * 1024).reshape(512, 1024))

    def forward(self, x):
        for name in self.names:
            x = getattr(torch, name)(x + self.weight)
        return x


def lower_steps(
    registry,
    executor=None,
    names=("sin", "sin"),
    backends=("good",),
    options=None,
    **choices,
):
    model = Steps(*names).eval()
    compiler = Compiler(executor=executor, **choices)
    given = {
        "backends": list(backends),
        "registry": registry,
        "compiler": compiler,
        "options": options,
    }
    return delegraph.lower(model, (torch.ones(512, 1024),), **given)


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


class Copying:
    """The face of an executor; ``wrong`` takes the place of the first answers."""

    def __init__(self, *wrong):
        self.wrong = list(wrong)
        self.jobs = []

    def submit(self, function, job):
        future: Future = Future()
        function, job = pickle.loads(pickle.dumps((function, job)))
        assert function in (execute.run, execute.warm)
        if function is execute.warm:
            future.set_result(0)
            return future
        self.jobs.append(job)
        wrong = self.wrong.pop(0) if self.wrong else None
        if isinstance(wrong, Exception):
            future.set_exception(wrong)
        else:
            future.set_result(function(job) if wrong is None else wrong(function(job)))
        return future


def test_blobs_are_those_of_a_serial_lowering(registry, caplog):
    with caplog.at_level(logging.INFO, "delegraph.progress"):
        pool = Copying()
        assert contents_of_delegates(
            lower_steps(registry, pool)
        ) == contents_of_delegates(lower_steps(registry))
    # the weight has 2 MB
    assert len(pool.jobs) == 2
    assert all(len(job) < 20_000 for job in pool.jobs)
    assert any(
        "GoodBackend_0 of forward, GoodBackend, compiled by process" in line
        for line in caplog.messages
    )


def test_a_cache_and_a_pool(registry, tmp_path):
    pool = Copying()
    expected = contents_of_delegates(lower_steps(registry))
    lowered = lower_steps(registry, pool, cache=tmp_path / "cache")
    assert contents_of_delegates(lowered) == expected
    jobs = len(pool.jobs)
    lowered = lower_steps(registry, pool, cache=tmp_path / "cache")
    assert contents_of_delegates(lowered) == expected
    assert len(pool.jobs) == jobs == 2


def test_progress_names_partitions_despite_a_cache(
    registry, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(registry.get_backend("good"), "keeps_names", False)
    with caplog.at_level(logging.INFO, "delegraph.progress"):
        lower_steps(registry, Copying(), cache=tmp_path / "cache")
    assert any(
        "GoodBackend_0 of forward, GoodBackend, compiled by process" in line
        for line in caplog.messages
    )


def test_workers_without_the_folder_get_weights_with_jobs(registry, monkeypatch):
    real = execute.fetch_from
    monkeypatch.setattr(
        execute,
        "fetch_from",
        lambda folder, inline: real(folder and "/nowhere", inline),
    )
    pool = Copying()
    assert contents_of_delegates(
        lower_steps(registry, pool, names=("sin",))
    ) == contents_of_delegates(lower_steps(registry, names=("sin",)))
    assert [len(job) > 2_000_000 for job in pool.jobs] == [False, True]


def test_lost_worker_causes_one_retry(registry):
    pool = Copying(OSError("the worker is gone"))
    assert contents_of_delegates(lower_steps(registry, pool)) == contents_of_delegates(
        lower_steps(registry)
    )
    assert len(pool.jobs) == 3


def test_partitions_lost_twice_run_on_the_host(registry):
    pool = Copying(*[OSError("the worker is gone")] * 2)
    result = lower_steps(registry, pool, names=("sin",))
    assert not result.delegates
    assert len(pool.jobs) == 2
    assert "the executor lost the partition twice: OSError: the worker is gone" in str(
        result.report
    )


@pytest.mark.parametrize("names", [("cosh",), ("sinh",)])
def test_errors_are_those_of_a_serial_lowering(names, registry):
    told = []
    for executor in (None, Copying()):
        try:
            told.append(
                str(
                    lower_steps(
                        registry, executor, names, ("failing", "refusing")
                    ).report.given_back
                )
            )
        except PluginFailed as e:
            told.append((str(e).partition(" (")[0], str(e.source), type(e.__cause__)))
    assert told[0] == told[1]


def test_workers_of_another_version_are_refused(registry, monkeypatch):
    pool = Copying()
    real = execute.versions_of
    monkeypatch.setattr(
        execute, "versions_of", lambda name: real(name) | {"torch": "2.9"}
    )
    with pytest.raises(
        delegraph.errors.DelegraphError, match=r"has other versions .*torch 2\.9, not"
    ):
        lower_steps(registry, pool)


def damage(answer):
    return answer[:-1] + bytes([answer[-1] ^ 1])


def with_wrong_constant(answer):
    """A digest that fits, and a result with a piece of a constant that is none."""
    header, parts = message.unpack(answer)
    return message.pack(header, [*parts, *parts])


def with_foreign_version(answer):
    return answer.replace(b"\x01", b"\x02", 1)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (damage, "truncated or damaged"),
        (with_wrong_constant, "2 results for 1 partitions"),
        (with_foreign_version, "has protocol 2"),
        (lambda answer: answer[:20], "no message"),
        (lambda answer: None, "returned NoneType"),
        (
            lambda answer: message.pack({"error": {"kinds": 3}}),
            "error in an unknown form",
        ),
        (
            lambda answer: message.pack({}, [b"delegraph entry2" + bytes(40)]),
            "damaged, truncated or no entry",
        ),
    ],
)
def test_answers_are_not_trusted(wrong, text, registry):
    with pytest.raises((FormatError, PluginFailed), match=text):
        lower_steps(registry, Copying(wrong), names=("sin",))


def test_forked_processes_are_refused(registry, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        with pytest.raises(OptionError, match="forks its processes") as error:
            lower_steps(registry, pool)
    assert "get_context('spawn')" in error.value.hint
    assert list(tmp_path.iterdir()) == []


class Column(nn.Module):
    """Adds a constant with gaps, whose bytes have no address of their own."""

    def __init__(self, value):
        super().__init__()
        self.column = torch.full((8, 2), value)[:, 0]

    def forward(self, x):
        return torch.sinh(x + self.column)


def test_a_refusal_is_of_the_constants_and_the_limits(registry):
    pool = Copying()
    there = Workers(pool)

    def refused(value, limits):
        program = torch.export.export(Column(value), (torch.ones(8),), strict=False)
        with pytest.raises(Unsupported, match="no plan for it") as error:
            there.compile(
                "RefusingBackend",
                "troubled/refusing",
                {},
                {"": [program]},
                {"": [[]]},
                limits,
            )
        assert error.value.hint == "none"
        return len(pool.jobs)

    try:
        asked = [
            refused(value, Limits(seconds))
            for value, seconds in [(1.0, 1), (1.0, 1), (2.0, 1), (1.0, 9)]
        ]
        assert asked == [1, 1, 2, 3]
        there.forget()
        assert refused(1.0, Limits(1)) == 4
    finally:
        there.close()


@pytest.mark.slow
def test_pools_survive_a_process_that_dies(registry, monkeypatch):
    expected = contents_of_delegates(lower_steps(registry, names=("sin", "cos", "sin")))
    with ProcessPoolExecutor(
        2, mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        lowered = lower_steps(registry, pool, ("sin", "cos", "sin"))
        assert contents_of_delegates(lowered) == expected
    with ProcessPoolExecutor(
        2, mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        result = lower_steps(
            registry, pool, ("sin", "cos", "sin"), ("crashing", "good")
        )
        assert "SIGSEGV" in result.report.given_back[0].reason
        with pytest.raises(BrokenProcessPool):
            pool.submit(print)


@pytest.mark.slow
def test_dask_and_a_worker_that_is_killed(registry, folder, monkeypatch):
    """The scheduler gives the job of a lost worker to another one."""
    distributed = pytest.importorskip("distributed", reason="pip install distributed")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("TROUBLED_SECONDS", "5")
    expected = contents_of_delegates(lower_steps(registry))
    killed = []
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as cluster:
        with distributed.Client(cluster) as client:
            lowered = lower_steps(registry, client.get_executor())
            assert contents_of_delegates(lowered) == expected
            pids = client.run(os.getpid)

            def kill_a_busy_one():
                while not (
                    busy := [
                        worker for worker, tasks in client.processing().items() if tasks
                    ]
                ):
                    time.sleep(0.1)
                time.sleep(1)
                killed.append(pids[busy[0]])
                os.kill(pids[busy[0]], signal.SIGKILL)

            killer = threading.Thread(target=kill_a_busy_one)
            killer.start()
            lowered = lower_steps(registry, client.get_executor())
            assert contents_of_delegates(lowered) == expected
            killer.join()
            assert len(killed) == 1
            assert not {*killed} & {*client.run(os.getpid).values()}


@pytest.mark.slow
def test_loky_and_a_worker_that_is_killed(registry, folder, monkeypatch):
    loky = pytest.importorskip("loky", reason="pip install loky")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    expected = contents_of_delegates(lower_steps(registry))
    with loky.ProcessPoolExecutor(2) as pool:
        assert contents_of_delegates(lower_steps(registry, pool)) == expected
        os.kill(next(iter(pool._processes)), signal.SIGKILL)
        assert contents_of_delegates(lower_steps(registry, pool)) == expected


@pytest.mark.slow
def test_submitit_compiles_as_this_process_does(
    registry, folder, monkeypatch, tmp_path
):
    """Its jobs are no futures of concurrent.futures, and have ``result()`` all the
    same.
    """
    submitit = pytest.importorskip("submitit", reason="pip install submitit")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    pool = submitit.LocalExecutor(tmp_path / "jobs")
    pool.update_parameters(timeout_min=5)
    assert contents_of_delegates(lower_steps(registry, pool)) == contents_of_delegates(
        lower_steps(registry)
    )
    # one job a partition, and none to warm up
    assert len(list((tmp_path / "jobs").glob("*_result.pkl"))) == 2


def test_everything_is_put_away(registry, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    lower_steps(registry, Copying())
    assert list(tmp_path.iterdir()) == []


class Broken:
    """A pool whose processes have ended."""

    _max_workers = 2

    def submit(self, function, given):
        raise BrokenProcessPool("a process in the pool was terminated")


class Counting:
    """Counts how many do something at a time."""

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
    """Each partition had one, at the same time: a broken pool of two took all memory."""
    counting = Counting()

    class Here:
        def __init__(self, folder, python=None):
            self.pid = os.getpid()
            self.alive = True

        def run(self, job, limits):
            with counting:
                return execute.execute(job), ""

        def close(self):
            pass

    monkeypatch.setattr("delegraph_workers.workers.WorkerProcess", Here)
    names = ["sin"] * 6
    assert contents_of_delegates(
        lower_steps(registry, Broken(), names)
    ) == contents_of_delegates(lower_steps(registry, None, names))
    assert counting.most == 2


def test_separate_environments_respect_the_size_of_the_pool():
    counting = Counting()
    pool = Copying()
    pool._max_workers = 2

    class FarBackend(Remote):
        thread_safe = True

        @staticmethod
        def preprocess(edge_program, compile_specs):
            with counting:
                return PreprocessResult(b"far")

        @classmethod
        def limited(cls, limits):
            return cls

    there = Workers(pool)
    try:
        made = there.stand_in(
            FarBackend, "delegraph-workers/far", ("delegraph-workers", "1")
        )
        assert made.__name__ == FarBackend.__name__
        assert made.__module__ == FarBackend.__module__
        with ThreadPoolExecutor(8) as threads:
            results = list(
                threads.map(
                    lambda _: made.preprocess(None, []).processed_bytes, range(8)
                )
            )
        assert results == [b"far"] * 8
        assert counting.most == 2
    finally:
        there.close()


@pytest.mark.parametrize("backends", [("good",), "partitioner"])
def test_executors_that_were_shut_down_are_refused(backends, registry):
    """It was an error of another module, or the partitions were the host's."""
    pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    pool.shutdown()
    given = (
        [registry.get_partitioner("good")] if backends == "partitioner" else backends
    )
    with pytest.raises(
        OptionError,
        match="the ProcessPoolExecutor accepts no calls: RuntimeError: cannot schedule",
    ):
        lower_steps(registry, pool, ("sin",), given)


def test_settings_follow_their_programs_in_any_method_order(registry):
    there = Workers(Copying())
    jobs = []

    def send(header, *given):
        jobs.append(header)
        raise Unsupported("unsupported", "seen enough")

    there.send = send
    program = torch.export.export(nn.Linear(2, 2).eval(), (torch.ones(1, 2),))
    programs = {"prefill": [program], "decode": [program, program]}
    specs = {
        name: [
            [CompileSpec("of", f"{name} {k}".encode())]
            for k in range(len(programs[name]))
        ]
        for name in programs
    }
    try:
        with pytest.raises(Unsupported, match="seen enough"):
            there.compile(
                "GoodBackend",
                "troubled/good",
                {},
                programs,
                dict(reversed(specs.items())),
            )
    finally:
        there.close()
    told = [
        (method, bytes.fromhex(given[0][1]).decode())
        for method, given in jobs[0]["programs"]
    ]
    assert told == [
        ("prefill", "prefill 0"),
        ("decode", "decode 0"),
        ("decode", "decode 1"),
    ]
