"""What a shell offers after TAB, asked of the program and of bash itself with the script that the guide names."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import delegraph
import pytest
from delegraph.cli import _MODULES, main
from delegraph.cli.completion import candidates
from delegraph.plugin import BackendSpec, OptionSpec

from .test_cli import python

GUIDE = Path(__file__).parents[2] / "docs" / "user-guide.md"
OPTIONS = (
    OptionSpec("mode", str, "fast", ("fast", "small")),
    OptionSpec("trace", bool, False),
    OptionSpec("path", str),
)


@pytest.fixture
def npu(site):
    with delegraph.register(BackendSpec("npu-of-ours", "a:B", "B", 1, options=OPTIONS)):
        yield


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("lo", ["lower"]),
        ("no-such-thing", []),
        ("no-such-thing x", []),
        ("lower ", []),  # a file: the shell's own completion
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
        ("lower net.py --backend npu-of-ours --option ", None),
        ("lower net.py --option npu-of-ours.p", ["npu-of-ours.path="]),
        ("lower net.py --backend absent --option ", []),
        ("lower net.py -o ", []),
        ("lower net.py --output=", []),
        ("check npu-", ["npu-of-ours"]),
        ("check npu-of-ours --quick --option npu-of-ours.path", ["npu-of-ours.path="]),
        ("backends --j", ["--json"]),
        ("completion ", ["bash"]),
    ],
)
def test_candidates(npu, typed, offered):
    found = candidates(typed.split(" "))
    assert found == offered if offered is not None else len(found) == 5


def test_the_first_word_is_a_command():
    assert candidates([]) == candidates([""]) == sorted([*_MODULES, "--help", "--version"])


def test_every_command_is_in_the_module_that_the_table_says(capsys):
    for command in _MODULES:
        assert main([command, "--help"]) == 0
        assert f"delegraph {command}" in capsys.readouterr().out


def test_flags_that_are_being_completed_are_not_ours(capsys):
    assert main(["completion", "words", "--", "lower", "--json", "--deb"]) == 0
    assert capsys.readouterr().out == "--debug\n"


def bash(script, tmp_path):
    """Run bash with a ``delegraph`` on its path, as an installation has one."""
    program = tmp_path / "bin" / "delegraph"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m delegraph "$@"\n')
    program.chmod(0o755)
    text = f'PATH="{program.parent}:$PATH"\n{script}'
    return subprocess.run([shutil.which("bash"), "-c", text], capture_output=True, text=True, cwd=tmp_path)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_completes_with_the_line_of_the_guide(tmp_path):
    (line,) = re.findall(r"^(eval .+)$", GUIDE.read_text(), re.MULTILINE)
    script = f"""{line}
    complete -p delegraph
    type_() {{ COMP_LINE="$1" COMP_POINT="${{#1}}" COMPREPLY=(); _delegraph; echo "$1 -> ${{COMPREPLY[*]}}"; }}
    type_ "delegraph bac"
    type_ "delegraph lower net.py --backend to"
    type_ "delegraph lower net.py --option tosa.sp"
    type_ "delegraph lower net.py --option=tosa.sp"
    type_ "delegraph lower net.py"
    """
    shown = bash(script, tmp_path)
    assert shown.stderr == ""
    assert shown.stdout.splitlines() == [
        "complete -o default -F _delegraph delegraph",
        "delegraph bac -> backends",
        "delegraph lower net.py --backend to -> tosa",
        "delegraph lower net.py --option tosa.sp -> tosa.spec=",
        "delegraph lower net.py --option=tosa.sp -> tosa.spec=",
        "delegraph lower net.py -> ",
    ]


def test_completing_imports_neither_torch_nor_numpy():
    program = (
        "import sys; from delegraph.cli import main; main(['completion', 'words', '--', 'lower', '--backend', '']);"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    shown = python("-c", program)
    assert shown.returncode == 0, shown.stderr
    assert "tosa" in shown.stdout
