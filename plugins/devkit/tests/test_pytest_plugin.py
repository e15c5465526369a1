"""The fixtures in the tests of a backend, run in a new process."""

import subprocess
import sys
import textwrap

CONFTEST = 'pytest_plugins = ["delegraph_devkit.pytest_plugin"]\n'
TESTS = """
import pytest
import torch


def test_agrees(verify):
    assert verify(torch.nn.Softmax(0), torch.ones(3), delegates=0).report.host_operators


def test_too_little(verify):
    with pytest.raises(AssertionError, match="left to the host"):
        verify(torch.nn.Softmax(0), torch.ones(3), delegates=9)


def test_samples(lower, delegraph_program):
    module, inputs = delegraph_program.make(2)
    assert lower(module, *inputs).report
"""


def run_pytest(folder, *arguments):
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(textwrap.dedent(TESTS))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(folder),
        *arguments,
    ]
    return subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
    )


def test_fixtures_and_programs_of_the_kit_work(tmp_path):
    completed = run_pytest(
        tmp_path,
        "--delegraph-backend",
        "compiler-demo",
        "-k",
        "agrees or little or mlp",
    )
    assert completed.returncode == 0, completed.stdout
    assert " passed" in completed.stdout
    assert "failed" not in completed.stdout


def test_tests_without_a_backend_name_fail_with_the_remedy(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    completed = run_pytest(tmp_path, "-k", "agrees")
    assert completed.returncode == 1
    assert "no backend is named: write delegraph_backend = NAME" in completed.stdout


def test_unknown_backends_in_the_configuration_are_an_error(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\ndelegraph_backend = no-such-one\n")
    completed = run_pytest(tmp_path, "-k", "agrees")
    assert "Backend no-such-one was not found" in completed.stdout
