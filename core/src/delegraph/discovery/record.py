"""The record of a plugin with its status and faults, and the texts that describe these."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from traceback import walk_tb
from typing import Any

import pluggy

from ..plugin import BackendSpec, Declaration
from .loading import ProcessExit, ShadowedByWorkingDirectory, TargetMissing

ALLOW = "DELEGRAPH_PLUGINS"
DENY = "DELEGRAPH_DISABLE_PLUGINS"


class Status(StrEnum):
    """The result of loading a plugin, or the state of one of its backends."""

    OK = "ok"
    DISABLED = "disabled"
    BROKEN = "broken"
    INCOMPATIBLE = "incompatible"
    CONFLICT = "conflict"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True)
class Fault:
    """What is wrong with a backend or a whole plugin (``error``), and what to do about
    it (``hint``).

    ``status`` is the status of a plugin with this fault. It is ``ok`` for a warning,
    after which the plugin is usable.
    """

    status: Status
    error: str
    hint: str = ""


@dataclass(frozen=True)
class PluginRecord:
    """One plugin, which is one entry point of a distribution, and the result of loading
    it.

    ``name``: name of the entry point. ``location``: file of the light module, or the
    distribution's folder if the file is not known. ``error``, ``hint``, ``exception``:
    of the fault that makes the whole plugin unusable; empty if it is usable.
    ``faults``: short name of a backend that cannot be used -> why. ``manager``: has the
    plugin's event hooks; None if it was not loaded.
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
    """The requirements of the plugin's distribution, as METADATA has them."""
    objects: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """Target -> object, for objects that were registered in this process and need no
    import.
    """
    manager: pluggy.PluginManager | None = field(
        default=None, repr=False, compare=False
    )

    @property
    def owner(self) -> str:
        """Distribution and version, for messages."""
        return f"{self.distribution} {self.version}".strip()

    @property
    def modules(self) -> list[str]:
        """The file of the plugin's light module, and the names of the modules of its
        targets.
        """
        return [self.location, *(d.target.partition(":")[0] for d in self.declarations)]

    @property
    def backends(self) -> list[BackendSpec]:
        """The backends that the plugin declares."""
        return [d for d in self.declarations if isinstance(d, BackendSpec)]

    @property
    def hooks(self) -> list[str]:
        """The names of all hooks that the plugin implements, also of those that declare
        nothing on this machine.
        """
        callers = (
            self.manager.get_hookcallers(next(iter(self.manager.get_plugins())))
            if self.manager
            else None
        )
        return [c.name for c in callers or ()]

    @property
    def address(self) -> str:
        """Distribution, version and file, for messages about several plugins at once."""
        return f"{self.owner} ({self.location})"

    def failed(
        self, fault: Fault, exception: BaseException | None = None
    ) -> PluginRecord:
        """A copy of the record with ``fault`` as the fault of the whole plugin."""
        return replace(
            self,
            status=fault.status,
            error=fault.error,
            hint=fault.hint,
            exception=exception,
        )


class PluginDefect(Exception):
    """A plugin violates the rules of ``delegraph.plugin``; ``remedy`` says what its
    authors must change.
    """

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


# --- saying what is wrong -------------------------------------------------------------


_LONGEST = 1000
_SELF_EXPLANATORY = (PluginDefect, TargetMissing, ProcessExit)
"""Exceptions of delegraph's own, whose text needs no name of a class."""
_INNOCENT = {*sys.stdlib_module_names, "delegraph", "delegraph_programs"} - {"__main__"}
"""Packages whose lines are not shown for a plugin's error: its own call of them is the
interesting line.
"""


def describe(error: BaseException, own: Collection[str] = ()) -> str:
    """An exception in one line of text, with the file and line of the plugin's code
    that raised it.

    The line is the innermost one of the traceback in the plugin's packages or, if there
    is none, in a package that is neither Python's library nor delegraph. ``own``: known
    modules of the plugin, or their files; their top-level packages are the plugin's.
    """
    described = name_and_text(error)
    if isinstance(error, _SELF_EXPLANATORY):
        return described
    place = _plugin_line(error, own)
    return f"{described} ({place})" if place and place not in described else described


