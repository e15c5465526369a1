"""The process of a command survives plugins that crash, exit, print or hang."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import pytest

LIGHT = """
import os
from delegraph.plugin import BackendSpec, CommandSpec, hookimpl

def act(when):
    if os.environ.get("WHEN") == when:
        import atexit, ctypes, sys, tempfile, time
        # exec(text) would make Python end by SIGINT after any KeyboardInterrupt
        names = dict(C=ctypes.CDLL(None), atexit=atexit, ctypes=ctypes, os=os, sys=sys, tempfile=tempfile, time=time)
        exec(compile(os.environ["ACT"], "act", "exec"), names)

act("light import")

@hookimpl
def delegraph_backends():
    return [BackendSpec("rough", "acme_rough:RoughBackend", "RoughBackend", 1)]

@hookimpl
def delegraph_commands():
    return [CommandSpec("rough", "acme_rough_command:Rough")]
"""
COMMAND = """
from acme_rough_light import act
from delegraph.command import Outcome

class Rough:
    @staticmethod
    def add_arguments(parser):
        pass

    @staticmethod
    def run(args):
        act("command")
        return Outcome("acme.rough/1", {}, "done")
"""


class Process(subprocess.Popen):
    """A process that is killed if the test fails, instead of waited for."""

    def __exit__(self, kind, *raised):
        if kind is not None:
            self.kill()
        super().__exit__(kind, *raised)


@pytest.fixture
def start_delegraph(site, tmp_path):
    """Return a function that starts ``delegraph`` with a plugin that executes ``act``.

    ``when`` is "command" or "light import". A second plugin works.
    """
    site.plugin("acme-rough", LIGHT, version="1.5", module="acme_rough_light")
    (site.folder / "acme_rough_command.py").write_text(COMMAND)
    site.backend("good-one", "good")
    path = os.pathsep.join([str(site.folder), *filter(None, sys.path)])

    def begin(when, act, *arguments):
        words = [sys.executable, "-m", "delegraph", *arguments]
        variables = {**os.environ, "WHEN": when, "ACT": act, "PYTHONPATH": path}
        variables |= {
            "DELEGRAPH_PLUGINS": "acme-rough,good-one",
            "TMPDIR": str(tmp_path),
        }
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return Process(
            words, cwd=tmp_path, env=variables, start_new_session=True, **pipes
        )

    return begin


@pytest.fixture
def run_delegraph(start_delegraph):
    """Return a function that starts ``delegraph`` the same way, and waits for its end."""

    def run(when, act, *arguments):
        with start_delegraph(when, act, *arguments) as process:
            out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    return run


@pytest.mark.parametrize("when", ["command", "light import"])
def test_native_crash_shows_the_file_of_the_plugin(run_delegraph, when):
    completed = run_delegraph(when, "ctypes.string_at(0)", "rough")
    assert completed.returncode == -signal.SIGSEGV
    assert completed.stdout == ""
    assert "Fatal Python error: Segmentation fault" in completed.stderr
    assert re.search(
        r'File ".+acme_rough_light\.py", line \d+ in act', completed.stderr
    )


@pytest.mark.parametrize("act", ["os._exit(0)", "sys.exit(0)"])
def test_an_exit_in_a_command_is_the_plugins_failure(run_delegraph, act):
    completed = run_delegraph("command", act, "rough", "--json")
    found = json.loads(completed.stdout)
    assert completed.returncode == 1
    assert found["code"] == "plugin-failed"
    assert found["raised_by"] == "run of Rough (acme-rough 1.5)"


@pytest.mark.parametrize("act", ["os._exit(0)", "sys.exit(0)", "1 / 0"])
def test_light_module_that_exits_is_listed_as_broken(run_delegraph, act):
    completed = run_delegraph("light import", act, "backends", "--json")
    found = json.loads(completed.stdout)
    assert completed.returncode == 0
    assert [b["name"] for b in found["backends"]] == ["good"]
    [row] = [p for p in found["plugins_without_backends"] if p["name"] == "acme-rough"]
    assert row["status"] == "broken"


def test_prints_of_a_light_module_do_not_reach_stdout(run_delegraph):
    act = (
        "print('from Python'); os.write(1, b'at once\\n'); C.printf(b'from a"
        " buffer\\n')"
    )
    completed = run_delegraph("light import", act, "backends", "--json")

    assert json.loads(completed.stdout)["schema"] == "delegraph.backends/1"
    for text in ("from Python", "at once", "from a buffer"):
        assert text in completed.stderr


def test_a_light_module_that_hangs_shows_its_stack(run_delegraph, site):
    patch = "import delegraph.discovery.import_by_name as module\nmodule.HANG = 0.2\n"
    (site.folder / "sitecustomize.py").write_text(patch)
    completed = run_delegraph("light import", "C.usleep(600_000)", "backends")

    assert completed.returncode == 0
    assert re.search(r"^good +ok ", completed.stdout, re.MULTILINE)
    assert re.search(
        r'Timeout .+File ".+acme_rough_light\.py", line \d+ in act',
        completed.stderr,
        re.DOTALL,
    )
    assert "acme_rough_light" not in run_delegraph("", "", "backends").stderr


def test_teardown_of_native_code_does_not_change_the_exit_code(run_delegraph):
    act = (
        "os.end = ctypes.CFUNCTYPE(None)(lambda: C._exit(7)); C.__cxa_atexit(os.end,"
        " None, None)"
    )
    completed = run_delegraph("command", act, "rough")

    assert completed.returncode == 0
    assert completed.stdout == "done\n"
    assert completed.stderr == ""


def test_exit_handlers_of_python_run(run_delegraph, tmp_path):
    completed = run_delegraph(
        "command",
        "os.kept = tempfile.TemporaryDirectory(prefix='kept-'); print(os.kept.name)",
        "rough",
    )

    assert str(tmp_path / "kept-") in completed.stderr
    assert completed.returncode == 0
    assert list(tmp_path.glob("kept-*")) == []


WAITING = "print('waiting', flush=True); [time.sleep(0.05) for _ in range(2_000)]"
"""Sleep in short pieces, because Python handles some signals only after a sleep."""


@pytest.fixture(autouse=True)
def nothing_is_ignored():
    """Stop ignoring SIGINT, which tests in the background of a shell inherit as
    ignored.
    """
    before = {
        number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)
    }
    for number, handler in before.items():
        if handler is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("when", ["command", "light import"])
def test_signal_ends_a_command_with_its_exit_code(
    start_delegraph, tmp_path, number, when
):
    act = f"os.kept = tempfile.TemporaryDirectory(prefix='kept-'); {WAITING}"
    texts = {signal.SIGINT: "interrupted\n", signal.SIGTERM: "stopped by SIGTERM\n"}

    with start_delegraph(when, act, "rough") as process:
        assert process.stderr.readline() == "waiting\n"
        os.killpg(process.pid, number)
        out, err = process.communicate(timeout=60)

    assert process.returncode == 128 + number
    assert out == ""
    assert err == texts[number]
    assert list(tmp_path.glob("kept-*")) == []
