"""The device half of a backend on this host: a C++ file, built against the wheel ``executorch``, in its own runtime.

The wheel has the headers and the runtime as a shared library. What is built links that one: a second copy would have a
list of backends of its own, which nobody reads.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from delegraph.errors import InputError, NoRuntime, WriteError

from .run.stock import HINT, stock_runtime

C10 = "executorch/runtime/core/portable_type/c10"
"""Folder among the wheel's headers that these include from."""


def compiler_line(source: str | Path, library: str | Path) -> list[str]:
    """The command that builds the library, as a list of words; the compiler is ``$CXX`` or one on the path.

    Raises NoRuntime if the wheel or a compiler is missing.
    """
    wheel = _wheel()
    headers = [word for folder in ("", C10) for word in ("-isystem", str(wheel / "include" / folder))]
    flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-DC10_USING_CUSTOM_GENERATED_MACROS", *headers]
    return [*_compiler(), *flags, str(source), f"-L{wheel / 'lib'}", "-lexecutorch", "-o", str(library)]


def build_library(source: str | Path, library: str | Path) -> None:
    """Run ``compiler_line``. Raises NoRuntime as it does, and WriteError with what the compiler says."""
    done = subprocess.run(compiler_line(source, library), capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        raise WriteError("write-failed", f"cannot build {library} from {source}: {done.stderr.strip()}")


def load_library(library: str | Path) -> None:
    """Load a library into ExecuTorch's runtime in this process, for good; loading it again does nothing.

    Raises NoRuntime if the wheel is missing, InputError for a file that cannot be loaded or registers no backend.
    """
    _load(Path(library).resolve())


@cache
def _load(library: Path) -> None:
    registry = stock_runtime().backend_registry  # imported first: it brings the library that this one is linked to
    before = set(registry.registered_backend_names)
    try:
        ctypes.CDLL(os.fspath(library))
    except OSError as e:
        raise InputError("input-invalid", f"cannot load the library: {e}") from e
    if before == set(registry.registered_backend_names):
        text = f"{library.name} registers no backend that ExecuTorch's runtime did not have before"
        raise InputError("input-invalid", text, hint="register_backend is called when a library is loaded, once a name")


def _wheel() -> Path:
    """Where the wheel is installed; found without importing it."""
    spec = find_spec("executorch")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    for folder in folders:
        if (folder / "lib").is_dir() and (folder / "include").is_dir():
            return folder
    raise NoRuntime("no-runtime", "the headers and libraries of the wheel executorch are not installed", hint=HINT)


def _compiler() -> list[str]:
    chosen = shlex.split(os.environ.get("CXX", "")) or ["c++", "g++", "clang++"]
    first = chosen if "CXX" in os.environ else next(([c] for c in chosen if shutil.which(c)), [])
    if not first or shutil.which(first[0]) is None:
        text = f"there is no C++ compiler here ({', '.join(chosen)})"
        raise NoRuntime("no-runtime", text, hint="install one, or name it in the environment variable CXX")
    return first
