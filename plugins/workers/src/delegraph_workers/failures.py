"""Errors of workers in words of JSON, and errors of those words.

No class is looked up by what a message says it is.
"""

from __future__ import annotations

import builtins
import traceback
from collections.abc import Mapping
from typing import Any

from delegraph import errors
from delegraph.errors import DelegraphError


def describe(error: BaseException) -> dict[str, Any]:
    """An error in words of JSON."""
    kinds = [kind.__name__ for kind in type(error).__mro__]
    told: dict[str, Any] = {
        "kinds": kinds,
        "message": str(error),
        "trace": traceback.format_exc(),
    }
    if isinstance(error, DelegraphError):
        node = getattr(error.node, "name", None)
        told |= {
            "code": error.code,
            "message": error.message,
            "hint": error.hint,
            "node": node,
        }
        told["raised_by"] = error.raised_by
    return told


def error_of(told: Any, nodes: Mapping[str, Any]) -> BaseException:
    """The error that ``describe`` put into words, of a class that this process knows.

    ``nodes`` has nodes by name.
    """
    kinds = [str(kind) for kind in told["kinds"]]
    message = str(told["message"])
    ours = next((kind for kind in kinds if kind in errors.__all__), None)
    error: BaseException
    if ours is not None and "code" in told:
        node = nodes.get(str(told["node"]))
        hint = told["hint"]
        error = getattr(errors, ours)(
            str(told["code"]), message, node, hint=hint and str(hint)
        )
    else:
        known: dict[str, Any] = {
            name: kind
            for name, kind in vars(builtins).items()
            if isinstance(kind, type)
        }
        # no KeyboardInterrupt: nobody here has pressed a key
        raised = [
            known[k]
            for k in kinds
            if k in known and issubclass(known[k], (Exception, SystemExit))
        ]
        kind = raised[0] if raised else Exception
        try:
            error = kind(
                message if kinds[0] == kind.__name__ else f"{kinds[0]}: {message}"
            )
        except TypeError:  # such as UnicodeDecodeError, which takes five arguments
            error = RuntimeError(f"{kinds[0]}: {message}")
    error.__cause__ = InWorker(str(told["trace"]))
    return error


class InWorker(Exception):
    """The traceback of an error in a worker, for who looks for its cause."""

    def __str__(self) -> str:
        return f"in the worker:\n{self.args[0]}"
