"""``delegraph check --device``: the kit's numerics through the device half."""

import importlib.util
import shutil

import delegraph_devkit as devkit
import pytest
from delegraph.cli import main
from delegraph.discovery.registry import Registry

from .support import bad_backends, device_halves
from .support.kit import backend_under_test


@pytest.fixture
def check_device(site, monkeypatch, capsys):
    """Return a function that runs the command for a backend with a device half, or
    without.

    It returns the exit code and the output.
    """

    def run(half=None, *arguments, operator="neg"):
        site.plugin("negating-plugin", device_halves.PLUGIN)
        shutil.copy(device_halves.__file__, site.folder)
        if half is not None:
            (site.folder / "half.cpp").write_text(device_halves.HALVES[half])
        monkeypatch.setattr("delegraph.discovery.registry._default", Registry())
        code = main(
            ["check", "negating", "--device", "--operator", operator, *arguments]
        )
        return code, "".join(capsys.readouterr())

    return run


def test_missing_runtimes_of_device_halves_are_skipped_with_reason():
    """A registry without plugins has no file format of the runtime."""
    one = backend_under_test(bad_backends.register_good, device=True)
    one.run_elsewhere = lambda *args, **kwargs: (_ for _ in ()).throw(
        devkit.CheckSkipped("here")
    )
    for name in ("accepted_compiles", "numerics", "control_flow"):
        result = devkit.run_check(devkit.CHECKS[name], one)
        assert result.status.value == "skipped"
        assert "'executorch'" in result.message


def _has_runtime_and_compiler():
    return importlib.util.find_spec("executorch") and any(
        map(shutil.which, ("c++", "g++", "clang++"))
    )


needs_all = pytest.mark.skipif(
    not _has_runtime_and_compiler(),
    reason="needs the wheel executorch and a C++ compiler",
)


@needs_all
@pytest.mark.slow
def test_a_wrong_device_half_fails_with_its_program(check_device):
    code, out = check_device("wrong", "--only", "numerics")
    assert code == 1
    assert "numerics  failed   the results differ from eager" in out
    assert "print(lowered.verify(*inputs, runtime='executorch'))" in out, (
        "the script repeats the failure"
    )


@needs_all
@pytest.mark.slow
@pytest.mark.parametrize(
    "half, code, text",
    [
        ("right", 0, "negating: 2 passed; "),
        (
            "crashing",
            1,
            (
                "accepted_compiles  failed   the process that lowered and ran it was"
                " ended by SIGABRT"
            ),
        ),
        ("gibberish", 1, "the device half cannot be loaded: cannot build "),
        (
            None,
            1,
            (
                "NegatingRuntime has no device_half, and ExecuTorch's runtime refuses"
                " program.pte"
            ),
        ),
    ],
)
def test_the_verdict_on_a_device_half(half, code, text, check_device):
    found, output = check_device(half)
    assert found == code
    assert text in output, output


@needs_all
@pytest.mark.slow
def test_missing_compilers_are_skipped_with_reason(check_device, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    code, out = check_device("wrong")
    assert code == 0
    assert out.count("skipped") >= 2
    assert "no C++ compiler here (no-such-compiler)" in out
