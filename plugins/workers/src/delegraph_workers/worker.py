"""Execute jobs in a process: ``python -m delegraph_workers.worker``.

Its arguments are three descriptors: REQUESTS, ANSWERS, LIFELINE. Each line of REQUESTS
is a request, each line of ANSWERS a step, both in JSON. Jobs and answers are files: a
process that dies leaves a whole answer or none. Descriptors 1 and 2 are a file that the
supervisor reads.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import Any


def main(requests: int, answers: int, lifeline: int) -> None:
    """Execute one job after the other, until REQUESTS ends."""
    _end_with(lifeline)
    steps = os.fdopen(answers, "w", buffering=1)

    def report(**fields: Any) -> None:
        steps.write(json.dumps(fields) + "\n")
        steps.flush()

    def report_begun() -> None:
        report(begun=True)

    from .execute import execute, warm
    from .message import PROTOCOL

    warm(())
    report(ready=PROTOCOL, pid=os.getpid())
    for line in os.fdopen(requests):
        request = json.loads(line)
        if "prepare" in request:
            warm(request["prepare"])
            continue
        with open(request["job"], "rb") as file:
            job = file.read()
        if request["directory"]:
            os.chdir(request["directory"])
        answer = execute(job, report_begun, request["memory_limit"])
        with open(request["answer"] + ".partial", "wb") as written:
            written.write(answer)
        os.rename(request["answer"] + ".partial", request["answer"])
        sys.stdout.flush()
        report(done=True)


def _end_with(lifeline: int) -> None:
    """End this process when the other end of ``lifeline`` is closed, also inside native
    code.
    """
    import fcntl

    # Linux sends a signal; on other systems a thread waits, which needs the GIL
    if not hasattr(fcntl, "F_SETSIG"):
        threading.Thread(
            target=_kill_when_closed, args=(lifeline,), daemon=True
        ).start()
        return
    # a negative number is a group of processes: child processes of compilers end, too
    owner = -os.getpid() if _leads_group() else os.getpid()
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, owner)
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)


def _leads_group() -> bool:
    return os.getpgrp() == os.getpid()


def _kill_when_closed(lifeline: int) -> None:
    """Wait until the other end of ``lifeline`` is closed, then kill this process."""
    os.read(lifeline, 1)
    if _leads_group():
        os.killpg(os.getpid(), signal.SIGKILL)
    else:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
