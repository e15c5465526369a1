"""The supervisor of worker processes stops those that do not keep its protocol."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from delegraph.errors import DelegraphError, Unsupported
from delegraph_workers import supervise
from delegraph_workers.failures import read_error
from delegraph_workers.message import PROTOCOL
from delegraph_workers.supervise import Limits, WorkerProcess

START = f"""#!{sys.executable}
import json, os, sys, time
requests, answers, lifeline = map(int, sys.argv[-3:])
def say(text):
    os.write(answers, text.encode())
READY = json.dumps({{"ready": {PROTOCOL}}}) + "\\n"
BEGUN, DONE = '{{"begun": true}}\\n', '{{"done": true}}\\n'
def answer(line):
    request = json.loads(line)
    with open(request["answer"], "wb") as file:
        file.write(open(request["job"], "rb").read())
"""
"""The beginning of a worker's script, which has the names of the protocol."""


@pytest.fixture
def worker_that(tmp_path):
    """Return a function that starts a worker process which runs this code."""
    workers = []

    def start(code):
        script = tmp_path / "python"
        script.write_text(START + textwrap.dedent(code))
        script.chmod(0o700)
        folder_of_jobs = tmp_path / "jobs"
        folder_of_jobs.mkdir()
        worker = WorkerProcess(folder_of_jobs, str(script))
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        worker.close()


def files_of_jobs(tmp_path):
    """Return the names of files in the folder of jobs, without the settings."""
    names = [path.name for path in (tmp_path / "jobs").iterdir()]
    return [name for name in names if name != "delegraph.toml"]


WRONG_ANSWERS = {
    "no JSON": ("say('compiling 3 of 4\\n')", "because it sent b'compiling 3 of 4'"),
    "deep JSON": ("say('[' * 60000 + '\\n')", "because it sent"),
    "no object": ("say('7\\n')", "because it sent b'7'"),
    "an empty object": ("say('{}\\n')", "because it sent {}"),
    "an endless line": ("say('x' * 100_000)", "because it sent"),
    "begun twice": ("say(BEGUN + BEGUN)", "because it sent {'begun': True}"),
    "done without an answer": ("say(BEGUN + DONE)", "left no answer"),
    "killed while it writes": (
        "open(json.loads(line)['answer'] + '.partial', 'w').write('half');"
        " os.kill(os.getpid(), 9)",
        "by SIGKILL",
    ),
}
"""Name -> the code of a worker after it read a job, and the reason of the refusal."""


@pytest.mark.parametrize("name", WRONG_ANSWERS)
def test_workers_with_wrong_answers_are_stopped(name, worker_that, tmp_path):
    code, reason = WRONG_ANSWERS[name]
    worker = worker_that(
        f"say(READY)\nline = os.fdopen(requests).readline()\n{code}\ntime.sleep(60)"
    )

    with pytest.raises(Unsupported, match="its process") as error:
        worker.run(b"job", Limits())

    assert reason in error.value.message
    assert not worker.alive
    assert files_of_jobs(tmp_path) == []


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("say('{\"ready\": 99}\\n')", "has protocol 99"),
        (
            "say('hello\\n')",
            "a worker sent an invalid message while it started: b'hello'",
        ),
    ],
)
def test_workers_with_a_wrong_greeting_are_stopped(code, reason, worker_that):
    """The next job would wait for a start that never comes."""
    worker = worker_that(f"{code}\ntime.sleep(60)")

    with pytest.raises(DelegraphError, match=reason):
        worker.run(b"job", Limits())

    assert not worker.alive


def test_workers_that_do_not_start_in_time_are_stopped(worker_that, monkeypatch):
    monkeypatch.setattr(supervise, "START_LIMIT", 0.5)
    worker = worker_that("print('no licence')\ntime.sleep(60)")

    with pytest.raises(
        DelegraphError, match="had not started after 0.5 s; it printed: no licence"
    ):
        worker.run(b"job", Limits())

    assert not worker.alive


def test_workers_that_close_their_descriptors_are_stopped(worker_that, monkeypatch):
    monkeypatch.setattr(supervise, "_GRACE_TIME", 0.2)
    worker = worker_that("""
        say(READY)
        os.fdopen(requests).readline()
        os.close(answers)
        time.sleep(60)
    """)

    with pytest.raises(Unsupported, match="its process was killed by SIGKILL"):
        worker.run(b"job", Limits())

    assert not worker.alive


