"""What ``delegraph new-backend`` writes is a package: it builds, installs, is listed, lowers and passes every check."""

import json
import os
import subprocess
import sys

import pytest

NAME = "my-npu"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / NAME
    run(None, "delegraph", "new-backend", NAME, str(folder))
    return folder


@pytest.fixture(scope="module")
def installed(made, tmp_path_factory):
    """A folder for the path, with the package installed from its wheel."""
    wheels, site = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("site")
    quiet = ("--disable-pip-version-check", "-q")
    run(None, "pip", *quiet, "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", str(wheels), str(made))
    [wheel] = wheels.iterdir()
    run(None, "pip", *quiet, "install", "--no-deps", "--no-index", "--target", str(site), str(wheel))
    return site


def run(site, module, *arguments, folder=None):
    """``python -m module`` with ``site`` on the path; what it printed."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("DELEGRAPH", "PYTEST"))}
    environment |= {"OMP_NUM_THREADS": "1", **({"PYTHONPATH": str(site)} if site else {})}
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_is_listed(installed):
    listed = json.loads(run(installed, "delegraph", "backends", "--json"))["backends"]
    [row] = [b for b in listed if b["name"] == NAME]
    assert row["status"] == "ok"
    assert row["location"] == str(installed / "my_npu" / "plugin.py")
    assert (row["backend_id"], row["partitioners"], row["has_runtime"]) == ("MyNpuBackend", [NAME], True)


def test_it_lowers_its_example(installed, made):
    example = str(made / "example.py")
    shown = json.loads(run(installed, "delegraph", "lower", example, "--backend", NAME, "--verify", "--json"))
    [delegate] = shown["report"]["delegates"]
    assert delegate["backend"] == NAME
    assert shown["verification"]["relative_error"] < 1e-6


def test_it_passes_the_conformance_kit(installed):
    shown = json.loads(run(installed, "delegraph", "check", NAME, "--quick", "--json"))
    assert {c["name"]: c["status"] for c in shown["checks"] if c["status"] != "passed"} == {}


def test_its_own_tests_pass(installed, made):
    """Of the conformance kit, which has just run as a whole, those checks that take no time."""
    chosen = "not TestMyNpu or declaration or options or empty or handles"
    shown = run(installed, "pytest", "-W", "error", "-p", "no:cacheprovider", "-q", "-k", chosen, folder=made)
    assert "16 passed, 9 deselected" in shown


def test_it_is_clean(made, tmp_path):
    run(None, "ruff", "check", "--no-cache", ".", folder=made)
    run(None, "ruff", "format", "--check", "--no-cache", ".", folder=made)
    shown = run(None, "mypy", "--cache-dir", str(tmp_path), folder=made)
    assert "no issues found in 10 source files" in shown
