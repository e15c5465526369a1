"""The wheel ``executorch``: ExecuTorch's own runtime on this host, with the headers that it was built from."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from delegraph.errors import NoRuntime
from delegraph.io.quiet import quietly

HINT = 'pip install "delegraph-executorch[runtime]"'


@cache
def stock_runtime() -> Any:
    """The runtime. Raises NoRuntime, with what to install, if the wheel is missing or cannot be imported."""
    try:
        with quietly():
            from executorch.runtime import Runtime
    except ImportError as e:
        raise NoRuntime("no-runtime", f"ExecuTorch's runtime cannot be used here: {e}", hint=HINT) from e
    return Runtime.get()


def in_c_order(given: Any) -> Any:
    """A tensor as the runtime takes it. Its strides are those of C order even where it has no elements: PyTorch and
    numpy let them be anything there, and the runtime ends the process.
    """
    return given.contiguous() if given.numel() else given.new_empty(given.shape)


@cache
def version_of(distribution: str) -> str:
    """The version of an installed distribution, such as ``1.5.1``; "" if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def wheel_folder() -> Path:
    """Where the wheel is installed, found without importing it. Raises NoRuntime if it is missing."""
    spec = find_spec("executorch")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    for folder in folders:
        if (folder / "lib").is_dir() and (folder / "include").is_dir():
            return folder
    raise NoRuntime("no-runtime", "the headers and libraries of the wheel executorch are not installed", hint=HINT)
