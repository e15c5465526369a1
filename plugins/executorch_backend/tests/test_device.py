"""The device half of a backend is a C++ library that is built and loaded on this host.

plugins/demo_backend/tests/test_device.py runs programs with such a library.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from delegraph.errors import InputError, NoRuntime, WriteError
from delegraph_executorch import device, wheel

BACKEND_SOURCE = """
#include <executorch/runtime/backend/interface.h>

using namespace executorch::runtime;

struct Nothing final : BackendInterface {
  bool is_available() const override { return true; }
  Result<DelegateHandle*> init(BackendInitContext&, FreeableBuffer*, ArrayRef<CompileSpec>) const override {
    return nullptr;
  }
  Error execute(BackendExecutionContext&, DelegateHandle*, Span<EValue*>) const override { return Error::Ok; }
} nothing;
const Error registered = register_backend({"NothingBackend", &nothing});
"""


def build_or_skip(source: str, folder: Path) -> Path:
    """Build ``libhalf.so`` in the folder; skip the test if there is no compiler."""
    (folder / "half.cpp").write_text(source)
    try:
        device.build_library(folder / "half.cpp", folder / "libhalf.so")
    except NoRuntime as e:
        pytest.skip(f"{e.message}; {e.hint}")
    return folder / "libhalf.so"


def test_a_library_may_be_loaded_twice(tmp_path: Path) -> None:
    """ExecuTorch ends the process if a backend is registered a second time."""
    library = build_or_skip(BACKEND_SOURCE, tmp_path)

    device.load_library(library)
    device.load_library(str(library))

    registry = device.stock_runtime().backend_registry
    assert "NothingBackend" in registry.registered_backend_names


def test_a_library_that_registers_nothing_is_refused(tmp_path: Path) -> None:
    library = build_or_skip("int answer = 42;", tmp_path)

    with pytest.raises(InputError, match="libhalf.so registers no backend"):
        device.load_library(library)


@pytest.mark.parametrize("name", ["libhalf.so", "missing.so"])
def test_files_that_are_no_library_are_refused(tmp_path: Path, name: str) -> None:
    pytest.importorskip(
        "executorch",
        reason="the stock runtime is not installed (pip install executorch==1.5.1)",
    )
    (tmp_path / "libhalf.so").write_bytes(b"nothing")

    with pytest.raises(InputError, match=f"cannot load the library.*{name}"):
        device.load_library(tmp_path / name)


def test_compiler_messages_are_in_the_error(tmp_path: Path) -> None:
    message = r"cannot build .*libhalf.so from .*half.cpp: (.|\n)*gibberish"
    with pytest.raises(WriteError, match=message):
        build_or_skip("gibberish;", tmp_path)
    assert not (tmp_path / "libhalf.so").exists()


@pytest.fixture
def wheel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "wheel_folder", lambda: Path("wheel"))


@pytest.mark.usefixtures("wheel_is_found")
def test_a_missing_compiler_of_the_environment_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")

    with pytest.raises(NoRuntime, match=r"no C\+\+ compiler here \(no-such-compiler\)"):
        device.compiler_line("half.cpp", "libhalf.so")


@pytest.mark.usefixtures("wheel_is_found")
def test_all_compilers_that_were_looked_for_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")

    message = r"no C\+\+ compiler here \(c\+\+, g\+\+, clang\+\+\)"
    with pytest.raises(NoRuntime, match=message):
        device.compiler_line("half.cpp", "libhalf.so")


def test_a_missing_wheel_is_named_with_its_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wheel, "find_spec", lambda name: None)

    with pytest.raises(NoRuntime, match="wheel executorch are not installed") as caught:
        device.compiler_line("half.cpp", "libhalf.so")

    assert caught.value.hint == 'pip install "delegraph-executorch[runtime]"'


@pytest.fixture
def runtime_with_one_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime with the backend "Known"; "New" has a device half, "Other" has none."""
    registry = SimpleNamespace(registered_backend_names=("Known",))
    runtime = SimpleNamespace(backend_registry=registry)
    halves = {"Other": None, "New": Path("no", "such.cpp")}
    monkeypatch.setattr(device, "stock_runtime", lambda: runtime)
    monkeypatch.setattr(device, "_device_half", halves.get)


@pytest.mark.usefixtures("runtime_with_one_backend", "wheel_is_found")
def test_backends_without_a_missing_device_half_need_no_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")

    device.load_device_halves(["Known", "Other"])


@pytest.mark.usefixtures("runtime_with_one_backend", "wheel_is_found")
def test_a_device_half_without_a_compiler_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")

    with pytest.raises(NoRuntime, match=r"no C\+\+ compiler here"):
        device.load_device_halves(["Known", "New"])


@pytest.mark.parametrize(
    "name",
    [
        "no such backend",
        "BackendWithDelegateMappingDemo",  # declares no runtime
        "TOSABackend",  # has a runtime without a device half
    ],
)
def test_backends_without_a_device_half_have_no_source(name: str) -> None:
    assert device._device_half(name) is None
