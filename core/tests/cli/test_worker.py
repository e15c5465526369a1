"""However a plugin ends or holds up the process that carries a command out: exit code, error, and the other plugins."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from delegraph.cli import worker

PLUGIN = """
import os
from acme_rough_light import act
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.formats import DelegateFormat
from delegraph.partitioner import CapabilityPartitioner
from delegraph.runtime import BackendRuntime

act("import")

class RoughBackend(BackendDetails):
    @staticmethod
    def preprocess(edge_program, compile_specs):
        act("compile")
        return PreprocessResult(b"rough")

class RoughPartitioner(CapabilityPartitioner):
    def __init__(self):
        super().__init__(lambda node: None, "RoughBackend")

    def partition(self, program):
        act("partition")
        return super().partition(program)

class RoughRuntime(BackendRuntime):
    @staticmethod
    def load(processed_bytes, compile_specs, named_data):
        act("load")
        return lambda x: (act("call"), x.relu())[1:]

class RoughFormat(DelegateFormat):
    backend_id = "RoughBackend"
"""
COMMAND = """
from acme_rough_light import act

class Rough:
    @staticmethod
    def add_arguments(parser):
        pass

    @staticmethod
    def run(args):
        act("command")
"""
LIGHT = """
import os
from delegraph.plugin import BackendSpec, CommandSpec, FormatSpec, PartitionerSpec, RuntimeSpec, hookimpl

def act(when):
    if os.environ.get("WHEN") == when:
        import ctypes, signal, time
        # exec(text) would make Python end by SIGINT after any KeyboardInterrupt
        code = compile(os.environ["ACT"], "act", "exec")
        exec(code, dict(C=ctypes.CDLL(None), ctypes=ctypes, os=os, signal=signal, time=time))

act("light import")

@hookimpl
def delegraph_backends():
    return [BackendSpec("rough", "acme_rough:RoughBackend", "RoughBackend", 1)]

@hookimpl
def delegraph_partitioners():
    return [PartitionerSpec("rough", "rough", "acme_rough:RoughPartitioner", default=True)]

@hookimpl
def delegraph_runtimes():
    return [RuntimeSpec("rough", "acme_rough:RoughRuntime")]

@hookimpl
def delegraph_formats():
    return [FormatSpec(".rough", "acme_rough:RoughFormat")]

@hookimpl
def delegraph_commands():
    return [CommandSpec("rough", "acme_rough_command:Rough")]

@hookimpl
def delegraph_after_lower(result):
    act("after_lower")
"""
MODEL = """
import os
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)

def model():
    if os.environ.get("WHEN") == "model":
        os._exit(0)
    return Model().eval(), (torch.ones(3),)
