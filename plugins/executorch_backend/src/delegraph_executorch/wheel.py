"""Use the wheel ``executorch``: ExecuTorch's own runtime, and its headers."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from delegraph.errors import NoRuntime
from delegraph_engines import quietly

QUANTIZED_KERNELS = "libexecutorch_kernels_quantized"
"""Name of the library in the wheel that has the kernels of ``quantized_decomposed``."""
HINT = 'pip install "delegraph-executorch[runtime]"'


@cache
def stock_runtime() -> Any:
    """Return the runtime.

    Raises NoRuntime, with an install command, if the wheel is missing or broken.
    """
    try:
        with quietly():
            from executorch.runtime import Runtime
    except ImportError as e:
        raise NoRuntime(
            "no-runtime", f"ExecuTorch's runtime cannot be used here: {e}", hint=HINT
        ) from e
    return Runtime.get()


@cache
def load_quantized_kernels() -> None:
    """Load the kernels of ``quantized_decomposed`` into the runtime.

    The wheel has them in a library that its runtime does not load. Loading it declares
    no operators in torch. Raises NoRuntime if they cannot be loaded.
    """
    # Importing the runtime loads the library that this one is linked to.
    stock_runtime()
    found = sorted((wheel_folder() / "lib").glob(f"{QUANTIZED_KERNELS}.*"))
    if not found:
        text = (
            f"the wheel executorch {version_of('executorch')} has no library"
            f" {QUANTIZED_KERNELS}"
        )
        raise NoRuntime("no-runtime", text, hint=HINT)
    try:
        ctypes.CDLL(str(found[0]))
    except OSError as e:
        text = f"ExecuTorch's quantized kernels cannot be loaded: {e}"
        raise NoRuntime("no-runtime", text, hint=HINT) from e


def in_c_order(given: Any) -> Any:
    """Return a tensor with the strides of C order, as the runtime needs it."""
    if given.numel():
        return given.contiguous()
    # A tensor without elements counts as contiguous with any strides. The runtime
    # crashes for such strides.
    return given.new_empty(given.shape)


@cache
def version_of(distribution: str) -> str:
    """Return the version of a distribution, such as ``1.5.1``; "" if it is missing."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def wheel_folder() -> Path:
    """Return the wheel's folder, without importing it.

    Raises NoRuntime if it is missing.
    """
    spec = find_spec("executorch")
    locations = spec.submodule_search_locations if spec is not None else None
    for location in locations or []:
        folder = Path(location)
        if (folder / "lib").is_dir() and (folder / "include").is_dir():
            return folder
    raise NoRuntime(
        "no-runtime",
        "the headers and libraries of the wheel executorch are not installed",
        hint=HINT,
    )
