"""The device half of a backend on this host: a C++ file, built against the wheel
``executorch``, in its own runtime.

The wheel has the headers and the runtime as a shared library. What is built links that
one: a second copy would have a list of backends of its own, which nobody reads.
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
"""Folder among the wheel's headers that these include from."""
LIBRARIES = (".so", ".dylib", ".dll")
"""Suffixes of libraries, which are loaded as they are; any other file is built first.
"""
_LOADING = threading.Lock()


def compiler_line(source: str | Path, library: str | Path) -> list[str]:
    """The command that builds the library, as a list of words; the compiler is ``$CXX``
    or one on the path.

    Raises NoRuntime if the wheel or a compiler is missing.
    """
    wheel = wheel_folder()
    headers = [
        word
        for folder in ("", C10)
        for word in ("-isystem", str(wheel / "include" / folder))
    ]
    flags = [
        "-std=c++17",
        "-O2",
        "-fPIC",
        "-shared",
        "-DC10_USING_CUSTOM_GENERATED_MACROS",
        *headers,
    ]
    return [
        *_compiler(),
        *flags,
        str(source),
        f"-L{wheel / 'lib'}",
        "-lexecutorch",
        "-o",
        str(library),
    ]


def build_library(source: str | Path, library: str | Path) -> None:
    """Run ``compiler_line``. Raises NoRuntime as it does, and WriteError with what the
    compiler says.
    """
    done = subprocess.run(
        compiler_line(source, library), capture_output=True, text=True, errors="replace"
    )
    if done.returncode != 0:
        raise WriteError(
            "write-failed",
            f"cannot build {library} from {source}: {done.stderr.strip()}",
        )


def load_library(library: str | Path) -> None:
    """Load a library into ExecuTorch's runtime in this process, for good; loading it
    again does nothing.

    Raises NoRuntime if the wheel is missing, InputError for a file that cannot be
    loaded or registers no backend.
    """
    with _LOADING:
        _load(Path(library).resolve())


def load_device_halves(backend_ids: Iterable[str]) -> None:
    """Load the device halves that plugins have for backends that the runtime lacks,
    once a process.

    A C++ file is built first, in a temporary folder. A backend without a device half is
    left to the runtime to refuse. Raises what ``build_library`` and ``load_library``
    do, and PluginBroken for a plugin that cannot be loaded.
    """
    with _LOADING:
        known = stock_runtime().backend_registry.registered_backend_names
        for half in [_half(name) for name in backend_ids if name not in known]:
            if half is not None:
                _load_half(half)


def _half(backend_id: str) -> Path | None:
    try:
        return delegraph.get_runtime(backend_id).device_half
    except (BackendNotFound, NoRuntime):
        return None


@cache
def _load_half(half: Path) -> None:
    if half.suffix in LIBRARIES:
        return _load(half.resolve())
    # what is loaded stays loaded when its file goes
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, f"lib{half.stem}.so")
        build_library(half, library)
        _load(library)


@cache
def _load(library: Path) -> None:
    # imported first: it brings the library that this one is linked to
    registry = stock_runtime().backend_registry
    before = set(registry.registered_backend_names)
    try:
        ctypes.CDLL(os.fspath(library))
    except OSError as e:
        raise InputError("input-invalid", f"cannot load the library: {e}") from e
    if before == set(registry.registered_backend_names):
        text = (
            f"{library.name} registers no backend that ExecuTorch's runtime did not"
            " have before"
        )
        raise InputError(
            "input-invalid",
            text,
            hint="register_backend is called when a library is loaded, once a name",
        )


def _compiler() -> list[str]:
    chosen = shlex.split(os.environ.get("CXX", "")) or ["c++", "g++", "clang++"]
    first = (
        chosen
        if "CXX" in os.environ
        else next(([c] for c in chosen if shutil.which(c)), [])
    )
    if not first or shutil.which(first[0]) is None:
        text = f"there is no C++ compiler here ({', '.join(chosen)})"
        raise NoRuntime(
            "no-runtime",
            text,
            hint="install one, or name it in the environment variable CXX",
        )
    return first
