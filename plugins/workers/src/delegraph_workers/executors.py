"""Run calls in the threads of an executor, or in the thread that lowers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from functools import partial
from typing import Any, Generic, TypeVar

from delegraph.errors import OptionError

T = TypeVar("T")
_MOMENT = 0.05
"""Seconds that an executor has to begin a call.

If none of its calls runs after that, this thread makes the call.
"""


class Call(Generic[T]):
    """A call that is made once, by the first thread that begins it.

    ``takes_threads``: a thread of an executor may make it. ``outcome`` is done when the
    call has ended. The thread that begins the call acquires ``_first``, and never
    releases it.
    """

    def __init__(self, function: Callable[[], T], takes_threads: bool) -> None:
        self.takes_threads = takes_threads
        self.outcome: Future[T] = Future()
        self._function = function
        self._first = threading.Lock()

    @property
    def is_running(self) -> bool:
        """Return whether a thread makes the call now."""
        return self._first.locked() and not self.outcome.done()

    def begin(self) -> None:
        """Make the call, unless another thread has begun it.

        Errors go into ``outcome``.
        """
        if not self._first.acquire(blocking=False):
            return
        try:
            self.outcome.set_result(self._function())
        except BaseException as e:  # the caller gets it with the outcome
            self.outcome.set_exception(e)

    def drop(self) -> bool:
        """Cancel the call; return False if a thread has begun it."""
        return self._first.acquire(blocking=False) and self.outcome.cancel()

    def submit(self, executor: Executor) -> None:
        """Let the executor make the call.

        Raises OptionError, here or in ``outcome``, if it has no threads.
        """
        try:
            future = executor.submit(self.begin)
        except Exception as e:
            raise no_threads(executor, e) from e
        future.add_done_callback(partial(self._finished_by, executor))

    def _finished_by(self, executor: Executor, future: Future[None]) -> None:
        """Set an error if the executor ended the call without beginning it.

        ``future`` is the executor's own outcome of the call. The thread that lowers
        makes calls that the executor cancelled.
        """
        if not future.cancelled() and self._first.acquire(blocking=False):
            self.outcome.set_exception(no_threads(executor, future.exception()))

    def __reduce__(self) -> Any:
        """Refuse to be pickled, as an executor of processes would do."""
        raise TypeError(
            "a call belongs to this process and interpreter, and cannot be sent to"
            " another"
        )


def run_calls(calls: Sequence[Call[T]], executor: Executor | None) -> list[T]:
    """Make calls, and return their results.

    ``executor`` makes the calls that take threads, and this thread makes the others. If
    all threads of the executor wait for this one, this thread makes their calls, too.
    """
    in_threads = [c for c in calls if c.takes_threads and executor is not None]
    here = [c for c in calls if c not in in_threads]
    try:
        if executor is not None:
            for call in in_threads:
                call.submit(executor)
        for call in here:
            call.begin()
            call.outcome.result()
        for call in in_threads:
            _await(call, in_threads)
    finally:
        # before an error is raised, running calls end, and others do not begin
        wait([call.outcome for call in calls if not call.drop()])
    return [call.outcome.result() for call in calls]


def _await(call: Call[T], others: Sequence[Call[T]]) -> None:
    """Wait for ``call``, which is one of ``others``. Raises its error.

    If the executor runs none of ``others`` after a moment, this thread makes the call.
    """
    while not call.outcome.done():
        running = [c.outcome for c in others if c.is_running]
        if running:
            wait(running, return_when=FIRST_COMPLETED)
            continue
        wait([call.outcome], _MOMENT)  # the executor may be about to begin a call
        if not any(c.is_running for c in others):
            call.begin()
    call.outcome.result()


def no_threads(executor: Any, why: BaseException | None = None) -> OptionError:
    """Return the error for an executor that cannot run calls in threads.

    ``why`` is the error that shows it, if there is one.
    """
    text = (
        f"the executor is a {type(executor).__name__}, which cannot run calls in"
        " threads of this process"
    )
    if why is not None:
        text += f": {type(why).__name__}: {why}"
    hint = "pass for example concurrent.futures.ThreadPoolExecutor(4)"
    return OptionError("option-invalid", text, hint=hint)
