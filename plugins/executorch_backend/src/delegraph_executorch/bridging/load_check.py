"""Check that ExecuTorch's runtime on this host loads a compiled blob.

ExecuTorch's compiler for XNNPACK checks little, and XNNPACK refuses a graph only when a
runtime loads it. Without this check, the user would learn about it on the device.
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
from delegraph.io.blob_pieces import join

from ..wheel import stock_runtime
from .runtime import BridgedRuntime

LARGEST = 1 << 28
"""The most bytes of constants of a blob that is loaded.

Copying and packing more would take noticeable time and memory.
"""
_LOG_LINE = re.compile(r"^\[\w+\.cpp:\d+\] (.*)$")
"""A line that the runtime logs, such as ``[XNNCompiler.cpp:12] Failed to ...``."""
_CAUSE = re.compile(r"xnn_status|Failed to")
"""Text in the lines that give the cause of a failure."""
_STDERR_LOCK = Lock()
"""One thread at a time may redirect stderr."""


class NotLoadable(RuntimeError):
    """The runtime cannot load the compiled blob."""


def has_runtime() -> bool:
    """Return whether ExecuTorch's runtime can be used here."""
    try:
        stock_runtime()
    except NoRuntime:
        return False
    return True


def check_loads(runtime: type[BridgedRuntime], result: PreprocessResult) -> None:
    """Raise NotLoadable if the runtime here cannot load ``result``.

    Nothing is checked without a runtime, or for more named data than ``LARGEST`` bytes.
    """
    if not has_runtime():
        return
    named_data = _named_data(result)
    if sum(map(len, named_data.values())) > LARGEST:
        return
    lines: list[str] = []
    try:
        with _STDERR_LOCK, _logged(lines.append):
            # only for its errors
            runtime.load(join(result.processed_bytes), (), named_data)
    except NoRuntime:
        # A blob whose sizes have no bounds has no calling convention: skip the check.
        return
    except FormatError as e:
        causes = [line for line in lines if _CAUSE.search(line)]
        reason = causes[0] if causes else e.message
        raise NotLoadable(f"XNNPACK cannot load the blob: {reason}") from e


def _named_data(result: PreprocessResult) -> dict[str, bytes]:
    """Return the named data of a result."""
    output = result.data_store_output
    if output is None:
        return {}
    found = {}
    for entries in [output.pte_data, *output.external_data.values()]:
        for key, entry in entries.items():
            found[key] = join(output.buffers[entry.buffer_index])
    return found


@contextmanager
def _logged(on_line: Callable[[str], None]) -> Iterator[None]:
    """Pass log lines of ExecuTorch's runtime to ``on_line``, and print other output.

    The runtime writes to the file descriptor of stderr, which Python cannot intercept.
    """
    with tempfile.TemporaryFile() as captured:
        try:
            stderr = os.dup(2)
        except OSError:
            # This process has no stderr.
            yield
            return
        os.dup2(captured.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            captured.seek(0)
            text = captured.read().decode("utf-8", "replace")
            for line in text.splitlines(keepends=True):
                match = _LOG_LINE.match(line)
                if match is not None:
                    on_line(match[1])
                else:
                    with suppress(OSError):
                        os.write(stderr, line.encode())
            os.close(stderr)
