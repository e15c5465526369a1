"""From ``"package.module:Name"`` to the object, without ever importing from the working directory."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any, NoReturn

_STANDARD_LIBRARY = os.path.dirname(os.__file__)


class ShadowedByWorkingDirectory(ImportError):
    """The module would have come from the working directory, which nobody installed or put on the path."""


class TargetMissing(AttributeError):
    """The module can be imported and has nothing of that name."""


class ProcessExit(BaseException):
    """Code that was imported called ``os._exit``, which would have ended the process without a word."""


def installed_path() -> list[str]:
    """``sys.path`` without the working directory, as far as nobody asked for it.

    Python puts it (or the script's folder) in front for scripts, ``-m``, ``-c`` and sessions. What stands behind the
    standard library comes from the installation (an editable install's ``.pth`` file) and stays; so does what
    PYTHONPATH names.
    """
    here = _working_directory()
    own = sys.path.index(_STANDARD_LIBRARY) if _STANDARD_LIBRARY in sys.path else len(sys.path)
    asked = {os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p}
    kept = [p for p in sys.path[:own] if os.path.abspath(p or os.curdir) != here or here in asked]
    return [p for p in kept + sys.path[own:] if p not in ("", os.curdir)]


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was deleted: nothing can be loaded from it
        return ""


def find(module: str) -> ModuleSpec | None:
    """The import spec of ``module`` outside the working directory, or None. Imports nothing, not even its parents."""
    name, *rest = module.split(".")
    spec = _top_level(name, installed_path())
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
    return spec


def _top_level(name: str, path: list[str]) -> ModuleSpec | None:
    """Ask every finder; those with a map of their own (built-in modules, some editable installs) need no path."""
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        spec = find_spec(name, path if finder is PathFinder else None) if find_spec else None
        if isinstance(spec, ModuleSpec):
            return spec
    return None


def missing(modules: Iterable[str]) -> list[str]:
    """Those of ``modules`` that cannot be found, without importing any."""
    return [m for m in modules if not (sys.modules.get(m) or (m not in sys.modules and find(m)))]


def import_installed(module: str) -> Any:
    """Import ``module``, unless that would run code that lies in the working directory."""
    top = module.partition(".")[0]
    loaded = sys.modules.get(top)
    spec = loaded.__spec__ if loaded is not None else _top_level(top, list(sys.path))
    where = _location(spec) if spec is not None else None
    if where is not None and os.path.dirname(where) == _working_directory():
        installed = find(top)
        if installed is None or _location(installed) != where:
            text = f"module {top!r} would be loaded from the working directory ({where}); "
            raise ShadowedByWorkingDirectory(text + "plugins are only loaded from where they are installed")
    return importlib.import_module(module)


def _location(spec: ModuleSpec) -> str | None:
    """The package's folder or the module's file, absolute."""
    if spec.submodule_search_locations:
        return os.path.abspath(next(iter(spec.submodule_search_locations)))
    return os.path.abspath(spec.origin) if spec.has_location and spec.origin else None


# --- code that ends the process ---------------------------------------------------------------------------------------

_guarded: dict[int, int] = {}
"""Thread whose ``os._exit`` raises -> the process that it is in."""
_guarding = threading.Lock()
_real_exit = os._exit


@contextlib.contextmanager
def exits_raise() -> Iterator[None]:
    """``os._exit`` raises ProcessExit in this thread; in others, and in processes that it forks, it is itself."""
    global _real_exit
    thread = threading.get_ident()
    with _guarding:
        if not _guarded:
            _real_exit, os._exit = os._exit, _raise_or_exit
        outer = _guarded.get(thread)
        _guarded[thread] = os.getpid()
    try:
        yield
    finally:
        with _guarding:
            if outer is None:
                del _guarded[thread]
            if not _guarded:
                os._exit = _real_exit


def _raise_or_exit(status: int) -> NoReturn:
    if _guarded.get(threading.get_ident()) == os.getpid():
        caller = sys._getframe(1)
        raise ProcessExit(f"os._exit({status!r}) was called ({caller.f_code.co_filename}:{caller.f_lineno})")
    _real_exit(status)


# --- objects ----------------------------------------------------------------------------------------------------------


def load(target: str, installed: bool = True) -> Any:
    """The object that ``"package.module:Qualified.name"`` names. Raises what the import raises, or TargetMissing.

    ``installed=False`` imports from the working directory too: for what this program itself registered.
    """
    module, _, qualified = target.partition(":")
    found = import_installed(module) if installed else importlib.import_module(module)
    for part in qualified.split("."):
        if not hasattr(found, part):
            from difflib import get_close_matches

            file = getattr(sys.modules[module], "__file__", None) or "built in"
            close = get_close_matches(part, [n for n in dir(found) if not n.startswith("_")], n=1)
            alike = f"; it has {close[0]!r}" if close else ""
            raise TargetMissing(f"module {module!r} ({file}) has no {qualified!r}{alike}")
        found = getattr(found, part)
    return found
