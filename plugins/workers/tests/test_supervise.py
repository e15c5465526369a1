"""Processes that do not speak as workers do, started as an interpreter of another
environment is.
"""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from delegraph.errors import DelegraphError, Unsupported
from delegraph_workers import config, supervise
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


@pytest.fixture
def worker_that(tmp_path):
    """Makes a worker of what its process does; the folder of jobs is ``jobs``."""
    made = []

    def make(body):
        script = tmp_path / "python"
        folder = tmp_path / "jobs"
        folder.mkdir()
        script.write_text(START + body)
        script.chmod(0o700)
        made.append(WorkerProcess(folder, str(script)))
        return made[-1]

    yield make
    for worker in made:
        worker.close()


def files_left(tmp_path):
    return [
        path.name
        for path in (tmp_path / "jobs").iterdir()
        if path.name != "delegraph.toml"
    ]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("say('compiling 3 of 4\\n')", "because it sent b'compiling 3 of 4'"),
        ("say('[' * 60000 + '\\n')", "because it sent"),
        ("say('7\\n')", "because it sent b'7'"),
        ("say('{}\\n')", "because it sent {}"),
        ("say('x' * 100_000)", "because it sent"),
        ("say(BEGUN + BEGUN)", "because it sent {'begun': True}"),
        ("say(BEGUN + DONE)", "left no answer"),
        (
            (
                "open(json.loads(line)['answer'] + '.partial', 'w').write('half');"
                " os.kill(os.getpid(), 9)"
            ),
            "by SIGKILL",
        ),
    ],
)
def test_workers_with_wrong_answers_are_stopped(said, why, worker_that, tmp_path):
    worker = worker_that(
        f"say(READY)\nline = os.fdopen(requests).readline()\n{said}\ntime.sleep(60)"
    )
    with pytest.raises(Unsupported, match="its process") as error:
        worker.run(b"job", Limits())
    assert why in error.value.message
    assert not worker.alive
    assert files_left(tmp_path) == []


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("say('{\"ready\": 99}\\n'); time.sleep(60)", "has protocol 99"),
        ("say('hello\\n'); time.sleep(60)", "a worker sent b'hello'"),
        (
            "print('no licence'); time.sleep(60)",
            "had not started after 0.5 s; it printed: no licence",
        ),
    ],
)
def test_a_worker_that_does_not_start_is_stopped(said, why, worker_that, monkeypatch):
    """One of another version was kept, and the next job waited five minutes for it to
    start.
    """
    monkeypatch.setattr(supervise, "START_LIMIT", 0.5 if "licence" in said else 60.0)
    worker = worker_that(said)
    with pytest.raises(DelegraphError, match=why):
        worker.run(b"job", Limits())
    assert not worker.alive


def test_workers_that_close_their_descriptors_are_stopped(worker_that, monkeypatch):
    monkeypatch.setattr(supervise, "_GRACE_TIME", 0.2)
    worker = worker_that(
        "say(READY)\nos.fdopen(requests).readline()\nos.close(answers)\ntime.sleep(60)"
    )
    with pytest.raises(Unsupported, match="its process was killed by SIGKILL"):
        worker.run(b"job", Limits())
    assert not worker.alive


def test_interrupted_job_gets_no_late_answer(worker_that, tmp_path, monkeypatch):
    worker = worker_that(
        "say(READY)\nfor line in os.fdopen(requests):\n    say(BEGUN)\n   "
        " time.sleep(60)"
    )
    real = WorkerProcess._next_line

    def interrupted(self, until):
        line = real(self, until)
        if "begun" in line:
            raise KeyboardInterrupt
        return line

    monkeypatch.setattr(WorkerProcess, "_next_line", interrupted)
    with pytest.raises(KeyboardInterrupt):
        worker.run(b"job", Limits())
    assert not worker.alive
    assert files_left(tmp_path) == []


def test_a_limit_of_years_is_waited_for(worker_that):
    body = (
        "say(READY)\nfor line in os.fdopen(requests):\n    say(BEGUN)\n   "
        " time.sleep(0.2)\n"
    )
    body += "    answer(line)\n    say(DONE)"
    assert worker_that(body).run(b"job", Limits(seconds=1e9))[0] == b"job"


