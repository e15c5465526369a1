"""What C and C++ code of models and plugins does to this process: it prints to descriptor 1, and it ends it.

Python sees neither. So the result goes to a copy of stdout, and a shell outside of this process waits for its end.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from ..io.escape import printable


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


@contextlib.contextmanager
def end_explained() -> Iterator[None]:
    """If a plugin at work ends the process, one line on stderr says which, and at what: a crash, exit(), SIGKILL."""
    from ..discovery.attribution import watched  # which needs pluggy: if that is missing, the command line says so

    witness = _Witness()
    with watched(witness.told) if os.path.exists(_SHELL) else contextlib.nullcontext():
        try:
            yield
        finally:
            witness.dismiss()


_SHELL = "/bin/sh"
_SCRIPT = """
trap '' INT TERM HUP
while IFS= read -r line; do [ "$line" = . ] && exit; last=$line; done
[ -n "$last" ] && printf 'error [plugin-crashed]: the process ended during %s\\n' "$last"
"""


class _Witness:
    """A shell that reads what is at work, and tells the last of it if that is never followed by a dot."""

    def __init__(self) -> None:
        self._owner, self._process, self._pipe = os.getpid(), 0, -1

    def told(self, line: str) -> None:
        """What is at work now. A forked process has another end."""
        if os.getpid() == self._owner:
            if not self._process:
                reading, self._pipe = os.pipe()
                streams = [(os.POSIX_SPAWN_DUP2, reading, 0), (os.POSIX_SPAWN_DUP2, 2, 1)]
                self._process = os.posix_spawn(_SHELL, [_SHELL, "-c", _SCRIPT], {}, file_actions=streams)
                os.close(reading)
            self._send(printable(line))

    def _send(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # somebody killed the witness; the work goes on without
            os.write(self._pipe, f"{line}\n".encode())

    def dismiss(self) -> None:
        """The process goes on, or ends in order."""
        if self._process and os.getpid() == self._owner:
            self._send(".")
            os.close(self._pipe)
            os.waitpid(self._process, 0)
            self._process = 0
