"""Output on a terminal: escaped texts, closed or full streams, and signals."""

import contextlib
import functools
import os
import pty
import re
import signal
import subprocess
import sys
import textwrap

import pytest
from delegraph.cli import main
from delegraph.discovery.registry import Registry

from ..support.hostile_plugin import EVIL, HOSTILE, LONG, PROGRESS_BAR
from ..support.processes import run_python

MODEL = f"""
import warnings
EVIL = {EVIL!a}
def model():
    warnings.warn(EVIL)
    raise ValueError(EVIL)
"""
WORKING = [
    ["backends"],
    ["backends", "-v"],
    ["show", "FILE.npu"],
]
COMMANDS = [
    *WORKING,
    ["doctor"],
    ["show", "FILE.npu", "--fail"],
    ["lower", "FILE.py", "--backend", "npu"],
    ["lower", "FILE.py", "--backend", "npu", "--debug"],
    ["lower", "FILE.py", "--backend", "FILE"],
    ["lower", "FILE.py", "--backend", "npu", "--option", "npu.mode=FILE"],
    ["check", "FILE"],
    ["new-backend", "FILE"],
    ["FILE"],
]


@pytest.fixture
def hostile(site, tmp_path, monkeypatch):
    """Install a plugin and write files whose texts try to control the terminal."""
    site.plugin("evil", HOSTILE)
    site.plugin("worse", f"raise ValueError({EVIL!a})")
    site.metadata("named", "npu\x1b[2J = absent", version="1\x1b[2J")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("delegraph.discovery.registry._default", Registry())
    monkeypatch.setenv("DELEGRAPH_PLUGINS", "evil,worse,named,npu\x1b[2J,devkit")
    # what a file can be called
    name = EVIL.replace("\x00", "").replace("\ud800", "\udcff")
    for suffix, content in ((".npu", ""), (".py", textwrap.dedent(MODEL))):
        (tmp_path / f"{name}{suffix}").write_text(content)
    return name


@pytest.mark.parametrize("json", [[], ["--json"]], ids=["text", "json"])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_control_characters_of_foreign_texts_are_escaped(
    command, json, hostile, capsys
):
    words = [word.replace("FILE", hostile) for word in command]
    code = main([*words, *json])
    out, err = capsys.readouterr()
    shown = out + err.replace(PROGRESS_BAR, "")

    control_characters = [c for c in shown if not c.isprintable() and c not in "\n\t"]
    assert control_characters == []

    if command in WORKING:
        assert code == 0
    escape_in_text, escape_in_json = "x1b", "u001b"
    assert escape_in_text in shown or escape_in_json in out


def test_a_terminal_shows_escaped_progress(hostile, site):
    """Progress is shown on a terminal only, so the test opens one."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "delegraph", "show", f"{hostile}.npu"]
    search = os.pathsep.join([str(site.folder), os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        command,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"PYTHONPATH": search},
        check=True,
    )
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the end, on a terminal
        while piece := os.read(ours, 1 << 16):
            shown += piece
    os.close(ours)

    assert re.search(rb"running \\x1b\]0;owned.* \.\.\.\r50%\r100%", shown)
    assert b"\x1b[2J" not in shown


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_commands_print_in_every_encoding(hostile, site, encoding):
    for command, progress in (
        (["backends", "-v"], []),
        (["lower", "--help"], []),
        (["show", f"{hostile}.npu"], ["50%", "100%"]),
    ):
        variables = {"PYTHONIOENCODING": encoding, "DELEGRAPH_PLUGINS": "evil"}
        completed = run_python(
            "-m", "delegraph", *command, path=site.folder, **variables
        )
        assert completed.returncode == 0
        assert completed.stderr.split() == progress
        assert completed.stdout.strip()


@pytest.mark.parametrize(
    "command", ["backends", "backends --json", "--version", "lower --help", "--help"]
)
def test_unwritable_result_is_an_error_in_one_line(command):
    for redirection, reason in (
        (">/dev/full", "No space left on device"),
        (">&-", "it is closed"),
    ):
        completed = run_shell(f"delegraph {command} {redirection}")
        text = f"cannot write to the standard output: {reason}"
        assert completed.returncode == 1
        assert completed.stderr == f"error [write-failed]: {text}\n"


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_a_full_or_closed_stderr_keeps_the_exit_code(redirection):
    assert run_shell(f"delegraph lower absent.py {redirection}").returncode == 2
    assert run_shell(f"delegraph backends {redirection}").returncode == 0


def as_backends(source):
    """Return a program that is ``delegraph backends`` with the given ``command``
    function.
    """
    return f"""
import os, sys, time
from delegraph.cli import listing, main
from delegraph.io.atomic_write import write_whole
{textwrap.dedent(source)}
listing.Backends.run = command
sys.exit(main(["backends"]))
"""


def test_a_file_does_not_become_a_closed_standard_stream(tmp_path):
    program = as_backends("""
        def command(args):
            with open("report", "w"):
                os.write(1, b"native print")
            return listing.Outcome("s", {}, "done")
    """)
    command = ["sh", "-c", 'exec "$0" -c "$1" >&-', sys.executable, program]

    assert (
        subprocess.run(command, cwd=tmp_path, stderr=subprocess.DEVNULL).returncode == 1
    )
    assert (tmp_path / "report").read_text() == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_remove_unfinished_files(tmp_path, number):
    program = as_backends("""
        del os.O_TMPFILE  # as on a file system whose files have names while they are written
        class Slow:
            def __len__(self):
                return 1
            def write_to(self, file):
                print("writing", flush=True)
                time.sleep(60)
        def command(args):
            write_whole("out", Slow())
    """)
    started = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        # under nohup it is ignored
        preexec_fn=functools.partial(signal.signal, number, signal.SIG_DFL),
    )
    with started as process:
        assert process.stderr.readline() == "writing\n"
        assert len(os.listdir(tmp_path)) == 1
        process.send_signal(number)
        told = process.communicate(timeout=60)[1]

    assert process.returncode == 128 + number
    assert told == (
        "interrupted\n" if number == signal.SIGINT else f"stopped by {number.name}\n"
    )
    assert os.listdir(tmp_path) == []


def test_ignored_signals_and_old_handlers_are_kept():
    program = as_backends("""
        import atexit, signal
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        atexit.register(lambda: print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL))
        def command(args):
            os.kill(os.getpid(), signal.SIGHUP)
            return listing.Outcome("s", {}, "done")
    """)

    assert run_python("-c", program).stdout == "done\nTrue\n"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["lower", f"{LONG}.py"], 2),
        (["lower", "net.py", "--max-delegates", "-1"], 2),
        (["lower", "net.py", "--backend", "npu", "--verify", "--input", LONG], 2),
        (["lower", "net.py", "--backend", "npu", "--report", LONG], 1),
        (["new-backend", "my-npu", LONG], 1),
    ],
    ids=lambda value: (
        " ".join(value).replace(LONG, "LONG") if isinstance(value, list) else None
    ),
)
def test_long_paths_and_negative_numbers_are_user_errors(
    site, tmp_path, command, code, capsys, monkeypatch
):
    site.plugin("evil", HOSTILE)
    monkeypatch.setattr("delegraph.discovery.registry._default", Registry())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text("raise SystemExit")
    assert main(command) == code

    stderr = capsys.readouterr().err
    assert "error [internal]" not in stderr
    assert stderr.count("error [") == 1


def run_shell(command):
    command = command.replace("delegraph ", f"{sys.executable} -m delegraph ", 1)
    return subprocess.run(command, shell=True, capture_output=True, text=True)