"""


class Process(subprocess.Popen):
    """Is killed where a test fails, which would wait for its end without end otherwise."""

    def __exit__(self, kind, *raised):
        if kind is not None:
            self.kill()
        super().__exit__(kind, *raised)


@pytest.fixture
def start(site, tmp_path):
    """Starts the command line where a plugin does ``act`` ``when`` that comes; a good plugin is there, too."""
    site.plugin("acme-rough", LIGHT, version="1.5", module="acme_rough_light")
    (site.folder / "acme_rough.py").write_text(PLUGIN)
    (site.folder / "acme_rough_command.py").write_text(COMMAND)
    site.backend("good-one", "good")
    (tmp_path / "net.py").write_text(MODEL)
    path = os.pathsep.join([str(site.folder), *filter(None, sys.path)])

    def begin(when, act, *arguments, **options):
        words = [sys.executable, "-m", "delegraph", *arguments]
        only = "acme-rough,good-one,acme-second"
        variables = {**os.environ, "WHEN": when, "ACT": act, "PYTHONPATH": path, "DELEGRAPH_PLUGINS": only}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
        return Process(words, cwd=tmp_path, env=variables, **pipes)

    return begin


@pytest.fixture
def delegraph(start):
    """The same, and waits for its end."""

    def run(when, act, *arguments):
        with start(when, act, *arguments) as process:
            out, err = process.communicate(timeout=300)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    return run


LOWER = ("lower", "net.py", "--backend", "rough", "--verify", "-o", "out.rough")
PLACES = {
    "import": r"importing file format 'acme_rough:RoughFormat' of acme-rough 1\.5",
    "partition": r"partition of RoughPartitioner \(acme-rough 1\.5\)",
    "compile": r"preprocess of RoughBackend \(acme-rough 1\.5\), at partition RoughBackend_0 of method forward",
    "load": r"load of RoughRuntime \(acme-rough 1\.5\), at partition RoughBackend_0 of method forward",
    "call": r"delegate of RoughRuntime \(acme-rough 1\.5\), at partition RoughBackend_0 of method forward",
    "after_lower": r"delegraph_after_lower of acme-rough \(acme-rough 1\.5\)",
}
ZEROES = ["C.exit(0)", "C._exit(0)", "os._exit(0)"]
FAST = [("import", ZEROES[0]), ("compile", ZEROES[1]), ("load", ZEROES[2])]
SLOW = [(when, act) for when in PLACES for act in ZEROES if (when, act) not in FAST]


@pytest.mark.parametrize(("when", "act"), [*FAST, *(pytest.param(*row, marks=pytest.mark.slow) for row in SLOW)])
def test_no_end_of_a_lowering_that_is_not_done_has_exit_code_0(delegraph, tmp_path, when, act):
    done = delegraph(when, act, *LOWER, "--json")
    said = json.loads(done.stdout)
    assert done.returncode == 1 and not (tmp_path / "out.rough").exists()
    if (when, act) == ("import", "os._exit(0)"):  # which is a Python function, and raises there
        assert said["code"] == "plugin-broken" and "os._exit(0) was called" in said["message"]
        return
    assert (said["schema"], said["code"]) == ("delegraph.error/1", "plugin-crashed")
    assert re.fullmatch(PLACES[when], said["raised_by"])
    assert said["message"] == f"{said['raised_by']}, ended the process with exit code 0"
    assert done.stderr.count(f"error [plugin-crashed]: {said['message']}\n") == 1
    if act == ZEROES[0]:
        text = delegraph(when, act, *LOWER)
        assert (text.returncode, text.stdout) == (1, "") and said["message"] in text.stderr


@pytest.mark.parametrize(
    ("act", "code", "said"),
    [
        ("ctypes.string_at(0)", -signal.SIGSEGV, r"killed the process \(Segmentation fault\)"),
        pytest.param("os.abort()", -signal.SIGABRT, r"killed the process \(Aborted\)", marks=pytest.mark.slow),
        pytest.param("os._exit(7)", 7, "ended the process with exit code 7", marks=pytest.mark.slow),
        pytest.param("os.kill(os.getpid(), 9)", -9, r"killed the process \(Killed\)", marks=pytest.mark.slow),
    ],
)
def test_other_ends_pass_on_and_are_explained(delegraph, act, code, said):
    done = delegraph("compile", act, *LOWER)
    assert (done.returncode, done.stdout) == (code, "")
    assert re.search(rf"error \[plugin-crashed\]: {PLACES['compile']}, {said}\n", done.stderr)


def test_a_crash_in_a_command_leaves_one_line_and_costs_no_import_of_torch(delegraph):
    done = delegraph("command", "os.abort()", "rough")
    text = "error [plugin-crashed]: run of Rough (acme-rough 1.5), killed the process (Aborted)\n"
    assert (done.returncode, done.stderr) == (-signal.SIGABRT, text)


def test_a_model_that_ends_the_process_has_not_been_lowered(delegraph):
    done = delegraph("model", "", *LOWER, "--json")
    assert (done.returncode, json.loads(done.stdout)["code"]) == (1, "process-ended")
    assert "before the command was done, something ended the process with exit code 0\n" in done.stderr


# --- light modules ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "how"),
    [
        ("os.abort()", "killed the process (Aborted)"),
        ("C.exit(0)", "ended the process with exit code 0"),
        ("C.exit(5)", "ended the process with exit code 5"),
        ("os.kill(os.getpid(), 9)", "killed the process (Killed)"),
    ],
)
def test_a_light_module_that_ends_the_process_is_a_row_and_others_are_listed(delegraph, act, how):
    done = delegraph("light import", act, "backends", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, [b["name"] for b in found["backends"]]) == (0, ["good"])
    row = next(p for p in found["plugins_without_backends"] if p["name"] == "acme-rough")
    assert (row["status"], row["error"]) == ("broken", f"importing its light module {how}")
    assert "DELEGRAPH_DISABLE_PLUGINS=acme-rough" in row["hint"]


def test_several_light_modules_that_end_the_process(delegraph, site):
    site.plugin("acme-second", "import os; os.kill(os.getpid(), 11)")
    done = delegraph("light import", "os.abort()", "backends")
    assert re.search(r"^good +ok ", done.stdout, re.MULTILINE)
    assert (
        "acme-rough (acme-rough 1.5) is broken: importing its light module killed the process (Aborted)" in done.stdout
    )
    assert "acme-second (acme-second 1.0) is broken: importing its light module killed the process (Seg" in done.stdout


def test_lowering_for_another_backend_survives_such_a_neighbour(delegraph, site):
    site.plugin("acme-second", "import os; os.abort()")
    done = delegraph("", "", *LOWER)
    assert done.returncode == 0 and "1 of 1 operator delegated" in done.stdout, done.stderr
    assert "warning: acme-second of acme-second 1.0 is broken: importing its light module killed" in done.stderr


def test_a_shell_completes_beside_such_a_neighbour(start, tmp_path, monkeypatch):
    line = "delegraph lower net.py --backend g"
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    for name, value in (asked | {"_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "offers")}).items():
        monkeypatch.setenv(name, value)
    with start("light import", "os.abort()") as process:
        process.communicate(timeout=300)
    assert (process.returncode, (tmp_path / "offers").read_text().strip()) == (0, "good")


DEADLOCK = "lock, held = ctypes.PyDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64); lock(held); lock(held)"
HANGS = ["time.sleep(1000)", "C.sleep(1000)", DEADLOCK]
"""A wait of Python, one of C, and one of C that holds the interpreter's lock: no thread of Python runs meanwhile."""


