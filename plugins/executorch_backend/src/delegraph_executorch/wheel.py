"""The wheel ``executorch``: ExecuTorch's own runtime on this host, with the headers
that it was built from.
"""

from __future__ import annotations

import ctypes
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from delegraph.errors import NoRuntime
from delegraph.io.quiet import quietly

QUANTIZED_KERNELS = "libexecutorch_kernels_quantized"
HINT = 'pip install "delegraph-executorch[runtime]"'


@cache
def stock_runtime() -> Any:
    """The runtime. Raises NoRuntime, with what to install, if the wheel is missing or
    cannot be imported.
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
    """Load the kernels of ``quantized_decomposed`` into the runtime. Raises NoRuntime
    if they cannot be loaded.

    The wheel has them in a library that its runtime does not load. Loading it declares
    no operators in torch.
    """
    stock_runtime()  # imported first: it brings the library that this one is linked to
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
        raise NoRuntime(
            "no-runtime",
            f"ExecuTorch's quantized kernels cannot be loaded: {e}",
            hint=HINT,
        ) from e


def in_c_order(given: Any) -> Any:
    """A tensor as the runtime takes it. Its strides are those of C order even where it
    has no elements: PyTorch and numpy let them be anything there, and the runtime ends
    the process.
    """
    return given.contiguous() if given.numel() else given.new_empty(given.shape)


@cache
def version_of(distribution: str) -> str:
    """The version of an installed distribution, such as ``1.5.1``; "" if it is not
    installed.
    """
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def wheel_folder() -> Path:
    """Where the wheel is installed, found without importing it. Raises NoRuntime if it
    is missing.
    """
    spec = find_spec("executorch")
    folders = (
        [Path(folder) for folder in spec.submodule_search_locations or []]
        if spec
        else []
    )
    for folder in folders:
        if (folder / "lib").is_dir() and (folder / "include").is_dir():
            return folder
    raise NoRuntime(
        "no-runtime",
        "the headers and libraries of the wheel executorch are not installed",
        hint=HINT,
    )
