"""C and C++ code of models and plugins prints to descriptor 1, of which Python sees nothing.

So the result goes to a copy of stdout.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def stdout_kept(to_the_end: bool) -> Iterator[None]:
    """Inside, descriptor 1 is stderr, and ``sys.stdout`` is what descriptor 1 was.

    It stays so if ``to_the_end`` of the process nothing else is to be printed: C++ streams write what is left in their
    buffers when the process ends. For a caller that goes on, what C has in its buffers is written before.
    """
    kept, before = os.dup(1), sys.stdout
    os.dup2(2, 1)
    writes_to_1 = False
    with contextlib.suppress(OSError, AttributeError, ValueError):  # somebody replaced it, as tests do
        writes_to_1 = before.fileno() == 1
    try:
        if writes_to_1:
            with open(kept, "w", encoding=before.encoding, errors=before.errors, closefd=False) as sys.stdout:
                yield
        else:
            yield
    finally:
        sys.stdout = before
        if not to_the_end:
            import ctypes  # not for a command that ends now: it takes milliseconds

            ctypes.CDLL(None).fflush(None)
            os.dup2(kept, 1)
        os.close(kept)
