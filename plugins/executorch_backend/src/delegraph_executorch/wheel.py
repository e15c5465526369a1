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
    """Return ExecuTorch's own runtime.

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

    The wheel has the kernels in a library that its runtime does not load. Loading the
    library declares no operators in torch. Raises NoRuntime if it cannot be loaded.
    """
    # Load the runtime first: the library of the kernels is linked to it.
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
    """Return a tensor with the strides of C order, which the runtime needs."""
    if given.numel():
        return given.contiguous()
    # ``contiguous`` keeps any strides of a tensor without elements, and for other
    # strides than those of C order, the runtime crashes.
    return given.new_empty(given.shape)


@cache
def version_of(distribution: str) -> str:
    """Return the version of a distribution, such as ``1.5.1``; "" if it is missing."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def wheel_folder() -> Path:
    """Return the folder of the wheel, without importing the wheel.

    Raises NoRuntime if the folder is missing.
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
