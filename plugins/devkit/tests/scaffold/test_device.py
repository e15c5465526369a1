"""The device half of a new package passes its own tests, in ExecuTorch's runtime."""

import importlib.util
import os
import subprocess
import sys

import pytest
from delegraph_devkit import scaffold
from delegraph_devkit.scaffold import Names


@pytest.fixture
def made(request, tmp_path, site):
    """Write the package, and metadata that make it look installed."""
    scaffold.generate(
        Names.of("my-npu"),
        tmp_path / "made",
        device=True,
        tosa=getattr(request, "param", False),
    )
    info = site.folder / "my_npu-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: my-npu\nVersion: 0.1.0\n"
    )
    (info / "entry_points.txt").write_text("[delegraph]\nmy-npu = my_npu.plugin\n")
    path = [
        tmp_path / "made" / "src",
        site.folder,
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
    return tmp_path / "made", os.pathsep.join(map(str, path))


@pytest.mark.slow
def test_the_tests_of_the_package_pass(made):
    run_its_test(made, "7 passed")


@pytest.mark.slow
@pytest.mark.parametrize("made", [True], ids=["tosa"], indirect=True)
def test_the_tests_of_the_tosa_package_pass(made):
    run_its_test(
        made,
        "23 passed",
        "tests/test_numerics.py",
        "tests/test_contract.py::test_the_example_is_one_part_and_a_softmax_on_the_host",
    )


def run_its_test(made, passed, *arguments):
    """Run the package's test of the device half; its output contains ``passed``."""
    if importlib.util.find_spec("executorch") is None:
        pytest.skip(
            "the stock runtime is not installed (pip install executorch==1.5.1)"
        )
    folder, path = made
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-rs",
        "tests/test_device.py",
        *arguments,
    ]
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("DELEGRAPH", "PYTEST"))
    }
    completed = subprocess.run(
        command,
        cwd=folder,
        env=environment | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    if "no C++ compiler" in completed.stdout:
        pytest.skip(completed.stdout)
    assert passed in completed.stdout, completed.stdout + completed.stderr


@pytest.mark.slow
@pytest.mark.parametrize("made", [False, True], ids=["plain", "tosa"], indirect=True)
def test_generated_packages_pass_mypy(made, tmp_path):
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache")]
    completed = subprocess.run(command, cwd=made[0], capture_output=True, text=True)
    assert "no issues found in 11 source files" in completed.stdout, (
        completed.stdout + completed.stderr
    )