def test_environments_do_not_query_themselves(tmp_path, monkeypatch):
    """The user's own settings name an environment that has this distribution, too."""
    home = tmp_path / "config" / "delegraph"
    home.mkdir(parents=True)
    asked = tmp_path / "asked"
    python = tmp_path / "python"
    python.write_text(
        f"#!/bin/sh\necho asked >> {asked}\n[ $(wc -l < {asked}) -lt 5 ] || exit"
        f' 3\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o700)
    (home / "delegraph.toml").write_text(
        f'[backends.far]\npython = "{python}"\nbackend = "nobody"\n'
    )
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("DELEGRAPH_CONFIG", raising=False)
    monkeypatch.delenv("DELEGRAPH_PLUGINS", raising=False)
    (setting,) = config.settings()
    with pytest.raises(config.BadSettings, match="no backend 'nobody'"):
        config.description_of(setting)
    assert asked.read_text().count("asked") == 1


@pytest.mark.parametrize(
    "told", [{}, {"protocol": "1", "path": []}, {"protocol": PROTOCOL, "path": 3}]
)
def test_descriptions_in_no_known_form_are_of_no_backend(told, tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{json.dumps(told)}'\n")
    python.chmod(0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(config.BadSettings, match="in an unknown form"):
        config.description_of(config.Setting("far", str(python), "far"))


def is_gone(pid):
    """Whether a process has ended; nobody may have asked for its exit code."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_until(condition):
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


@pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
def test_dead_workers_are_noticed_despite_living_children(
    worker_that, tmp_path, monkeypatch
):
    """A compiler's server had the worker's end of the pipe, which stayed open: the
    lowering waited for it.
    """
    monkeypatch.setattr(supervise, "_CHECK_INTERVAL", 0.05)
    started = tmp_path / "started"
    body = f"""
import subprocess
say(READY)
os.fdopen(requests).readline()
open({str(started)!r}, "w").write(str(subprocess.Popen(["sleep", "60"], close_fds=False).pid))
say(BEGUN)
os._exit(3)
"""
    worker = worker_that(body)
    begin = time.monotonic()
    with pytest.raises(Unsupported, match="its process ended with exit code 3"):
        worker.run(b"job", Limits())
    assert time.monotonic() - begin < 50
    assert wait_until(lambda: is_gone(int(started.read_text())))


@pytest.mark.skipif(
    sys.platform != "linux", reason="other systems send no signal when a pipe is closed"
)
def test_children_of_workers_end_with_the_caller():
    lifeline, ours = os.pipe()
    code = (
        "from delegraph_workers.worker import _end_with; import subprocess,"
        " sys\n_end_with(int(sys.argv[1]))\n"
    )
    code += (
        "child = subprocess.Popen(['sleep', '60'])\nprint(child.pid,"
        " flush=True)\nchild.wait()"
    )
    command = [sys.executable, "-c", code, str(lifeline)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, pass_fds=(lifeline,), start_new_session=True
    ) as worker:
        child = int(worker.stdout.readline())
        os.close(lifeline)
        assert not is_gone(child)
        os.close(ours)
        assert wait_until(lambda: is_gone(child))
        assert worker.wait() == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="it counts what is in /proc")
def test_failed_starts_leave_no_open_descriptors(tmp_path):
    before = os.listdir("/proc/self/fd")
    with pytest.raises(DelegraphError, match="no worker could be started"):
        WorkerProcess(tmp_path, str(tmp_path / "nowhere"))
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_relative_config_folders_are_not_read(tmp_path, monkeypatch):
    """The settings name executables."""
    (tmp_path / "delegraph").mkdir()
    (tmp_path / "delegraph/delegraph.toml").write_text(
        f'[backends.far]\npython = "{sys.executable}"\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DELEGRAPH_CONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(config.sys, "platform", "linux")
    for relative in (".", "./", ""):
        monkeypatch.setenv("XDG_CONFIG_HOME", relative)
        assert config.settings() == []
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert [setting.name for setting in config.settings()] == ["far"]


def test_variables_of_this_interpreter_are_not_passed_on(tmp_path, monkeypatch):
    for variable in (
        "PYTHONHOME",
        "PYTHONPATH",
        "PYTHONEXECUTABLE",
        "DELEGRAPH_PLUGINS",
    ):
        monkeypatch.setenv(variable, "/of/this/one")
    monkeypatch.setenv("LICENCE", "theirs")
    there = config.variables_for_other(tmp_path)
    assert "/of/this/one" not in there.values()
    assert there["LICENCE"] == "theirs"


@pytest.mark.parametrize(
    ("kinds", "kind"),
    [
        (["KeyboardInterrupt", "BaseException", "object"], Exception),
        (["SystemExit", "BaseException", "object"], SystemExit),
        (["CompilerBug", "ArithmeticError", "Exception"], ArithmeticError),
        (["UnicodeDecodeError", "UnicodeError", "ValueError"], RuntimeError),
    ],
)
def test_errors_of_workers_become_local_error_classes(kinds, kind):
    assert type(read_error({"kinds": kinds, "message": "so", "trace": ""}, {})) is kind
