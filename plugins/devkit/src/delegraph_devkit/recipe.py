"""A backend under test as it travels to another process."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pickle
import sys
from dataclasses import dataclass, field
from typing import Any

from .failures import CheckSkipped

Place = tuple[str, str, str]
"""Module, file and qualified name of a function that another process can import."""


@dataclass(frozen=True)
class Recipe:
    """How another process makes the backend under test, with the path and the variables
    of this one.
    """

    fields: dict[str, Any]
    functions: dict[str, Place | bytes]
    environment: dict[str, str]
    path: list[str] = field(default_factory=lambda: list(sys.path))

    def arguments(self) -> dict[str, Any]:
        """What BackendUnderTest is made with; takes over path and variables, and
        imports the functions' modules.
        """
        sys.path[:] = self.path
        os.environ.clear()
        os.environ.update(self.environment)
        functions = {
            n: _load(f) if isinstance(f, tuple) else pickle.loads(f)
            for n, f in self.functions.items()
        }
        return {**self.fields, **functions}


def portable(function: Any) -> Place | bytes:
    """A function by its place, any other callable object pickled; skips the check if
    that cannot be.
    """
    if not inspect.isfunction(function):
        try:
            return pickle.dumps(function)
        except (pickle.PicklingError, AttributeError, TypeError) as e:
            raise CheckSkipped(
                f"{function!r:.80} cannot be sent to another process: {e}"
            ) from e
    name = getattr(function, "__qualname__", "<unnamed>")
    module = getattr(function, "__module__", "")
    try:
        file = os.path.abspath(inspect.getfile(function))
    except TypeError:
        file = ""
    if "<" in name or not os.path.exists(file):
        raise CheckSkipped(
            f"{name} is no function of a module, so another process cannot import it"
        )
    return module, file, name


def _load(place: Place) -> Any:
    module, file, name = place
    value = _import_by_name(module, file) or _import_by_file(module, file)
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _import_by_name(module: str, file: str) -> Any:
    try:
        imported = importlib.import_module(module)
    except ImportError:
        return None
    return (
        imported
        if os.path.abspath(getattr(imported, "__file__", None) or "") == file
        else None
    )


def _import_by_file(module: str, file: str) -> Any:
    """Import a test module from its file: pytest imports such modules without putting
    them on the path.
    """
    spec = importlib.util.spec_from_file_location(module, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be imported")
    imported = importlib.util.module_from_spec(spec)
    sys.modules[module] = imported
    spec.loader.exec_module(imported)
    return imported
