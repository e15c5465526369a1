"""Whether ExecuTorch's runtime on this host loads what was just compiled.

XNNPACK's compiler in ExecuTorch checks little. XNNPACK itself refuses a graph only when
it is loaded, which would be on the device.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock

from delegraph.backend import PreprocessResult
from delegraph.errors import FormatError, NoRuntime
from delegraph.io.blob import join

from ..wheel import stock_runtime
from .runtime import BridgedRuntime

LARGEST = 1 << 28
"""Bytes of constants up to which a blob is loaded; copying and packing more would take
noticeable time and memory.
"""
_LOG_LINE = re.compile(r"^\[\w+\.cpp:\d+\] (.*)$")
_STATUS = re.compile(r"xnn_status|Failed to")
_LOCK = Lock()


class NotLoadable(RuntimeError):
    """The runtime does not load what the compiler made."""


def has_runtime() -> bool:
    """Whether ExecuTorch's runtime can be used here."""
    try:
        stock_runtime()
    except NoRuntime:
        return False
    return True


def check_loads(runtime: type[BridgedRuntime], result: PreprocessResult) -> None:
    """Raise NotLoadable if the runtime here does not load ``result``. Large ones are
    not tried, nor any without it.
    """
    if not has_runtime():
        return
    named_data = _named_data(result)
    if sum(map(len, named_data.values())) > LARGEST:
        return
    lines: list[str] = []
    try:
        with _LOCK, _logged(lines.append):
            runtime.load(join(result.processed_bytes), (), named_data)
    except NoRuntime:
        return  # it does not say how it is called, as its sizes have no bounds
    except FormatError as e:
        reasons = [line for line in lines if _STATUS.search(line)]
        raise NotLoadable(
            f"XNNPACK does not load it: {reasons[0] if reasons else e.message}"
        ) from e


def _named_data(result: PreprocessResult) -> dict[str, bytes]:
    """The data of a result by key."""
    output = result.data_store_output
    if output is None:
        return {}
    stores = [output.pte_data, *output.external_data.values()]
    return {
        key: join(output.buffers[entry.buffer_index])
        for store in stores
        for key, entry in store.items()
    }


@contextmanager
def _logged(tell: Callable[[str], None]) -> Iterator[None]:
    """A block in which ``tell`` gets the lines that ExecuTorch's runtime logs to
    stderr; other output passes.

    The runtime writes to the file descriptor, which Python cannot intercept.
    """
    with tempfile.TemporaryFile() as kept:
        try:
            stderr = os.dup(2)
        except OSError:  # this process has no stderr
            yield
            return
        os.dup2(kept.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            kept.seek(0)
            for line in (
                kept.read().decode("utf-8", "replace").splitlines(keepends=True)
            ):
                match = _LOG_LINE.match(line)
                if match is not None:
                    tell(match[1])
                else:
                    with suppress(OSError):
                        os.write(stderr, line.encode())
            os.close(stderr)