def test_interrupted_jobs_stop_the_worker(worker_that, tmp_path, monkeypatch):
    """The next job would otherwise get the late answer of the interrupted one."""
    worker = worker_that("""
        say(READY)
        for line in os.fdopen(requests):
            say(BEGUN)
            time.sleep(60)
    """)
    next_line = WorkerProcess._next_line

    def interrupt_after_begin(self, until):
        line = next_line(self, until)
        if "begun" in line:
            raise KeyboardInterrupt
        return line

    monkeypatch.setattr(WorkerProcess, "_next_line", interrupt_after_begin)

    with pytest.raises(KeyboardInterrupt):
        worker.run(b"job", Limits())

    assert not worker.alive
    assert files_of_jobs(tmp_path) == []


def test_time_limits_may_be_longer_than_the_system_can_wait(worker_that):
    worker = worker_that("""
        say(READY)
        for line in os.fdopen(requests):
            say(BEGUN)
            time.sleep(0.2)
            answer(line)
            say(DONE)
    """)

    answer, _ = worker.run(b"job", Limits(seconds=1e9))

    assert answer == b"job"


def is_gone(pid):
    """Return whether a process has ended; it may still be a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return True
    state = fields[0]
    return state == "Z"


def becomes_true(condition):
    """Return whether a condition is met within 20 seconds."""
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


@pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
def test_dead_workers_are_noticed_despite_living_children(
    worker_that, tmp_path, monkeypatch
):
    """A child that the compiler started keeps the worker's end of the pipe open."""
    monkeypatch.setattr(supervise, "_CHECK_INTERVAL", 0.05)
    pid_file = tmp_path / "pid"
    worker = worker_that(f"""
        import subprocess
        say(READY)
        os.fdopen(requests).readline()
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
        open({str(pid_file)!r}, "w").write(str(child.pid))
        say(BEGUN)
        os._exit(3)
    """)

    start = time.monotonic()
    with pytest.raises(Unsupported, match="its process ended with exit code 3"):
        worker.run(b"job", Limits())

    assert time.monotonic() - start < 50  # the child sleeps for 60 seconds
    child = int(pid_file.read_text())
    assert becomes_true(lambda: is_gone(child))


WORKER_WITH_CHILD = """
import subprocess, sys
from delegraph_workers.worker import _end_with

_end_with(int(sys.argv[1]))
child = subprocess.Popen(["sleep", "60"])
print(child.pid, flush=True)
child.wait()
"""


@pytest.mark.skipif(
    sys.platform != "linux", reason="other systems send no signal when a pipe is closed"
)
def test_children_of_workers_end_with_the_caller():
    """The caller holds one end of a pipe; the system closes it when the caller ends."""
    end_of_worker, end_of_caller = os.pipe()
    command = [sys.executable, "-c", WORKER_WITH_CHILD, str(end_of_worker)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        pass_fds=(end_of_worker,),
        start_new_session=True,
    ) as worker:
        child = int(worker.stdout.readline())
        os.close(end_of_worker)
        assert not is_gone(child)

        os.close(end_of_caller)

        assert becomes_true(lambda: is_gone(child))
        assert worker.wait() == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="it counts what is in /proc")
def test_failed_starts_leave_no_open_descriptors(tmp_path):
    open_before = len(os.listdir("/proc/self/fd"))

    with pytest.raises(DelegraphError, match="no worker could be started"):
        WorkerProcess(tmp_path, str(tmp_path / "nowhere"))

    assert len(os.listdir("/proc/self/fd")) == open_before


@pytest.mark.parametrize(
    ("remote_bases", "local_class"),
    [
        (["KeyboardInterrupt", "BaseException", "object"], Exception),
        (["SystemExit", "BaseException", "object"], SystemExit),
        (["CompilerBug", "ArithmeticError", "Exception"], ArithmeticError),
        # a UnicodeDecodeError needs five arguments
        (["UnicodeDecodeError", "UnicodeError", "ValueError"], RuntimeError),
    ],
)
def test_errors_of_workers_become_local_error_classes(remote_bases, local_class):
    """``remote_bases`` are the names of the error's class and of its base classes."""
    error = read_error({"kinds": remote_bases, "message": "so", "trace": ""}, {})

    assert type(error) is local_class