@pytest.mark.parametrize("act", [HANGS[2], *(pytest.param(a, marks=pytest.mark.slow) for a in HANGS[:2])])
def test_a_light_module_that_hangs_is_a_row(delegraph, site, act):
    (site.folder / "sitecustomize.py").write_text("import delegraph.cli.worker as w\nw.LIMIT = 1.0\n")
    done = delegraph("light import", act, "backends")
    assert done.returncode == 0 and re.search(r"^good +ok ", done.stdout, re.MULTILINE)
    assert "acme-rough 1.5) is broken: importing its light module took longer than 1 s" in done.stdout


# --- signals ----------------------------------------------------------------------------------------------------------

WAITING = "print('waiting', flush=True); [time.sleep(0.05) for _ in range(20_000)]"
"""In short pieces: a signal that comes just before Python begins to sleep is seen when that sleep has ended."""


@pytest.fixture(autouse=True)
def nothing_is_ignored():
    """A shell that starts the tests in the background lets them ignore SIGINT, and so would all that they start."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in before.items():
        if handler is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("whole_group", [False, True], ids=["to one", "to the group"])
def test_signals_reach_the_worker_once(start, number, whole_group):
    with start("command", WAITING, "rough", start_new_session=True) as process:
        assert process.stderr.readline() == "waiting\n"
        os.killpg(process.pid, number) if whole_group else process.send_signal(number)
        told = process.communicate(timeout=60)[1]
    assert (process.returncode, told) == (128 + number, told), told
    assert told == ("interrupted\n" if number == signal.SIGINT else "stopped by SIGTERM\n")


def test_a_worker_does_not_outlive_who_started_it(start):
    report = f"print(os.getpid(), flush=True); {DEADLOCK}"
    with start("command", report, "rough") as process:
        pid = int(process.stderr.readline())
        assert pid != process.pid
        process.kill()
        process.communicate(timeout=60)  # it ends when nobody has its pipes any more
    assert not _is_running(pid)


def test_a_signal_that_hits_the_worker_alone_is_the_end_of_both(start):
    with start("command", "print(os.getpid(), flush=True); time.sleep(1000)", "rough") as process:
        os.kill(int(process.stderr.readline()), signal.SIGKILL)
        told = process.communicate(timeout=60)[1]
    assert process.returncode == -signal.SIGKILL and "killed the process (Killed)" in told


def test_a_stop_while_a_light_module_hangs_is_no_reason_to_begin_again(start, site):
    (site.folder / "sitecustomize.py").write_text("import delegraph.cli.worker as w\nw.LIMIT = 2.0\n")
    act = f"print('waiting', flush=True); {DEADLOCK}"
    with start("light import", act, "backends") as process:
        assert process.stderr.readline() == "waiting\n"
        process.terminate()
        out, _ = process.communicate(timeout=60)
    # by the signal, or with the exit code that stands for it, if the signal came before the module hung
    assert process.returncode in (-signal.SIGTERM, 128 + signal.SIGTERM) and out == ""


def test_standard_input_is_the_workers(start):
    act = "import sys; print(sys.stdin.read(), file=sys.stderr)"
    with start("command", act, "rough", stdin=subprocess.PIPE) as process:
        assert "said to it" in process.communicate("said to it", timeout=60)[1]


def _is_running(pid: int) -> bool:
    for _ in range(50):
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return False
        except OSError:
            return False
        time.sleep(0.1)
    return True


# --- the page ---------------------------------------------------------------------------------------------------------


def test_what_a_fork_of_the_worker_tells_does_not_count():
    page = worker.Page()
    page.open()
    page.begin_work("the work")
    if (child := os.fork()) == 0:
        page.begin_work("of the fork")
        page.finish(0)
        os._exit(0)
    os.waitpid(child, 0)
    end = page.end(0)
    assert (end.done, end.during, worker.exit_code(end)) == (False, "the work", 1)


def test_long_texts_are_cut_and_finished_work_keeps_its_code():
    page = worker.Page()
    page.open()
    page.begin_work("é" * 20_000)
    page.begin_import(("d" * 5000, "n"))
    assert page.end(0).during.startswith("ééé") and page.importing
    page.finish(3)
    assert (page.end(0).done, worker.exit_code(page.end(0)), worker.exit_code(page.end(5 << 8))) == (True, 3, 5)
