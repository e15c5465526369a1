"""Errors of plugins name the plugin, what it was doing, and the user's line.

delegraph calls a plugin's code only inside of ``with AtWork(...)``, or through ``AtWork(...).around(function)``. One
may be made ahead, entered often (that costs about a microsecond), and by several threads at once::

    work = AtWork(runtime, "delegate", "partition ToyBackend_0 of method forward", nodes, registry)
    with work:
        results = delegate(*args)

Only the plugin's own call belongs inside: what the engine raises there would be blamed on the plugin. Checks of what it
returned come after the block, or raise a ContractViolation, which names its culprit itself.
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
    """Who knows the plugin of a class, such as a registry."""

    def owner(self, kind: type) -> PluginRecord | None:
        """The plugin that declares the class; None if none does."""


class _Named(Protocol):
    """What is at work, in a line."""

    @property
    def text(self) -> str: ...


_registry: ContextVar[Owners | None] = ContextVar("registry", default=None)
_at_work: list[_Named] = []
_watch: Callable[[str], None] | None = None


@dataclass(eq=False)
class AtWork:
    """A plugin's object at work; as a context manager it says so in the errors that are raised inside.

    ``plugin`` is a class, or an object of it; ``doing`` what was asked of it, such as "preprocess"; ``where`` the
    partition; ``nodes`` the operators concerned, whose first line in the user's program is told. ``registry`` knows the
    distribution; without it that of ``attributing`` is asked.

    Settings of torch that it left changed are put back, with a warning.
    A DelegraphError passes with its class and code and gains ``raised_by``. KeyboardInterrupt passes, as does what a
    signal handler of the program raises. Anything else, SystemExit included, becomes PluginFailed, whose cause it is.
    """

    plugin: Any
    doing: str
    where: str = ""
    nodes: Iterable[Any] = ()
    registry: Owners | None = None

    @cached_property
    def text(self) -> str:
        """``preprocess of ToyBackend (toy 1.0), at partition ToyBackend_0 of method forward``."""
        at = f", at {self.where}" if self.where else ""
        return f"{self.doing} of {self._kind.__name__} ({self.owner}){at}"

    @cached_property
    def owner(self) -> str:
        """Distribution and version, or the file of a class that no installed plugin has."""
        registry = self.registry or _registry.get()
        record = registry.owner(self._kind) if registry is not None else None
        if record is not None and record.distribution != IN_PROCESS:
            return record.owner
        return getattr(sys.modules.get(self._kind.__module__), "__file__", None) or self._kind.__module__

    @cached_property
    def _kind(self) -> type:
        """A wrapper of delegraph's own only passes on what the partitioner inside does."""
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
        """``function``, with its calls inside."""

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return call

    def _failed(self, error: BaseException, node: Any) -> PluginFailed:
        place = f" at {node.name} ({node.target})" if node is not None else ""
        text = f"{self.text}, raised {describe(error, own=[self._kind.__module__])}{place}"
        lines = map(source_of, self.nodes if node is None else [node])
        hint = f"if the text does not say what to do, tell the authors of {self.owner}; --debug shows the traceback"
        failed = PluginFailed("plugin-failed", text, node, next(filter(None, lines), None), hint)
        failed.raised_by = self.text
        return failed


def _by_signal(error: BaseException) -> bool:
    """Whether a signal handler raised it, for example one that ends the process in an orderly way."""
    handlers = {getattr(signal.getsignal(s), "__code__", None) for s in signal.valid_signals()}
    return any(frame.f_code in handlers for frame, _ in walk_tb(error.__traceback__))


def _node_given(error: BaseException) -> Any:
    """The one call that the innermost function was given. A local variable may be left over from a loop."""
    found = None
    for frame, _ in walk_tb(error.__traceback__):
        names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
        nodes = (v for v in map(frame.f_locals.get, names) if type(v).__module__ == "torch.fx.node")
        given = [n for n in nodes if getattr(n, "op", None) == "call_function"]
        found = given[0] if len(given) == 1 else found
    return found


@contextmanager
def attributing(registry: Owners) -> Iterator[None]:
    """Inside, ``registry`` knows the distribution of a plugin at work that was given no registry."""
    token = _registry.set(registry)
    try:
        yield
    finally:
        _registry.reset(token)


@contextmanager
def watched(watch: Callable[[str], None]) -> Iterator[None]:
    """Call ``watch`` with a line whenever what is at work changes in this process; "" if nothing is."""
    global _watch
    before, _watch = _watch, watch
    try:
        yield
    finally:
        _watch = before


@dataclass(frozen=True, eq=False)
class _Line:
    text: str


@contextmanager
def working(text: str) -> Iterator[None]:
    """Inside, ``text`` is at work, which whoever watches is told. Errors are the caller's to attribute."""
    line = _Line(text)
    _begin(line)
    try:
        yield
    finally:
        _end(line)


def _begin(work: _Named) -> None:
    remember()
    if _watch is not None:
        _at_work.append(work)
        _tell()


def _end(work: _Named) -> None:
    if _watch is not None and work in _at_work:
        _at_work.remove(work)
        _tell()
    put_back(work)


def _tell() -> None:
    if _watch is not None:
        _watch("; ".join(work.text for work in tuple(_at_work)))
