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
    """The module would be loaded from the working directory, although nobody installed it or put it on the path."""


class TargetMissing(AttributeError):
    """The module can be imported, but has nothing of that name."""


class ProcessExit(BaseException):
    """Imported code called ``os._exit``, which would have ended the process without a word."""


def installed_path() -> list[str]:
    """``sys.path`` without the working directory, unless somebody asked for that.

    Python puts it (or the script's folder) in front for scripts, ``-m``, ``-c`` and sessions. An entry behind the
    standard library comes from the installation (an editable install's ``.pth`` file) and stays, and so does one in
    PYTHONPATH.
    """
    here = _working_directory()
    own = sys.path.index(_STANDARD_LIBRARY) if _STANDARD_LIBRARY in sys.path else len(sys.path)
    asked = {os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p}
    kept = [p for p in sys.path[:own] if os.path.abspath(p or os.curdir) != here or here in asked]
    return [p for p in kept + sys.path[own:] if p not in ("", os.curdir)]


def _working_directory() -> str:
    """The working directory; "" if it was deleted, since nothing can be loaded from it then."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def find(module: str) -> ModuleSpec | None:
    """The import spec of ``module`` outside of the working directory; None if there is none. Imports nothing."""
    name, *rest = module.split(".")
    spec = _top_level(name, installed_path())
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
    return spec


def _top_level(name: str, path: list[str]) -> ModuleSpec | None:
    """The spec of a top-level module, from the first finder that has it.

    ``path`` is for the finder of files; others (built-in modules, some editable installs) have maps of their own.
    """
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
    """Import ``module``. Raises ShadowedByWorkingDirectory if its code lies there without being installed."""
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
    """The package's folder or the module's file, as an absolute path; None if it has neither."""
    if spec.submodule_search_locations:
        return os.path.abspath(next(iter(spec.submodule_search_locations)))
    return os.path.abspath(spec.origin) if spec.has_location and spec.origin else None


# --- code that ends the process ---------------------------------------------------------------------------------------

_guarded: dict[int, int] = {}
"""Thread in which ``os._exit`` raises -> the process in which it does."""
_guarding = threading.Lock()
_real_exit = os._exit


@contextlib.contextmanager
def exits_raise() -> Iterator[None]:
    """A block in which ``os._exit`` raises ProcessExit in this thread.

    In other threads, and in processes that the block forks, it ends the process as usual.
    """
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
    """Takes the place of ``os._exit``."""
    if _guarded.get(threading.get_ident()) == os.getpid():
        caller = sys._getframe(1)
        raise ProcessExit(f"os._exit({status!r}) was called ({caller.f_code.co_filename}:{caller.f_lineno})")
    _real_exit(status)


# --- objects ----------------------------------------------------------------------------------------------------------


def load(target: str, installed: bool = True) -> Any:
    """The object that ``"package.module:Qualified.name"`` names. Raises what the import raises, or TargetMissing.

    ``installed=False`` also imports from the working directory: that is for what this program itself registered.
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
