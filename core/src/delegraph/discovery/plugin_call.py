"""Adds to errors of plugins the name of the plugin, its task, and the user's line.

delegraph calls a plugin's code only inside of ``with PluginCall(...)``, or through
``PluginCall(...).around(function)``::

    where = "partition ToyBackend_0 of method forward"
    with PluginCall(runtime, "delegate", where, nodes, registry):
        results = delegate(*args)

The registry knows which distribution owns an object of a plugin. Only the call of the
plugin belongs inside: an error that delegraph raises there would get the name of the
plugin. Checks of the plugin's result come after the block.
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
from types import FunctionType, TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar

from delegraph_programs import source_of
from delegraph_programs.source_line import first_source

from ..errors import DelegraphError, PluginFailed
from ..plugin import IN_PROCESS
from .explain_exception import describe
from .records import PluginRecord
from .torch_settings import pop_settings, push_settings

P = ParamSpec("P")
R = TypeVar("R")


class Owners(Protocol):
    """Finds the plugin that declares a class. A registry is one."""

    def owner(self, kind: type) -> PluginRecord | None:
        """Return the plugin that declares the class; None if none does."""


_registry: ContextVar[Owners | None] = ContextVar("registry", default=None)


@dataclass(eq=False)
class PluginCall:
    """A context manager around a call of a plugin: it adds the plugin's name to errors
    that are raised inside. One object may serve many calls (about a microsecond each),
    also in several threads at once.

    ``plugin``: the plugin's class, an instance of it, or a function. ``doing``: the
    plugin's task, such as "preprocess". ``where``: the partition, if there
    is one. ``nodes``: the operators that the call is about; an error shows the first
    known line of the user's program among them. ``registry``: finds the plugin's
    distribution; None for the registry of the enclosing ``using_registry`` block.

    A DelegraphError keeps its class and code, and gets ``raised_by``. KeyboardInterrupt
    and errors of the program's own signal handlers pass unchanged. Every other error,
    SystemExit included, becomes a PluginFailed with that error as cause. Settings of
    torch that the plugin changed are restored, with a warning.
    """

    plugin: Any
    doing: str
    where: str = ""
    nodes: Iterable[Any] = ()
    registry: Owners | None = None

    @cached_property
    def text(self) -> str:
        """Return a line such as ``preprocess of ToyBackend (toy 1.0), at partition
        ToyBackend_0 of method forward``.
        """
        at = f", at {self.where}" if self.where else ""
        return f"{self.doing} of {self._kind.__name__} ({self.owner}){at}"

    @cached_property
    def owner(self) -> str:
        """Return the plugin's distribution and version. If no installed plugin declares
        the class, return the file of its module, or else the module's name.
        """
        registry = self.registry or _registry.get()
        record = registry.owner(self._kind) if registry is not None else None
        # a plugin that was registered in this process has no distribution
        if record is not None and record.distribution != IN_PROCESS:
            return record.owner
        module: str = self._kind.__module__
        return getattr(sys.modules.get(module), "__file__", None) or module

    @cached_property
    def _kind(self) -> Any:
        """Return the plugin's class or function; for a wrapper, that of the wrapped
        object.

        A wrapper's class has ``wraps = "NAME"``: the attribute NAME of the wrapper is
        the wrapped object. A class that only inherits ``wraps`` is not a wrapper.
        """
        plugin = self.plugin
        while "wraps" in vars(type(plugin)):
            plugin = getattr(plugin, plugin.wraps)
        return plugin if isinstance(plugin, type | FunctionType) else type(plugin)

    def __enter__(self) -> None:
        """Keep torch's settings, which ``__exit__`` restores."""
        push_settings()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Restore torch's settings and treat the error, if there is one, as the class
        describes.
        """
        pop_settings(lambda: self.text)
        if (
            error is None
            or isinstance(error, KeyboardInterrupt)
            or _is_from_signal_handler(error)
        ):
            return
        node = _node_argument(error)
        if not isinstance(error, DelegraphError):
            raise self._failed(error, node) from error
        # a PluginCall inside of this block may have named its own plugin already
        if error.raised_by is None:
            error.raised_by = self.text
            error.node = error.node or node
            if error.source is None and node is not None:
                error.source = source_of(node)

    def around(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return a function that passes its arguments to ``function``, inside of
        ``with self``.
        """

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return call

    def _failed(self, error: BaseException, node: Any) -> PluginFailed:
        """Return the PluginFailed that replaces ``error``. ``node``: the
        operator that the error is about; None if not known.
        """
        at = f" at {node.name} ({node.target})" if node is not None else ""
        text = f"{self.text}, raised {describe(error, own=[self._kind.__module__])}{at}"
        source = first_source(self.nodes if node is None else [node])
        hint = (
            f"if the text does not say what to do, tell the authors of {self.owner};"
            " --debug shows the traceback"
        )
        failed = PluginFailed("plugin-failed", text, node, source, hint)
        failed.raised_by = self.text
        return failed


def _is_from_signal_handler(error: BaseException) -> bool:
    """Return whether one of the functions in the traceback is the handler of a signal,
    set by the user's program.
    """
    handlers = {
        getattr(signal.getsignal(s), "__code__", None) for s in signal.valid_signals()
    }
    return any(frame.f_code in handlers for frame, _ in walk_tb(error.__traceback__))


def _node_argument(error: BaseException) -> Any:
    """Return the call node that ``error`` is about; None if not known.

    A plugin usually passes the node that it works on from function to function, such as
    ``lower_conv(node)``. So this returns the argument of the innermost function in the
    traceback that has exactly one call node among its arguments. Other local variables
    are not considered, because they may be left over from a loop.
    """
    node = None
    # from the outermost function to the innermost
    for frame, _ in walk_tb(error.__traceback__):
        parameters = frame.f_code.co_varnames[: frame.f_code.co_argcount]
        # the module's name is compared, and not the class, because torch may not be
        # imported
        nodes = (
            v
            for v in map(frame.f_locals.get, parameters)
            if type(v).__module__ == "torch.fx.node"
        )
        calls = [n for n in nodes if getattr(n, "op", None) == "call_function"]
        if len(calls) == 1:
            node = calls[0]
    return node


@contextmanager
def using_registry(registry: Owners) -> Iterator[None]:
    """A block in which each ``PluginCall`` without a registry uses ``registry``."""
    token = _registry.set(registry)
    try:
        yield
    finally:
        _registry.reset(token)
