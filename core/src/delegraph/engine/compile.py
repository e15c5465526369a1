"""The step ``compile``: makes the calls of backends, in order, each in the right thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from functools import partial
from typing import TYPE_CHECKING, Any

from ..backend import BackendDetails
from ..errors import OptionError
from .compile_cached import Lookups
from .preprocess import compile_work, compiles_jointly

if TYPE_CHECKING:
    from ..discovery.registry import Registry
    from .partition import Work

LOG = logging.getLogger("delegraph.progress")
_MOMENT = 0.05
"""Seconds that an executor has to begin a call. If none of its calls runs after that, this thread makes the call."""


class _Call:
    """One call of a backend, made by a thread of the executor or by the thread that lowers: by the first to begin it.

    ``backend`` gets the programs of ``work``, whose results the call stores there. ``registry``: knows the backends.
    ``may_refuse``: a refusal is stored as well, and is no error. ``cache``: gets the result; None for no cache.
    ``outcome`` is done when the call has ended. ``place``: what the call compiles, for the log. ``_first``: a lock that
    the thread takes that begins the call, and never releases.
    """

    def __init__(
        self,
        backend: type[BackendDetails],
        work: Sequence[Work],
        registry: Registry,
        may_refuse: bool,
        cache: Lookups | None,
    ) -> None:
        """A call that no thread has begun. The class describes the parameters."""
        self.backend, self._work, self._registry, self._may_refuse = backend, work, registry, may_refuse
        self._cache = cache
        self._first = threading.Lock()
        self.outcome: Future[None] = Future()
        self.place = ""

    @property
    def begun(self) -> bool:
        """Whether some thread has begun the call. That thread keeps the lock for good."""
        return self._first.locked()

    def begin(self) -> None:
        """Make the call, unless another thread has begun it. Errors go into ``outcome``."""
        if not self._first.acquire(blocking=False):
            return
        LOG.info(self.place)
        try:
            if self._cache is None:
                compile_work(self.backend, self._work, self._registry, self._may_refuse)
            else:  # with a cache, each call compiles a single partition
                self._cache.compile(self._work[0], self._registry, self._may_refuse)
            self.outcome.set_result(None)
        except BaseException as e:  # the caller gets it with the outcome
            self.outcome.set_exception(e)

    def counted(self, first: int, total: int) -> tuple[str, int]:
        """What the call compiles, as text for the log (``partition 3 of 28, xnnpack``); and a number.

        ``first``: the number of the first partition of this call. ``total``: how many partitions all calls have
        together. The returned number is that of the first partition of the next call.
        """
        after = first + len(self._work)
        name = self._registry.spec(self._work[0].partition.spec.backend_id).name
        numbers = f"partition {first}" if after == first + 1 else f"partitions {first} to {after - 1}"
        return f"{numbers} of {total}, {name}", after

    def drop(self) -> bool:
        """Keep every thread from beginning the call; returns False if a thread has begun it already.

        Whoever acquires ``_first`` makes the call; a call that is dropped is made by nobody.
        """
        return self._first.acquire(blocking=False) and self.outcome.cancel()

    def submit(self, executor: Executor) -> None:
        """Let the executor make the call. Raises OptionError, here or in ``outcome``, if it has no threads."""
        try:
            executor.submit(self.begin).add_done_callback(partial(self._finished_by_executor, executor))
        except Exception as e:
            raise _no_threads(executor, e) from e

    def _finished_by_executor(self, executor: Executor, future: Future[None]) -> None:
        """Called when the executor is done with the call: set an error if the executor never began it.

        ``future``: the executor's own outcome of the call. A call that the executor cancelled is left to the thread
        that lowers.
        """
        if not future.cancelled() and self._first.acquire(blocking=False):
            self.outcome.set_exception(_no_threads(executor, future.exception()))

    def __reduce__(self) -> Any:
        """Refuse to be pickled: an executor of processes would do so to send the call to another process."""
        raise TypeError("partitions are compiled in this process and interpreter, and cannot be sent to another")


def compile_all(
    work: Sequence[Work],
    registry: Registry,
    executor: Executor | None = None,
    may_refuse: bool = False,
    cache: Lookups | None = None,
) -> None:
    """Compile each program of ``work`` with its backend, and store the result in ``result`` of the work.

    Backends are called in the order in which they first appear: once if they compile all methods jointly, else once for
    each partition. Thread-safe backends are called in ``executor``, if there is one. All others are called on this
    thread, while no other thread lowers. If the executor cannot begin a call, because its threads all wait for this
    one, this thread makes it.

    ``cache``: a partition whose result it has is not compiled, and other results are added to it. Of equal partitions
    only one is compiled. None: no cache is used.

    ``may_refuse``: if a backend raises Unsupported for a partition, ``not_compiled`` of its work gets the reason, and
    the other calls go on. Without it, the error is raised.
    """
    if not isinstance(executor, Executor | None):
        raise _no_threads(executor, None)
    # a partitioner may give a backend's short name: from here on, modules have the name of its class
    for item in work:
        item.module.belongs_to(registry.get_backend(item.partition.spec.backend_id).__name__)
    left = work if cache is None else cache.look_up(work, registry)
    wanted = dict.fromkeys(w.partition.spec.backend_id for w in left)
    calls = [call for backend_id in wanted for call in _calls(backend_id, left, registry, may_refuse, cache)]
    aside: list[_Call] = []  # calls that the executor was given
    first = 1
    for call in calls:
        call.place, first = call.counted(first, len(left))
    try:
        if executor is not None:
            aside = [c for c in calls if c.backend.thread_safe]
            for call in aside:
                call.submit(executor)
        for call in (c for c in calls if c not in aside):
            call.begin()
            call.outcome.result()
        for call in aside:
            _await(call, aside)
    finally:  # before an error is raised, calls that run have to end, and the others must not begin (``drop``)
        wait([call.outcome for call in calls if not call.drop()])
    if cache is not None:
        cache.share(registry, may_refuse)


def _no_threads(executor: Any, why: BaseException | None) -> OptionError:
    """The error for an executor that cannot run calls in threads; ``why``: the error that shows it, if there is one."""
    reason = "" if why is None else f", which cannot run calls of this process: {type(why).__name__}: {why}"
    hint = "for example concurrent.futures.ThreadPoolExecutor(4)"
    text = f"executor is to run threads; it is a {type(executor).__name__}{reason}"
    return OptionError("option-invalid", text, hint=hint)


def _calls(
    backend_id: str, work: Sequence[Work], registry: Registry, may_refuse: bool, cache: Lookups | None
) -> list[_Call]:
    """The calls of one backend: one with all of its partitions if it compiles jointly, else one for each partition."""
    backend = registry.get_backend(backend_id)
    mine = [w for w in work if w.partition.spec.backend_id == backend_id]
    joint = compiles_jointly(backend)
    cache = None if joint else cache  # results of joint calls are not cached
    parts = [mine] if joint else [[item] for item in mine]
    return [_Call(backend, items, registry, may_refuse, cache) for items in parts]


def _await(call: _Call, others: Sequence[_Call]) -> None:
    """Wait for ``call``. If after a moment the executor runs none of ``others``, make the call on this thread.

    ``others``: all calls that the executor was given. Raises the error of the call.
    """

    def running() -> list[Future[None]]:
        """The outcomes of the calls that the executor runs now."""
        return [c.outcome for c in others if c.begun and not c.outcome.done()]

    while not call.outcome.done():
        if outcomes := running():
            wait(outcomes, return_when=FIRST_COMPLETED)
            continue
        wait([call.outcome], _MOMENT)  # the executor may be about to begin a call
        if not running():
            call.begin()
    call.outcome.result()
