"""Describe a backend under test for another process."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import operator
import os
import pickle
import sys
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .failures import CheckSkipped


class Place(NamedTuple):
    """The place of a function that another process can import."""

    module: str
    file: str
    name: str
    """The qualified name."""


@dataclass(frozen=True)
class Recipe:
    """A description of a backend from which another process can make it again.

    ``fields`` are arguments of ConfiguredBackend that can be pickled, ``functions`` the
    others. ``path`` and ``environment`` are those of this process.
    """

    fields: dict[str, Any]
    functions: dict[str, Place | bytes]
    environment: dict[str, str]
    path: list[str] = field(default_factory=lambda: list(sys.path))

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of ConfiguredBackend.

        Sets the path and the variables, and imports the modules of the functions.
        """
        sys.path[:] = self.path
        os.environ.clear()
        os.environ.update(self.environment)
        arguments = dict(self.fields)
        for name, function in self.functions.items():
            if isinstance(function, Place):
                arguments[name] = _load(function)
            else:
                arguments[name] = pickle.loads(function)
        return arguments


def portable(function: Any) -> Place | bytes:
    """Return the place of a function, or the pickle of another callable object.

    Skips the check if there is neither.
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
    return Place(module, file, name)


def _load(place: Place) -> Any:
    module = _import_by_name(place.module, place.file)
    if module is None:
        module = _import_by_file(place.module, place.file)
    return operator.attrgetter(place.name)(module)


def _import_by_name(module: str, file: str) -> Any:
    try:
        imported = importlib.import_module(module)
    except ImportError:
        return None
    found = os.path.abspath(getattr(imported, "__file__", None) or "")
    return imported if found == file else None


def _import_by_file(module: str, file: str) -> Any:
    """Import a test module from its file: pytest does not put its folder on the path."""
    spec = importlib.util.spec_from_file_location(module, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be imported")
    imported = importlib.util.module_from_spec(spec)
    sys.modules[module] = imported
    spec.loader.exec_module(imported)
    return imported
