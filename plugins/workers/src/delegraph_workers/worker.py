"""The process that compiles: ``python -m delegraph_workers.worker REQUESTS ANSWERS
LIFELINE``, three descriptors.

Each line of REQUESTS is a request, each line of ANSWERS says how far it is, both in
JSON. Jobs and answers themselves are files, which a dying process leaves whole or not
at all. Descriptors 1 and 2 are a file that the other side reads.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import Any


def main(requests: int, answers: int, lifeline: int) -> None:
    """Do one job after the other, until REQUESTS ends."""
    _die_with(lifeline)
    told = os.fdopen(answers, "w", buffering=1)

    def say(**fields: Any) -> None:
        told.write(json.dumps(fields) + "\n")
        told.flush()

    from .execute import execute, warm
    from .message import PROTOCOL

    warm(())
    say(ready=PROTOCOL, pid=os.getpid())
    for line in os.fdopen(requests):
        request = json.loads(line)
        if "prepare" in request:
            warm(request["prepare"])
            continue
        with open(request["job"], "rb") as file:
            job = file.read()
        if request["directory"]:
            os.chdir(request["directory"])
        answer = execute(job, lambda: say(begun=True), request["memory_limit"])
        with open(request["answer"] + ".partial", "wb") as written:
            written.write(answer)
        os.rename(request["answer"] + ".partial", request["answer"])
        sys.stdout.flush()
        say(done=True)


def _die_with(lifeline: int) -> None:
    """End this process when the other end of ``lifeline`` is closed, also in the middle
    of native code.
    """
    import fcntl

    # only Linux sends a signal; elsewhere a thread waits, as long as it gets a turn
    if not hasattr(fcntl, "F_SETSIG"):
        threading.Thread(target=_end_after, args=(lifeline,), daemon=True).start()
        return
    # to the group that it leads, so that a compiler that it runs as a process ends with
    # it
    fcntl.fcntl(
        lifeline,
        fcntl.F_SETOWN,
        -os.getpid() if os.getpgrp() == os.getpid() else os.getpid(),
    )
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(
        lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC
    )


def _end_after(lifeline: int) -> None:
    os.read(lifeline, 1)
    (os.killpg if os.getpgrp() == os.getpid() else os.kill)(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
