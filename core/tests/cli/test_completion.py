"""Completion after TAB: by the program itself, and in bash with the line of the guide."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from delegraph.cli.find_command import BUILT_IN

from ..support.processes import run_python

pytest.importorskip(
    "argcomplete", reason="an editable delegraph may be older than this dependency"
)
GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "command-line.md"
PLUGIN = """
from delegraph.plugin import BackendSpec, CommandSpec, FormatSpec, OptionSpec, hookimpl

OPTIONS = (
    OptionSpec("mode", str, "fast", ("fast", "small", "\\x1b[2J")),
    OptionSpec("trace", bool, False),
    OptionSpec("path", str),
)

@hookimpl
def delegraph_backends():
    return [BackendSpec("npu-of-ours", "a:B", "B", 1, options=OPTIONS)]

@hookimpl
def delegraph_formats():
    return [FormatSpec(".npu", "a:F")]

@hookimpl
def delegraph_commands():
    return [CommandSpec("profile", "acme_npu_command:Profile", "times, 100 % of them \\x1b[2J")]
"""
COMMAND = """
class Profile:
    def add_arguments(parser):
        parser.add_argument("backend", metavar="BACKEND")
        parser.add_argument("file", nargs="?", metavar="FILE")
        parser.add_argument("--option", action="append", metavar="BACKEND.OPTION=VALUE")
        parser.add_argument("--runs", type=int)

    def run(args):
        raise AssertionError("TAB runs nothing")
"""


@pytest.fixture
def completions_of(site, tmp_path):
    """Return a function that lists the completions of a typed ``delegraph`` line.

    It runs a process in a folder with a few files.
    """
    site.plugin("acme-npu", PLUGIN)
    (site.folder / "acme_npu_command.py").write_text(COMMAND)
    for name in ("net.py", "net.pt2", "net.npu", "notes.txt"):
        (tmp_path / name).touch()

    def ask(typed, program="from delegraph.cli import main; main()"):
        line = f"delegraph {typed}"
        answer = tmp_path / "answer"
        variables = {
            "COMP_LINE": line,
            "COMP_POINT": str(len(line)),
            "DELEGRAPH_PLUGINS": "acme-npu",
            "_ARGCOMPLETE": "1",
            "_ARGCOMPLETE_IFS": "\n",
            "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        }
        completed = run_python(
            "-c", program, path=site.folder, cwd=tmp_path, **variables
        )
        assert completed.stdout == ""
        assert completed.stderr == ""
        if not answer.exists():
            return []
        return sorted(word.rstrip() for word in answer.read_text().split("\n") if word)

    return ask


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("", sorted([*BUILT_IN, "profile"])),
        ("lo", ["lower"]),
        ("no-such-thing", []),
        ("no-such-thing x", []),
        ("lower n", ["net.pt2", "net.py"]),
        ("lower net.py -o n", ["net.npu", "net.pt2", "net.py", "notes.txt"]),
        ("lower net.py --back", ["--backend"]),
        ("lower net.py --backend npu-", ["npu-of-ours"]),
        ("lower net.py --backend=npu-", ["--backend=npu-of-ours"]),
        (
            "lower net.py --backend npu-of-ours --option npu-of-ours.m",
            ["npu-of-ours.mode=fast", "npu-of-ours.mode=small"],
        ),
        (
            "lower net.py --backend npu-of-ours --option npu-of-ours.tr",
            ["npu-of-ours.trace=false", "npu-of-ours.trace=true"],
        ),
        ("lower net.py --option npu-of-ours.p", ["npu-of-ours.path="]),
        ("lower net.py --backend absent --option npu", []),
        ("profile npu-", ["npu-of-ours"]),
        ("profile npu-of-ours --r", ["--runs"]),
        ("profile npu-of-ours n", ["net.npu"]),
        ("profile npu-of-ours --option npu-of-ours.path", ["npu-of-ours.path="]),
        ("backends --j", ["--json"]),
        ("completion ", ["bash", "fish", "zsh"]),
    ],
)
def test_tab_completes_commands_flags_and_values(completions_of, typed, offered):
    assert completions_of(typed) == offered


def test_completing_imports_neither_torch_nor_numpy(completions_of, tmp_path):
    program = """
import os, sys
from delegraph.cli import main

def leave(code):
    if {"torch", "numpy"} & set(sys.modules):
        os.remove("answer")
    raise SystemExit(code)

os._exit = leave
main()
"""

    assert completions_of("lower net.py --backend npu-", program) == ["npu-of-ours"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_completion_script(shell):
    completed = run_python("-m", "delegraph", "completion", shell)
    assert completed.returncode == 0
    assert "_ARGCOMPLETE" in completed.stdout


def run_bash(script, tmp_path):
    """Run a bash script with an installed ``delegraph`` on its path."""
    program = tmp_path / "bin" / "delegraph"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m delegraph "$@"\n')
    program.chmod(0o755)
    text = f'PATH="{program.parent}:$PATH"\n{script}'
    return subprocess.run(
        [shutil.which("bash"), "-c", text], capture_output=True, text=True, cwd=tmp_path
    )


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_completes_with_the_line_of_the_guide(tmp_path):
    (line,) = re.findall(r"^(eval .+)$", GUIDE.read_text(), re.MULTILINE)
    script = f"""{line}
    type_() {{ COMP_LINE="$1" COMP_POINT="${{#1}}" COMPREPLY=(); _python_argcomplete delegraph
        echo "$1 -> ${{COMPREPLY[*]}}"; }}
    type_ "delegraph bac"
    type_ "delegraph lower net.py --backend to"
    type_ "delegraph lower net.py --option tosa.sp"
    COMP_WORDBREAKS="=:"
    type_ "delegraph lower net.py --option=tosa.sp"
    """
    shown = run_bash(script, tmp_path)

    assert shown.stderr == ""
    assert [line.rstrip() for line in shown.stdout.splitlines()] == [
        "delegraph bac -> backends",
        "delegraph lower net.py --backend to -> tosa",
        "delegraph lower net.py --option tosa.sp -> tosa.spec=",
        "delegraph lower net.py --option=tosa.sp -> tosa.spec=",
    ]
