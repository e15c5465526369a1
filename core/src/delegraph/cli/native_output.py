"""Keeps prints of C and C++ code in models and plugins out of stdout, where only the
result belongs.

Such code prints to descriptor 1, which replacing ``sys.stdout`` does not affect. So
descriptor 1 is redirected to stderr, and the result is written to a copy of the
original descriptor.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def stdout_kept() -> Iterator[None]:
    """A block in which descriptor 1 is stderr, and ``sys.stdout`` writes to a copy of
    the original descriptor 1.

    At the end of the block, the buffers of C are flushed, and descriptor 1 and
    ``sys.stdout`` are restored. If ``sys.stdout`` does not write to descriptor 1, as in
    tests, only the descriptor is redirected.
    """
    original = os.dup(1)
    before = sys.stdout
    os.dup2(2, 1)  # from here on, descriptor 1 is stderr
    writes_to_1 = False
    # suppressed: sys.stdout is no file and has no descriptor
    with contextlib.suppress(OSError, AttributeError, ValueError):
        writes_to_1 = before.fileno() == 1
    try:
        if writes_to_1:
            # the ``with`` statement also assigns the opened file to sys.stdout
            with open(
                original,
                "w",
                encoding=before.encoding,
                errors=before.errors,
                closefd=False,
            ) as sys.stdout:
                yield
        else:
            yield
    finally:
        sys.stdout = before
        import ctypes  # imported late, because the import takes milliseconds

        # Flush the buffers of C while descriptor 1 is still stderr. On POSIX, CDLL(None)
        # is this process with all its libraries. Windows needs the name of C's library.
        ctypes.CDLL(None if os.name == "posix" else "ucrtbase").fflush(None)
        os.dup2(original, 1)
        os.close(original)
