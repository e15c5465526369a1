"""Errors of plugins name the plugin, what it was doing, and the user's line.

delegraph calls a plugin's code only inside of ``with AtWork(...)``, or through ``AtWork(...).around(function)``. An
AtWork may be made ahead, and be entered often (that costs about a microsecond) and by several threads at once::

    work = AtWork(runtime, "delegate", "partition ToyBackend_0 of method forward", nodes, registry)
    with work:
        results = delegate(*args)

Only the plugin's own call belongs inside: an error of the engine in there would be blamed on the plugin. Checks of what
the plugin returned come after the block, or raise a ContractViolation, which names its culprit itself.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from traceback import walk_tb
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar

from ..errors import DelegraphError, PluginFailed
from ..plugin import IN_PROCESS
from ..source import source_of
from .record import PluginRecord, describe
from .torch_settings import put_back, remember

P = ParamSpec("P")
R = TypeVar("R")


class Owners(Protocol):
    """Something that knows which plugin declares a class, such as a registry."""

    def owner(self, kind: type) -> PluginRecord | None:
        """The plugin that declares the class; None if none does."""


class _Work(Protocol):
    """Something that is at work, described in a line."""

    @property
    def text(self) -> str: ...


_registry: ContextVar[Owners | None] = ContextVar("registry", default=None)
_at_work: list[_Work] = []
_watch: Callable[[str], None] | None = None


@dataclass(eq=False)
class AtWork:
    """A plugin's object at work. As a context manager it adds the plugin's name to errors that are raised inside.

    ``plugin`` is a class or an object of it. ``doing`` is what was asked of it, such as "preprocess", ``where`` is the
    partition, and ``nodes`` are the operators concerned, of which an error tells the first known line in the user's
    program. ``registry`` knows the class's distribution; without one, the registry of ``attributing`` is asked.

    Settings of torch that the plugin changed are restored afterwards, with a warning. A DelegraphError keeps its class
    and code and gains ``raised_by``. KeyboardInterrupt passes, and so does an error raised by a signal handler of the
    program. Anything else, also SystemExit, becomes PluginFailed, with the error as its cause.
    """

    plugin: Any
    doing: str
    where: str = ""
    nodes: Iterable[Any] = ()
    registry: Owners | None = None

    @cached_property
    def text(self) -> str:
        """The work in a line: ``preprocess of ToyBackend (toy 1.0), at partition ToyBackend_0 of method forward``."""
        at = f", at {self.where}" if self.where else ""
        return f"{self.doing} of {self._kind.__name__} ({self.owner}){at}"

    @cached_property
    def owner(self) -> str:
        """The plugin's distribution and version; the file of a class that no installed plugin declares."""
        registry = self.registry or _registry.get()
        record = registry.owner(self._kind) if registry is not None else None
        if record is not None and record.distribution != IN_PROCESS:
            return record.owner
        return getattr(sys.modules.get(self._kind.__module__), "__file__", None) or self._kind.__module__

    @cached_property
    def _kind(self) -> type:
        """The plugin's class. A wrapper of delegraph's own only passes calls on, so this looks inside of it."""
        found = self.plugin
        while type(found).__module__.startswith("delegraph.") and hasattr(found, "inner"):
            found = found.inner
        return found if isinstance(found, type) else type(found)

    def __enter__(self) -> None:
        _begin(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        _end(self)
        if error is None or isinstance(error, KeyboardInterrupt) or _by_signal(error):
            return
        node = _node_given(error)
        if not isinstance(error, DelegraphError):
            raise self._failed(error, node) from error
        if error.raised_by is None:
            error.raised_by = self.text
            error.node = error.node or node
            error.source = error.source or (node and source_of(node))

    def around(self, function: Callable[P, R]) -> Callable[P, R]:
        """A function that calls ``function`` inside of this block."""

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return call

    def _failed(self, error: BaseException, node: Any) -> PluginFailed:
        """The PluginFailed for an error of another kind. ``node`` is the call that it is about, if that is known."""
        place = f" at {node.name} ({node.target})" if node is not None else ""
        text = f"{self.text}, raised {describe(error, own=[self._kind.__module__])}{place}"
        lines = map(source_of, self.nodes if node is None else [node])
        hint = f"if the text does not say what to do, tell the authors of {self.owner}; --debug shows the traceback"
        failed = PluginFailed("plugin-failed", text, node, next(filter(None, lines), None), hint)
        failed.raised_by = self.text
        return failed


def _by_signal(error: BaseException) -> bool:
    """Whether a signal handler raised the error, for example one that ends the process in an orderly way."""
    handlers = {getattr(signal.getsignal(s), "__code__", None) for s in signal.valid_signals()}
    return any(frame.f_code in handlers for frame, _ in walk_tb(error.__traceback__))


def _node_given(error: BaseException) -> Any:
    """The call node that the innermost function got as an argument, if it got exactly one; else None.

    Local variables are not looked at: one may be left over from a loop.
    """
    found = None
    for frame, _ in walk_tb(error.__traceback__):
        names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
        nodes = (v for v in map(frame.f_locals.get, names) if type(v).__module__ == "torch.fx.node")
        given = [n for n in nodes if getattr(n, "op", None) == "call_function"]
        found = given[0] if len(given) == 1 else found
    return found


@contextmanager
def attributing(registry: Owners) -> Iterator[None]:
    """A block in which ``registry`` is asked for the distribution of plugins that are at work without a registry."""
    token = _registry.set(registry)
    try:
        yield
    finally:
        _registry.reset(token)


@contextmanager
def watched(watch: Callable[[str], None]) -> Iterator[None]:
    """A block in which ``watch`` is called with a line whenever another work begins or ends here.

    "" if none is left.
    """
    global _watch
    before, _watch = _watch, watch
    try:
        yield
    finally:
        _watch = before


@dataclass(frozen=True, eq=False)
class _Line:
    """Work that is described by a text alone."""

    text: str


@contextmanager
def working(text: str) -> Iterator[None]:
    """A block that counts as the work ``text``, for ``watched``. Errors are the caller's to attribute."""
    line = _Line(text)
    _begin(line)
    try:
        yield
    finally:
        _end(line)


def _begin(work: _Work) -> None:
    """Note that a work begins: the settings of torch, and what whoever watches is told."""
    remember()
    if _watch is not None:
        _at_work.append(work)
        _tell()


def _end(work: _Work) -> None:
    """Note that a work has ended."""
    if _watch is not None and work in _at_work:
        _at_work.remove(work)
        _tell()
    put_back(work)


def _tell() -> None:
    """Tell whoever watches what is at work."""
    if _watch is not None:
        _watch("; ".join(work.text for work in tuple(_at_work)))