def name_and_text(error: BaseException) -> str:
    """The name of an exception's class and the first line of its text, cut if it is
    long.
    """
    try:  # ``__str__`` may be the plugin's code, and fail
        # ``str`` of a KeyError may show the key only, without a word about it
        text = (
            repr(error.args)
            if isinstance(error, KeyError)
            else str(error).strip().partition("\n")[0]
        )
    except KeyboardInterrupt:
        raise
    except BaseException as e:
        text = f"its message cannot be shown, as that raises {type(e).__name__}"
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    if isinstance(error, _SELF_EXPLANATORY):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _plugin_line(error: BaseException, own: Collection[str]) -> str | None:
    """``file:line`` of the plugin's code that ``describe`` shows; None if the traceback
    has no such line.
    """
    # the traceback ends at the import; the error names the line with the mistake
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}" if error.filename else None
    # (file, package, line number), outermost frame first
    frames = [
        (frame.f_code.co_filename, _package(str(frame.f_globals.get("__name__"))), line)
        for frame, line in walk_tb(error.__traceback__)
    ]
    # ``own`` has files and modules
    own_packages = {package for file, package, _ in frames if file in own} | {
        *map(_package, own)
    }
    shown = [
        f"{file}:{line}" for file, package, line in frames if package in own_packages
    ]
    if not shown:
        # files such as "<frozen importlib._bootstrap>" are not files that a reader
        # could open
        others = [frame for frame in frames if not frame[0].startswith("<")]
        shown = [
            f"{file}:{line}"
            for file, package, line in others
            if package not in _INNOCENT
        ]
    return shown[-1] if shown else None


def _package(module: str) -> str:
    """The top-level package of a module."""
    return module.partition(".")[0]


def advice(error: BaseException, record: PluginRecord) -> str:
    """A hint for the error with which a plugin failed: what the user can do and, for a
    defect, what its authors can.
    """
    owner = record.distribution
    if isinstance(error, PluginDefect):
        return f"for the authors of {owner}: {error.remedy}; {without(record)}"
    if isinstance(error, TargetMissing):
        return (
            f"for the authors of {owner}: name what the module has; or reinstall"
            f" {owner}; {without(record)}"
        )
    if isinstance(error, ShadowedByWorkingDirectory):
        return "run this in another folder, or install what lies in this one"
    if (
        isinstance(error, ModuleNotFoundError)
        and error.name
        and isinstance(error.name, str)
    ):
        return f"{_absent_module(error.name, record)}; {without(record)}"
    if isinstance(error, SyntaxError):
        python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
        return (
            f"reinstall {owner}, in a version that is written for {python};"
            f" {without(record)}"
        )
    if isinstance(error, (SystemExit, ProcessExit)):
        return (
            f"for the authors of {owner}: a module that is imported must not exit;"
            f" {without(record)}"
        )
    return f"reinstall or upgrade {owner}, or tell its authors; {without(record)}"


def without(record: PluginRecord) -> str:
    """The hint how to disable the plugin."""
    return f"to go on without it, set {DENY}={record.distribution}"


def _absent_module(name: str, record: PluginRecord) -> str:
    """The hint for the missing module ``name``: reinstall the plugin if the module is
    its own, else install it.

    The module is the plugin's own if a target or the light module lies in the same
    package, or if the file of the light module is not known, because that module itself
    is missing.
    """
    top = name.partition(".")[0]
    is_own = any(
        d.target.startswith((f"{top}.", f"{top}:")) for d in record.declarations
    )
    if (
        is_own
        or f"{os.sep}{top}" in os.path.splitext(record.location)[0]
        or not record.location.endswith(".py")
    ):
        return (
            f"reinstall {record.distribution}, whose files are incomplete unless it"
            f" forgot to declare {name!r}"
        )
    return (
        f"install what provides {name!r}; {record.distribution} should declare it in"
        " BackendSpec.requires"
    )


def suggestion(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"``, where x is the name in ``known`` that is nearest to
    ``name``; "" if none is near.
    """
    near = nearest(name, known)
    return "" if near is None else f"; did you mean {near!r}?"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The name in ``known`` that ``name`` was probably meant to be; None if none is
    near. Case does not count.

    A name is near if one of the two begins with the other, or if few letters are wrong,
    missing, too many or swapped with their neighbour: one in names of up to five
    letters, two in longer ones.
    """
    asked = name.lower()
    found: list[tuple[int, str]] = []
    for candidate in known:
        other = candidate.lower()
        shorter = min(len(asked), len(other))
        wrong = _edits(asked, other)
        is_beginning = shorter >= 3 and asked[:shorter] == other[:shorter]
        if is_beginning or wrong <= (1 if shorter <= 5 else 2):
            found.append((wrong, candidate))
    return min(found, key=lambda pair: pair[0])[1] if found else None


def _edits(a: str, b: str) -> int:
    """How many letters have to be added, removed, replaced or swapped with their
    neighbour to make ``b`` of ``a``.
    """
    before_last: list[int] = []
    last = list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        row = [i]
        for j, other in enumerate(b, 1):
            edits = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == b[j - 2] and a[i - 2] == other:
                edits = min(edits, before_last[j - 2] + 1)
            row.append(edits)
        before_last = last
        last = row
    return last[-1]
