"""Imports the object that ``"package.module:Name"`` names, but never from the working
directory.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any, NoReturn

from .nearest_name import suggestion

_STANDARD_LIBRARY = os.path.dirname(os.__file__)


class ShadowedByWorkingDirectory(ImportError):
    """The module would be loaded from the working directory, although it is not
    installed there and the user did not put that folder on the path.
    """


class TargetMissing(AttributeError):
    """The module can be imported, but has no attribute of the target's name."""


class ProcessExit(BaseException):
    """Imported code called ``os._exit``, which would have ended the process without any
    message.
    """


def installed_path() -> list[str]:
    """Return ``sys.path`` without the working directory, unless the user put the
    directory on the path on purpose.

    Python itself puts the working directory, or the script's folder, first on the path.
    This entry is removed. The working directory stays in two cases: PYTHONPATH has it,
    or its entry comes after the standard library. Entries there come from the
    installation, for example from the ``.pth`` file of an editable install.
    """
    here = _working_directory()
    # the number of entries before the standard library
    count = len(sys.path)
    if _STANDARD_LIBRARY in sys.path:
        count = sys.path.index(_STANDARD_LIBRARY)
    before = sys.path[:count]
    wanted = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    is_wanted = here in (os.path.abspath(p) for p in wanted if p)
    if not is_wanted:
        before = [p for p in before if os.path.abspath(p or os.curdir) != here]
    # "" and "." change their meaning when the process changes its directory
    return [p for p in before + sys.path[count:] if p not in ("", os.curdir)]


def _working_directory() -> str:
    """Return the working directory; "" if it was deleted, since nothing can then be
    imported from it.
    """
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def find(module: str) -> ModuleSpec | None:
    """Return the import spec of ``module``; None if the module is not found. Does not
    search the working directory (``installed_path``).

    Imports nothing, not even parent packages.
    """
    name, *rest = module.split(".")
    spec = _top_level(name, installed_path())
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
    return spec


def _top_level(name: str, path: list[str]) -> ModuleSpec | None:
    """Return the spec of a top-level module, from the first finder on ``sys.meta_path``
    that finds the module; None if no finder does.

    Only the finder of files uses ``path``. Others (built-in modules, some editable
    installs) have tables of their own.
    """
    for finder in sys.meta_path:
        spec = finder.find_spec(name, path if finder is PathFinder else None)
        if isinstance(spec, ModuleSpec):
            return spec
    return None


def missing(modules: Iterable[str]) -> list[str]:
    """Return those of ``modules`` that are not installed. Imports nothing."""
    return [module for module in modules if not _is_installed(module)]


def _is_installed(module: str) -> bool:
    """Return whether ``module`` is imported or can be found. Imports nothing."""
    # None in ``sys.modules`` forbids the import of a module
    if module in sys.modules:
        return sys.modules[module] is not None
    return find(module) is not None


def import_installed(module: str) -> Any:
    """Import ``module`` and return it.

    Raises ShadowedByWorkingDirectory if Python would take the module's package from the
    working directory, unless the package is installed there (an editable install).
    Other errors of the import pass unchanged.
    """
    top = module.partition(".")[0]
    # if the package is already imported, check the place from which it was loaded
    loaded = sys.modules.get(top)
    spec = loaded.__spec__ if loaded is not None else _top_level(top, list(sys.path))
    location = _location(spec) if spec is not None else None
    if location is not None and os.path.dirname(location) == _working_directory():
        installed = find(top)  # does not search the working directory
        if installed is None or _location(installed) != location:
            raise ShadowedByWorkingDirectory(
                f"module {top!r} would be loaded from the working directory"
                f" ({location}), but plugins are loaded only from where they are"
                " installed"
            )
    return importlib.import_module(module)


def _location(spec: ModuleSpec) -> str | None:
    """Return the folder of a package, or the file of another module, as an absolute
    path; None if the module has neither.
    """
    if spec.submodule_search_locations:
        return os.path.abspath(next(iter(spec.submodule_search_locations)))
    return os.path.abspath(spec.origin) if spec.has_location and spec.origin else None


# --- code that hangs ------------------------------------------------------------------

HANG = 5.0
"""Seconds that the import of a light module may take before its stack is shown."""
shows_hangs = False
"""Whether ``hangs_shown`` does anything. Only the command line sets this: ``faulthandler``
has one timer for the process, which another program may need itself.
"""


@contextlib.contextmanager
def hangs_shown() -> Iterator[None]:
    """A block during which the stack is printed to stderr if the block takes longer than
    HANG seconds. If ``shows_hangs`` is False, nothing is printed.
    """
    if not shows_hangs:
        yield
        return
    faulthandler.dump_traceback_later(HANG, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


# --- code that ends the process -------------------------------------------------------


@contextlib.contextmanager
def exits_raise() -> Iterator[None]:
    """A block in which ``os._exit`` raises ProcessExit if this thread calls it.

    In other threads, and in processes that are forked inside the block, ``os._exit``
    ends the process as usual.
    """
    outer_exit = os._exit
    inside = (os.getpid(), threading.get_ident())
    is_active = True

    def raise_or_exit(status: int) -> NoReturn:
        """Raise ProcessExit in the thread of the block; otherwise end the process. This
        replaces ``os._exit``.
        """
        if not is_active or inside != (os.getpid(), threading.get_ident()):
            outer_exit(status)
        caller = sys._getframe(1)
        place = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        raise ProcessExit(f"os._exit({status!r}) was called ({place})")

    os._exit = raise_or_exit
    try:
        yield
    finally:
        # If blocks of two threads overlap, the end of the other block may set
        # ``os._exit`` to this function again. It then only calls ``outer_exit``.
        is_active = False
        os._exit = outer_exit


# --- objects --------------------------------------------------------------------------


def load(target: str, installed: bool = True) -> Any:
    """Import and return the object that ``target``
    (``"package.module:Qualified.name"``) names.

    ``installed=False`` allows imports from the working directory, for targets that the
    user's own code registered. Raises the errors of the import, or TargetMissing if the
    module lacks the name.
    """
    module, _, qualified = target.partition(":")
    value = import_installed(module) if installed else importlib.import_module(module)
    # a qualified name such as ``Outer.Inner`` is looked up step by step
    for part in qualified.split("."):
        if not hasattr(value, part):
            file = getattr(sys.modules[module], "__file__", None) or "built in"
            text = f"module {module!r} ({file}) has no {qualified!r}"
            names = (name for name in dir(value) if not name.startswith("_"))
            raise TargetMissing(text + suggestion(part, names))
        value = getattr(value, part)
    return value


# --- public names of packages ---------------------------------------------------------


def lazy_names(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a function ``__getattr__`` for ``package``. It imports a module of the
    package when one of the module's public names is first used.

    ``names``: module, relative to the package -> its public names, with spaces between
    them. The function raises AttributeError for a name that is not among these.
    """
    # public name -> its module
    homes = {
        name: module for module, listed in names.items() for name in listed.split()
    }

    def get(name: str) -> Any:
        """Import the module of a public name and return the object."""
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name], package), name)

    return get
