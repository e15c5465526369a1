"""Turns exceptions of partitioners and compilers into refusals.

The exception's text becomes the reason. The traceback is logged for the authors of the
backend.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from torch.export import ExportedProgram
from torch.fx import Node

from .. import errors
from ..discovery.explain_exception import name_and_text
from ..errors import DelegraphError, PluginFailed
from ..partitioner import Partitioner, Reason, Support

LOG = logging.getLogger("delegraph.failures")
"""Gets each exception that became a refusal, with its traceback, at level INFO."""
HINT = (
    "the logger delegraph.failures, and --debug of the command line, show the traceback"
)


def may_be_refusal(error: BaseException) -> bool:
    """Return whether an exception of a plugin can count as a refusal.

    PluginFailed can, because it reports an exception of a plugin. All other errors of
    ``delegraph.errors``, such as ContractViolation, cannot. MemoryError and attempts to
    exit, such as SystemExit, cannot, nor can an exception that one of these caused. All
    other exceptions can, also a plugin's subclasses of errors of ``delegraph.errors``.
    """
    # a subclass that a plugin defines is not an attribute of the module ``errors``
    is_own_error = getattr(errors, type(error).__name__, None) is type(error)
    if is_own_error and not isinstance(error, PluginFailed):
        return False
    cause: BaseException | None = error
    seen: set[int] = set()  # ``raise error from error`` makes a cycle
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        # attempts to exit, such as SystemExit, are no ``Exception``
        if not isinstance(cause, Exception) or isinstance(cause, MemoryError):
            return False
        cause = cause.__cause__ or cause.__context__
    return True


def text_of(failure: DelegraphError) -> str:
    """Return the name and the text of the exception that a plugin raised.

    That is the cause of ``failure``, or ``failure`` itself if it has no cause.
    """
    return name_and_text(failure.__cause__ or failure)


def log(failure: DelegraphError) -> None:
    """Log an exception that becomes a refusal, with its traceback."""
    LOG.info("%s", failure.message, exc_info=failure.__cause__ or failure)


def reason_of(error: BaseException) -> Reason:
    """Log ``error``, and return the reason for calls that are refused because of it.

    A partitioner or its support check raised ``error`` when it was asked about them.
    """
    # a PluginFailed reports the exception of the plugin
    failure = (
        error.__cause__
        if isinstance(error, PluginFailed) and error.__cause__
        else error
    )
    LOG.info("%s", error, exc_info=failure)
    text = name_and_text(failure)
    return Reason(
        f"the backend's support check raised {text}",
        hint=HINT,
        cause=f"its support check failed: {text}",
    )


class GuardedSupport:
    """A support check that refuses calls about which ``inner`` raises an exception.

    ``inner`` gives all other answers. Exceptions of its ``begin`` and ``is_constant``
    are not caught.
    """

    wraps = "inner"

    def __init__(self, inner: Support) -> None:
        self.inner = inner

    def begin(self, exported_program: ExportedProgram) -> None:
        self.inner.begin(exported_program)

    def why_not(self, node: Node) -> str | None:
        try:
            return self.inner.why_not(node)
        except Exception as error:
            return _refusal(error)

    def is_constant(self, node: Node) -> bool:
        return self.inner.is_constant(node)

    def partition_why_not(self, nodes: Sequence[Node]) -> Mapping[Node, str]:
        try:
            return self.inner.partition_why_not(nodes)
        except Exception as error:
            return dict.fromkeys(nodes, _refusal(error))


def guarded(partitioner: Partitioner) -> Partitioner | None:
    """Return a copy of ``partitioner`` with a guarded support check.

    Returns None if the partitioner, or the one that it wraps, has no support check.
    """
    twin: Any = copy.copy(partitioner)
    inner = getattr(twin, "inner", None)
    if isinstance(inner, Partitioner):  # a partitioner that wraps another one
        twin.inner = guarded(inner)
        return None if twin.inner is None else twin
    if not isinstance(twin.support, Support):
        return None
    twin.support = GuardedSupport(twin.support)
    return twin  # type: ignore[no-any-return]


def _refusal(error: Exception) -> Reason:
    """Return ``reason_of(error)``, which also logs the error.

    Raises ``error`` if it cannot count as a refusal.
    """
    if not may_be_refusal(error):
        raise error
    return reason_of(error)
