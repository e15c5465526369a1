"""``delegraph check --device`` compares the device half of a runtime with eager."""

import importlib.util
import shutil
from typing import NamedTuple

import delegraph_devkit as devkit
import pytest
from delegraph.cli import main
from delegraph.discovery.registry import Registry

from .support import bad_backends, device_halves
from .support.kit import backend_under_test


class Checked(NamedTuple):
    """The exit code of the command and its output."""

    code: int
    output: str


@pytest.fixture
def check_device(site, monkeypatch, capsys):
    """Return a function that runs the command for the backend "negating".

    ``half`` is the name of its device half, or None if it has no device half.
    """

    def run(half, *arguments):
        site.plugin("negating-plugin", device_halves.PLUGIN)
        shutil.copy(device_halves.__file__, site.folder)
        if half is not None:
            (site.folder / "half.cpp").write_text(device_halves.HALVES[half])
        monkeypatch.setattr("delegraph.discovery.registry._default", Registry())
        code = main(["check", "negating", "--device", "--operator", "neg", *arguments])
        return Checked(code, "".join(capsys.readouterr()))

    return run


@pytest.mark.parametrize("name", ["accepted_compiles", "numerics", "control_flow"])
def test_checks_without_the_runtimes_plugin_are_skipped(name):
    """A registry without plugins lacks the file format of ExecuTorch's runtime."""

    def skip(*args, **kwargs):
        raise devkit.CheckSkipped("here")

    backend = backend_under_test(bad_backends.register_good, device=True)
    backend.run_elsewhere = skip

    result = devkit.run_check(devkit.CHECKS[name], backend)

    assert result.status.value == "skipped"
    assert "'executorch'" in result.message


def has_runtime_and_compiler():
    if importlib.util.find_spec("executorch") is None:
        return False
    return any(shutil.which(name) for name in ("c++", "g++", "clang++"))


needs_runtime_and_compiler = pytest.mark.skipif(
    not has_runtime_and_compiler(),
    reason="needs the wheel executorch and a C++ compiler",
)


@needs_runtime_and_compiler
@pytest.mark.slow
def test_a_wrong_device_half_fails_with_a_script(check_device):
    checked = check_device("wrong", "--only", "numerics")

    assert checked.code == 1
    assert "numerics  failed   the results differ from eager" in checked.output
    # the script repeats the failure
    call = "print(lowered.verify(*inputs, runtime='executorch'))"
    assert call in checked.output


@needs_runtime_and_compiler
@pytest.mark.slow
def test_a_right_device_half_passes(check_device):
    checked = check_device("right")

    assert checked.code == 0, checked.output
    assert "negating: 2 passed; " in checked.output


@needs_runtime_and_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("half", "message"),
    [
        (
            "crashing",
            "accepted_compiles  failed   the process that lowered and ran it was"
            " ended by SIGABRT",
        ),
        ("gibberish", "the device half cannot be loaded: cannot build "),
        (
            None,
            "NegatingRuntime has no device_half, and ExecuTorch's runtime refuses"
            " program.pte",
        ),
    ],
)
def test_unusable_device_halves_fail_with_the_cause(half, message, check_device):
    checked = check_device(half)

    assert checked.code == 1
    assert message in checked.output


@needs_runtime_and_compiler
@pytest.mark.slow
def test_checks_without_a_compiler_are_skipped(check_device, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")

    checked = check_device("wrong")

    assert checked.code == 0
    assert checked.output.count("skipped") >= 2
    assert "no C++ compiler here (no-such-compiler)" in checked.output
