"""The commands of docs/backend-authors.md work on a backend of ``delegraph
new-backend``.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NAME = "my-npu"
PAGE = Path(__file__).parent.parent / "docs" / "backend-authors.md"
GUIDE = (
    PAGE.read_text()
    .partition("## A first backend in ten minutes\n")[2]
    .partition("\n## ")[0]
)
LINES = re.findall(r"^    (\S.*)$", GUIDE, re.MULTILINE)
COMMANDS = [line for line in LINES if not line.startswith('"')]


def command_in_guide(beginning):
    """Return the module and arguments of the guide's first command with this beginning."""
    words = shlex.split(next(c for c in COMMANDS if c.startswith(beginning)))
    return words[2:] if words[:2] == ["python", "-m"] else words


def run_module(site, module, *arguments, folder):
    """Run ``python -m module`` in ``folder`` with ``site`` on the path. Return its
    output.
    """
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("DELEGRAPH", "PYTEST"))
    }
    if site:
        path = [str(site), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    command = [sys.executable, "-m", module, *arguments]
    completed = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Return a user's folder with the new package."""
    folder = tmp_path_factory.mktemp("work")
    run_module(None, *command_in_guide("delegraph new-backend"), folder=folder)
    return folder


@pytest.fixture(scope="module")
def installed(work, tmp_path_factory):
    """Return a folder with the built and installed wheel of the package."""
    site = tmp_path_factory.mktemp("site")
    run_module(
        None,
        *command_in_guide("python -m build"),
        "--wheel",
        "--no-isolation",
        folder=work,
    )
    [wheel] = (work / NAME / "dist").iterdir()
    pip = (
        "pip",
        "--disable-pip-version-check",
        "-q",
        "install",
        "--no-deps",
        "--no-index",
    )
    run_module(None, *pip, "--target", str(site), str(wheel), folder=work)
    return site


def test_guide_needs_few_commands():
    assert 8 <= len(COMMANDS) <= 15


def test_new_backend_is_listed(installed, work):
    listed = json.loads(
        run_module(
            installed, *command_in_guide("delegraph backends"), "--json", folder=work
        )
    )["backends"]
    [row] = [b for b in listed if b["name"] == NAME]

    assert row["status"] == "ok"
    assert row["location"] == str(installed / "my_npu" / "plugin.py")
    assert (row["backend_id"], row["partitioners"], row["has_runtime"]) == (
        "MyNpuBackend",
        [NAME],
        True,
    )


def test_new_backend_lowers_its_example(installed, work):
    shown = json.loads(
        run_module(
            installed, *command_in_guide("delegraph lower"), "--json", folder=work
        )
    )
    [delegate] = shown["report"]["delegates"]

    assert delegate["backend"] == NAME
    assert shown["verification"]["relative_error"] < 1e-6


@pytest.mark.slow  # a minute; the checks that take no time are among its own tests
def test_new_backend_passes_the_conformance_kit(installed, work):
    shown = json.loads(
        run_module(
            installed,
            *command_in_guide("delegraph check"),
            "--quick",
            "--json",
            folder=work,
        )
    )

    assert {
        c["name"]: c["status"] for c in shown["checks"] if c["status"] != "passed"
    } == {
        "observed_values": "skipped",
        "profiled_times": "skipped",
        "compatibility_answered": "skipped",
        "options_run": "skipped",
        "thread_safety": "skipped",
    }


def test_tests_of_the_new_package_pass(installed, work):
    """Checks of the conformance kit that take long are left out."""
    chosen = "not TestMyNpu or declaration or options or empty or handles"
    quiet = ("-W", "error", "-p", "no:cacheprovider", "-q")
    assert "16 passed, 1 skipped, 15 deselected" in run_module(
        installed,
        *command_in_guide("python -m pytest"),
        *quiet,
        "-k",
        chosen,
        folder=work,
    )


def test_an_operator_is_added_in_two_lines(installed, work, tmp_path):
    instruction, case = (line for line in LINES if line.startswith('"'))
    shutil.copytree(work / NAME, tmp_path / NAME)
    site = shutil.copytree(installed, tmp_path / "site")
    added_after(
        '"relu": aten.relu.default,', instruction, site / "my_npu" / "instructions.py"
    )
    added_after(
        '"relu": torch.relu,', case, tmp_path / NAME / "tests" / "test_numerics.py"
    )
    command = next(c for c in COMMANDS if c.endswith("-k sigmoid"))

    assert "1 passed" in run_module(
        site, *shlex.split(command)[2:], "-p", "no:cacheprovider", folder=tmp_path
    )


def added_after(line, new, file):
    text = file.read_text()
    assert text.count(f"    {line}\n") == 1
    file.write_text(text.replace(f"    {line}\n", f"    {line}\n    {new}\n"))


def test_new_package_passes_ruff(work):
    folder = work / NAME
    run_module(None, "ruff", "check", "--no-cache", ".", folder=folder)
    run_module(None, "ruff", "format", "--check", "--no-cache", ".", folder=folder)


@pytest.mark.slow  # mypy reads torch's types for a quarter of a minute
def test_new_package_passes_mypy(work, tmp_path):
    folder = work / NAME
    assert "no issues found in 10 source files" in run_module(
        None, "mypy", "--cache-dir", str(tmp_path), folder=folder
    )
