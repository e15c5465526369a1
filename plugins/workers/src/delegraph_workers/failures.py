"""Write errors of workers as JSON, and read them.

A message cannot make this process import or call a class: only known classes are made.
"""

from __future__ import annotations

import builtins
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from delegraph import errors
from delegraph.errors import DelegraphError


def write_error(error: BaseException) -> dict[str, Any]:
    """Return an error as values of JSON."""
    content: dict[str, Any] = {
        "kinds": [kind.__name__ for kind in type(error).__mro__],
        "message": str(error),
        "trace": traceback.format_exc(),
    }
    if isinstance(error, DelegraphError):
        content |= {
            "code": error.code,
            "message": error.message,
            "hint": error.hint,
            "node": getattr(error.node, "name", None),
            "raised_by": error.raised_by,
        }
    return content


def read_error(content: Any, nodes: Mapping[str, Any]) -> BaseException:
    """Return the error that ``write_error`` wrote as ``content``.

    An error of an unknown class becomes one of its built-in base class. ``nodes`` has
    nodes by name.
    """
    kinds = [str(kind) for kind in content["kinds"]]
    message = str(content["message"])
    ours = next((kind for kind in kinds if kind in errors.__all__), None)
    error: BaseException
    if ours is not None and "code" in content:
        node = nodes.get(str(content["node"]))
        hint = None if content["hint"] is None else str(content["hint"])
        kind = getattr(errors, ours)
        error = kind(str(content["code"]), message, node, hint=hint)
    else:
        error = _builtin_error(kinds, message)
    error.__cause__ = InWorker(str(content["trace"]))
    return error


def _builtin_error(kinds: Sequence[str], message: str) -> BaseException:
    """Return an error of the first built-in class in ``kinds``."""
    kind: Any = Exception
    for name in kinds:
        found = getattr(builtins, name, None)
        # no KeyboardInterrupt: the user of this process pressed no key
        if isinstance(found, type) and issubclass(found, (Exception, SystemExit)):
            kind = found
            break
    if kinds[0] != kind.__name__:
        message = f"{kinds[0]}: {message}"
    try:
        return kind(message)  # type: ignore[no-any-return]
    except TypeError:  # such as UnicodeDecodeError, which takes five arguments
        return RuntimeError(f"{kinds[0]}: {message}")


class InWorker(Exception):
    """The traceback of an error in a worker."""

    def __str__(self) -> str:
        return f"in the worker:\n{self.args[0]}"
