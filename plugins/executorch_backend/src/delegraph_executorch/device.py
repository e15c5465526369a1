"""Build and load the device half of a backend on this host.

The device half is C++ code that runs the backend's blobs in ExecuTorch's runtime. It is
built against the wheel ``executorch``, which has the headers and the runtime as a
shared library. It links that library: another copy of the runtime would have its own
list of backends.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import delegraph
from delegraph.errors import BackendNotFound, InputError, NoRuntime, WriteError

from .wheel import stock_runtime, wheel_folder

C10 = "executorch/runtime/core/portable_type/c10"
"""Folder of c10's headers in the wheel, from which other headers include."""
LIBRARIES = (".so", ".dylib", ".dll")
"""Suffixes of libraries. Any other file is built first."""
_LOADING = threading.Lock()


def compiler_line(source: str | Path, library: str | Path) -> list[str]:
    """Return the command that builds ``library`` from ``source``, as a list of words.

    The compiler is ``$CXX`` or one on the path. Raises NoRuntime if the wheel or a
    compiler is missing.
    """
    wheel = wheel_folder()
    return [
        *_compiler(),
        "-std=c++17",
        "-O2",
        "-fPIC",
        "-shared",
        "-DC10_USING_CUSTOM_GENERATED_MACROS",
        "-isystem",
        str(wheel / "include"),
        "-isystem",
        str(wheel / "include" / C10),
        str(source),
        f"-L{wheel / 'lib'}",
        "-lexecutorch",
        "-o",
        str(library),
    ]


def build_library(source: str | Path, library: str | Path) -> None:
    """Build a library by ``compiler_line``.

    Raises NoRuntime like that function, and WriteError with the compiler's messages.
    """
    command = compiler_line(source, library)
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        text = f"cannot build {library} from {source}: {done.stderr.strip()}"
        raise WriteError("write-failed", text)


def load_library(library: str | Path) -> None:
    """Load a library into ExecuTorch's runtime in this process, once.

    Raises NoRuntime if the wheel is missing, InputError for a file that cannot be
    loaded or registers no backend.
    """
    with _LOADING:
        _load(Path(library).resolve())


def load_device_halves(backend_ids: Iterable[str]) -> None:
    """Load the device halves of backends that the runtime lacks.

    Plugins provide them. A C++ file is built first, in a temporary folder. A backend
    without a device half is ignored: the runtime refuses it later. Raises the errors of
    ``build_library`` and ``load_library``, and PluginBroken for a plugin that cannot be
    loaded.
    """
    with _LOADING:
        known = stock_runtime().backend_registry.registered_backend_names
        halves = [_device_half(name) for name in backend_ids if name not in known]
        for half in halves:
            if half is not None:
                _load_half(half)


def _device_half(backend_id: str) -> Path | None:
    """Return the file of a backend's device half; None if no plugin has one."""
    try:
        return delegraph.get_runtime(backend_id).device_half
    except (BackendNotFound, NoRuntime):
        return None


@cache
def _load_half(half: Path) -> None:
    """Load a device half, once; build it first if it is no library."""
    if half.suffix in LIBRARIES:
        return _load(half.resolve())
    # A loaded library stays loaded when its file is deleted.
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, f"lib{half.stem}.so")
        build_library(half, library)
        _load(library)


@cache
def _load(library: Path) -> None:
    """Load a library, once; InputError if it registers no new backend."""
    # Importing the runtime loads the library that this one is linked to.
    registry = stock_runtime().backend_registry
    before = set(registry.registered_backend_names)
    try:
        ctypes.CDLL(os.fspath(library))
    except OSError as e:
        raise InputError("input-invalid", f"cannot load the library: {e}") from e
    if before == set(registry.registered_backend_names):
        text = (
            f"{library.name} registers no backend that is new to ExecuTorch's runtime"
        )
        hint = "call register_backend in a static initializer, with a new name"
        raise InputError("input-invalid", text, hint=hint)


def _compiler() -> list[str]:
    """Return the command of the C++ compiler; NoRuntime if there is none."""
    given = shlex.split(os.environ.get("CXX", ""))
    candidates = [given] if given else [["c++"], ["g++"], ["clang++"]]
    for command in candidates:
        if shutil.which(command[0]) is not None:
            return command
    names = given or ["c++", "g++", "clang++"]
    text = f"there is no C++ compiler here ({', '.join(names)})"
    hint = "install one, or name it in the environment variable CXX"
    raise NoRuntime("no-runtime", text, hint=hint)
