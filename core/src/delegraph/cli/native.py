"""Keeps stdout for the result: C and C++ code of models and plugins prints to descriptor 1, without Python knowing.

So descriptor 1 is made to be stderr, and the result goes to a copy of the original.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def stdout_kept(to_the_end: bool) -> Iterator[None]:
    """A block in which descriptor 1 is stderr, and ``sys.stdout`` writes to what descriptor 1 was.

    With ``to_the_end`` it stays so until the process ends, because C++ streams write what is in their buffers then.
    Otherwise the buffers of C are written when the block ends, and descriptor 1 is restored.
    """
    kept, before = os.dup(1), sys.stdout
    os.dup2(2, 1)
    writes_to_1 = False
    with contextlib.suppress(OSError, AttributeError, ValueError):  # it may be replaced by another object, as in tests
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
            import ctypes  # imported late: it takes milliseconds, and a command that ends does without

            ctypes.CDLL(None).fflush(None)
            os.dup2(kept, 1)
        os.close(kept)
