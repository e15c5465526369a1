"""The kit's pytest plugin gives fixtures to the tests of a backend."""

import subprocess
import sys
import textwrap

CONFTEST = 'pytest_plugins = ["delegraph_devkit.pytest_plugin"]\n'
TESTS = """
import pytest
import torch


def test_verify(verify):
    lowered = verify(torch.nn.Softmax(0), torch.ones(3), delegates=0)
    assert lowered.report.host_operators


def test_too_few_delegates(verify):
    with pytest.raises(AssertionError, match="left to the host"):
        verify(torch.nn.Softmax(0), torch.ones(3), delegates=9)


def test_programs_of_the_kit(lower, delegraph_program):
    module, inputs = delegraph_program.make(2)
    assert lower(module, *inputs).report
"""
"""The tests of a backend, which use the fixtures."""


def run_pytest(folder, *arguments):
    """Run ``TESTS`` in a new process."""
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
        "verify or few or mlp",  # mlp is a program of the kit
    )

    assert completed.returncode == 0, completed.stdout
    assert " passed" in completed.stdout
    assert "failed" not in completed.stdout


def test_tests_without_a_backend_name_fail_with_the_remedy(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\n")

    completed = run_pytest(tmp_path, "-k", "verify")

    assert completed.returncode == 1
    assert "no backend is named: write delegraph_backend = NAME" in completed.stdout


def test_unknown_backends_in_the_configuration_are_an_error(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\ndelegraph_backend = no-such-one\n")

    completed = run_pytest(tmp_path, "-k", "verify")

    assert "Backend no-such-one was not found" in completed.stdout
