"""Building and loading the device half of a backend.
plugins/demo_backend/tests/test_device.py runs programs on one.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from delegraph.errors import InputError, NoRuntime, WriteError
from delegraph_executorch import device, wheel

SOURCE = """
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
    (folder / "half.cpp").write_text(source)
    try:
        device.build_library(folder / "half.cpp", folder / "libhalf.so")
    except NoRuntime as e:
        pytest.skip(f"{e.message}; {e.hint}")
    return folder / "libhalf.so"


def test_a_library_is_loaded_once(tmp_path: Path) -> None:
    library = build_or_skip(SOURCE, tmp_path)
    device.load_library(library)
    device.load_library(str(library))
    assert (
        "NothingBackend"
        in device.stock_runtime().backend_registry.registered_backend_names
    )


def test_a_library_that_registers_nothing_is_refused(tmp_path: Path) -> None:
    library = build_or_skip("int answer = 42;", tmp_path)
    with pytest.raises(InputError, match="libhalf.so registers no backend"):
        device.load_library(library)


def test_files_that_are_no_library_are_refused(tmp_path: Path) -> None:
    pytest.importorskip(
        "executorch",
        reason="the stock runtime is not installed (pip install executorch==1.5.1)",
    )
    (tmp_path / "libhalf.so").write_bytes(b"nothing")
    for name in ("libhalf.so", "missing.so"):
        with pytest.raises(InputError, match=f"cannot load the library.*{name}"):
            device.load_library(tmp_path / name)


def test_compiler_messages_are_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(
        WriteError, match=r"cannot build .*libhalf.so from .*half.cpp: (.|\n)*gibberish"
    ):
        build_or_skip("gibberish;", tmp_path)
    assert not (tmp_path / "libhalf.so").exists()


def test_missing_tools_and_wheels_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "wheel_folder", lambda: Path("wheel"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(NoRuntime, match=r"no C\+\+ compiler here \(no-such-compiler\)"):
        device.compiler_line("half.cpp", "libhalf.so")
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(
        NoRuntime, match=r"no C\+\+ compiler here \(c\+\+, g\+\+, clang\+\+\)"
    ):
        device.compiler_line("half.cpp", "libhalf.so")
    monkeypatch.undo()
    monkeypatch.setattr(wheel, "find_spec", lambda name: None)
    with pytest.raises(NoRuntime, match="wheel executorch are not installed") as caught:
        device.compiler_line("half.cpp", "libhalf.so")
    assert caught.value.hint == 'pip install "delegraph-executorch[runtime]"'


def test_incomplete_device_halves_are_refused_before_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        device, "stock_runtime", lambda: SimpleNamespace(backend_registry=Known)
    )
    monkeypatch.setattr(
        device, "_device_half", {"Other": None, "New": Path("no", "such.cpp")}.get
    )
    monkeypatch.setattr(device, "wheel_folder", lambda: Path("wheel"))
    device.load_device_halves(["Known", "Other"])
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(NoRuntime, match=r"no C\+\+ compiler here"):
        device.load_device_halves(["Known", "New"])


def test_backends_without_a_device_half() -> None:
    assert device._device_half("no such backend") is None
    # it declares no runtime
    assert device._device_half("BackendWithDelegateMappingDemo") is None
    assert device._device_half("TOSABackend") is None


class Known:
    registered_backend_names = ("Known",)
