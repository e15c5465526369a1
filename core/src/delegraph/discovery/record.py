"""What became of a plugin: its record, its faults, and how a fault is put into words."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from traceback import walk_tb
from typing import Any

import pluggy

from ..plugin import EVENTS, BackendSpec, Declaration
from .loading import ProcessExit, ShadowedByWorkingDirectory, TargetMissing

ALLOW, DENY = "DELEGRAPH_PLUGINS", "DELEGRAPH_DISABLE_PLUGINS"


class Status(str, Enum):
    """What became of a plugin, or of one of its backends."""

    OK = "ok"
    DISABLED = "disabled"
    BROKEN = "broken"
    INCOMPATIBLE = "incompatible"
    CONFLICT = "conflict"
    UNAVAILABLE = "unavailable"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Fault:
    """What is wrong with a backend or a whole plugin, and what to do about it.

    ``status`` is what the fault makes of the plugin. It is ``ok`` for a warning: the plugin can be used all the same.
    """

    status: Status
    error: str
    hint: str = ""


@dataclass(frozen=True)
class PluginRecord:
    """One entry point, and what became of it.

    ``name`` is the entry point's. ``location`` is the file of the light module, or the distribution's folder if the
    file is not known. ``faults`` maps the short names of backends that cannot be used to the reason.
    """

    name: str
    distribution: str
    version: str
    location: str
    status: Status = Status.OK
    error: str = ""
    exception: BaseException | None = field(default=None, repr=False, compare=False)
    hint: str = ""
    declarations: tuple[Declaration, ...] = ()
    faults: Mapping[str, Fault] = field(default_factory=dict)
    warnings: tuple[Fault, ...] = ()
    requirements: tuple[str, ...] = ()
    """What its distribution requires, as METADATA says it."""
    objects: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """Target -> object, for what was registered in this process."""
    manager: pluggy.PluginManager | None = field(default=None, repr=False, compare=False)

    @property
    def owner(self) -> str:
        """Distribution and version, for messages."""
        return f"{self.distribution} {self.version}".strip()

    @property
    def modules(self) -> list[str]:
        """The plugin's light module, by its file, and the modules that its targets name."""
        return [self.location, *(d.target.partition(":")[0] for d in self.declarations)]

    @property
    def backends(self) -> list[BackendSpec]:
        """The backends that it declares."""
        return [d for d in self.declarations if isinstance(d, BackendSpec)]

    @property
    def events(self) -> list[str]:
        """The events that it listens to."""
        return [e for e in EVENTS if self.manager and getattr(self.manager.hook, e).get_hookimpls()]

    @property
    def address(self) -> str:
        """Distribution, version and file, for messages about several plugins at once."""
        return f"{self.owner} ({self.location})"

    def failed(self, fault: Fault, exception: BaseException | None = None) -> PluginRecord:
        """The same plugin, with a fault that makes it unusable."""
        return replace(self, status=fault.status, error=fault.error, hint=fault.hint, exception=exception)


class PluginDefect(Exception):
    """A plugin does not keep to ``delegraph.plugin``; ``remedy`` tells its authors what to change."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


# --- saying what is wrong ---------------------------------------------------------------------------------------------


_LONGEST = 1000
_INNOCENT = {*sys.stdlib_module_names, "delegraph"} - {"__main__"}
"""Packages in which a plugin's fault may show although they are not to blame."""


def describe(error: BaseException, own: Collection[str] = ()) -> str:
    """An exception in one line, with the innermost line of code in the plugin's packages.

    If none is there, it is the innermost one that is not in Python's library. ``own`` are modules of the plugin, or
    their files, as far as they are known; what counts is their package.
    """
    try:  # the plugin's own code may make the message, and fail
        text = repr(error.args) if isinstance(error, KeyError) else str(error).strip().partition("\n")[0]
    except KeyboardInterrupt:
        raise
    except BaseException as e:
        text = f"its message cannot be shown, as that raises {type(e).__name__}"
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    if isinstance(error, (PluginDefect, TargetMissing, ProcessExit)):
        return text
    line = f"{type(error).__name__}: {text}" if text else type(error).__name__
    where = _plugin_line(error, own)
    return f"{line} ({where})" if where and where not in line else line


def _plugin_line(error: BaseException, own: Collection[str]) -> str | None:
    """The innermost line in the plugin's packages, or else in any package that may be to blame."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}" if error.filename else None
    frames = [(f.f_code.co_filename, str(f.f_globals.get("__name__")), n) for f, n in walk_tb(error.__traceback__)]
    packages = {_package(module) for file, module, _ in frames if file in own} | {*map(_package, own)}
    others = [f for f in frames if not f[0].startswith("<") and _package(f[1]) not in _INNOCENT]
    theirs = [f for f in frames if _package(f[1]) in packages]
    return next((f"{file}:{line}" for file, _, line in reversed(theirs or others)), None)


def _package(module: str) -> str:
    """The top-level package of a module."""
    return module.partition(".")[0]


def advice(error: BaseException, record: PluginRecord) -> str:
    """What the user of a plugin can do about ``error``, by its kind.

    For a defect, also what its authors have to change.
    """
    owner = record.distribution
    if isinstance(error, PluginDefect):
        return f"for the authors of {owner}: {error.remedy}; {without(record)}"
    if isinstance(error, TargetMissing):
        return f"for the authors of {owner}: name what the module has; or reinstall {owner}; {without(record)}"
    if isinstance(error, ShadowedByWorkingDirectory):
        return "run this in another folder, or install what lies in this one"
    if isinstance(error, ModuleNotFoundError) and error.name and isinstance(error.name, str):
        return f"{_absent_module(error.name, record)}; {without(record)}"
    if isinstance(error, SyntaxError):
        python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
        return f"reinstall {owner}, in a version that is written for {python}; {without(record)}"
    if isinstance(error, (SystemExit, ProcessExit)):
        return f"for the authors of {owner}: a module that is imported must not exit; {without(record)}"
    return f"reinstall or upgrade {owner}, or tell its authors; {without(record)}"


def without(record: PluginRecord) -> str:
    """How to go on without the plugin."""
    return f"to go on without it, set {DENY}={record.distribution}"


def _absent_module(name: str, record: PluginRecord) -> str:
    """What to do about a missing module: the plugin's installation is incomplete, or it depends on something else."""
    top = name.partition(".")[0]
    own = any(d.target.startswith((f"{top}.", f"{top}:")) for d in record.declarations)
    if own or f"{os.sep}{top}" in os.path.splitext(record.location)[0] or not record.location.endswith(".py"):
        return f"reinstall {record.distribution}, whose files are incomplete unless it forgot to declare {name!r}"
    return f"install what provides {name!r}; {record.distribution} should declare it in BackendSpec.requires"


def suggestion(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the name in ``known`` that is closest to ``name``, ignoring case.

    "" if none is close.
    """
    from difflib import get_close_matches

    by_lower: dict[str, str] = {}
    for k in known:
        by_lower.setdefault(k.lower(), k)
    close = get_close_matches(name.lower(), list(by_lower), n=1, cutoff=0.6)
    return f"; did you mean {by_lower[close[0]]!r}?" if close else ""
