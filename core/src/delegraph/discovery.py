"""Which plugins are installed, and what became of each.

The loop over the entry points is our own, because pluggy's stops at the first plugin that fails. Whatever a plugin does
at import (raise, exit, answer nonsense) ends as its record; the other plugins do not notice. Nothing is imported before
DELEGRAPH_PLUGINS and DELEGRAPH_DISABLE_PLUGINS were asked.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import importlib_metadata
import pluggy
from importlib_metadata import EntryPoint

from .plugin import API_VERSION, DECLARATION_OF, PROJECT, BackendSpec, Declaration, Hooks
from .targets import find, import_installed, installed_path, missing

SUPPORTED_APIS = tuple(v for v in (API_VERSION - 1, API_VERSION) if v > 0)
ALLOW, DENY = "DELEGRAPH_PLUGINS", "DELEGRAPH_DISABLE_PLUGINS"
IN_PROCESS = "in-process"
"""The distribution that backends registered in this process belong to."""
_HEAVY = ("torch", "numpy")
_Distribution = Any  # importlib-metadata types it differently from version to version


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
    """Why a backend, or a whole plugin, cannot be used, and what to do about it."""

    status: Status
    error: str
    hint: str = ""


@dataclass(frozen=True)
class PluginRecord:
    """One entry point and what became of it.

    ``name`` is the entry point's, ``location`` the file of the light module, or where the distribution is if that is
    not known. ``faults`` maps the short names of backends that cannot be used to the reason.
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
    notes: tuple[str, ...] = ()
    objects: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """Target -> object, for what was registered in this process."""
    manager: pluggy.PluginManager | None = field(default=None, repr=False, compare=False)

    @property
    def owner(self) -> str:
        """Distribution and version, for messages."""
        return f"{self.distribution} {self.version}".strip()

    def failed(self, fault: Fault, exception: BaseException | None = None) -> PluginRecord:
        """The same plugin, unusable."""
        return replace(self, status=fault.status, error=fault.error, hint=fault.hint, exception=exception)


@dataclass(frozen=True)
class Discovery:
    """All plugins found, and remarks that belong to none of them."""

    records: tuple[PluginRecord, ...] = ()
    notes: tuple[str, ...] = ()


class PluginDefect(Exception):
    """A plugin does not keep to ``delegraph.plugin``."""


def canonical(distribution: str) -> str:
    """A distribution's name as package indexes compare it: ``Delegraph_TOSA`` is ``delegraph-tosa``."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def discover(entry_points: Iterable[EntryPoint] | None = None, environ: Mapping[str, str] = os.environ) -> Discovery:
    """Load the light modules of all plugins that the environment allows; never raises for a plugin's fault."""
    selection = Selection.of(environ)
    found = [_identify(e) for e in entry_points] if entry_points is not None else list(_installed())
    records = tuple(_load(entry, record, selection) for entry, record in found)
    return Discovery(records, selection.unknown([r for _, r in found]))


# --- what is installed ------------------------------------------------------------------------------------------------


def _installed() -> Iterator[tuple[EntryPoint, PluginRecord]]:
    """Entry points of each distribution that offers some. Of several copies the first on the path counts."""
    path = installed_path()
    names = dict.fromkeys(_name_and_version(d)[0] for d in importlib_metadata.distributions(path=path) if _offers(d))
    for name in names:
        copies = list(importlib_metadata.distributions(name=name, path=path))
        notes = tuple(f"a second copy at {_place(c)} ({_name_and_version(c)[1]}) is not used" for c in copies[1:])
        for entry in copies[0].entry_points.select(group=PROJECT):
            entry, record = _identify(entry)
            yield entry, replace(record, notes=notes)


def _offers(distribution: _Distribution) -> bool:
    """Whether it has entry points of ours; most distributions are told apart without parsing anything."""
    try:
        text = distribution.read_text("entry_points.txt")
    except (OSError, ValueError):  # not ours to report: unreadable metadata of whatever else is installed
        return False
    return text is not None and PROJECT in text and bool(distribution.entry_points.select(group=PROJECT))


def _identify(entry: EntryPoint) -> tuple[EntryPoint, PluginRecord]:
    distribution = getattr(entry, "dist", None)
    if distribution is None:
        return entry, PluginRecord(entry.name, entry.module.partition(".")[0], "", entry.module)
    name, version = _name_and_version(distribution)
    return entry, PluginRecord(entry.name, name, version, _place(distribution))


def _name_and_version(distribution: _Distribution) -> tuple[str, str]:
    """From the head of METADATA (all of it is parsed only by those who want it), else from the folder's name."""
    text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    lines = (line.partition(": ") for line in text.partition("\n\n")[0].splitlines())
    fields = {name: value.strip() for name, _, value in lines}
    by_folder, _, its_version = (
        os.path.basename(str(getattr(distribution, "_path", ""))).rpartition(".")[0].partition("-")
    )
    return fields.get("Name") or by_folder, fields.get("Version") or its_version


def _place(distribution: _Distribution) -> str:
    return str(distribution.locate_file(""))


# --- what may be loaded -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Selection:
    """The two variables: comma-separated names of distributions or entry points, or ``distribution/entry point``."""

    allowed: tuple[str, ...]
    denied: tuple[str, ...]

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Selection:
        """An empty variable is one that is not set."""
        allowed, denied = (tuple(n.strip() for n in environ.get(v, "").split(",") if n.strip()) for v in (ALLOW, DENY))
        return cls(allowed, denied)

    def fault(self, record: PluginRecord) -> Fault | None:
        """Why ``record`` must not be imported, or None. Denied wins over allowed."""
        if any(_names(n, record) for n in self.denied):
            return Fault(Status.DISABLED, f"{DENY} names it", f"take it out of {DENY} to use it")
        if self.allowed and not any(_names(n, record) for n in self.allowed):
            return Fault(Status.DISABLED, f"{ALLOW} is set and does not name it", f"add it to {ALLOW} to use it")
        return None

    def unknown(self, records: Iterable[PluginRecord]) -> tuple[str, ...]:
        """A remark for every name in the variables that no plugin has."""
        listed = list(records)
        named = [(v, n) for v, names in ((ALLOW, self.allowed), (DENY, self.denied)) for n in names]
        return tuple(
            f"{v} names {n!r}, which is not installed" for v, n in named if not any(_names(n, r) for r in listed)
        )


def _names(name: str, record: PluginRecord) -> bool:
    distribution = canonical(record.distribution)
    whole, entry = f"{distribution}/{canonical(record.name)}", canonical(record.name)
    return canonical(name) in (distribution, entry, whole)


# --- loading one ------------------------------------------------------------------------------------------------------


def _load(entry: EntryPoint, record: PluginRecord, selection: Selection) -> PluginRecord:
    refused = selection.fault(record)
    if refused is not None:
        return record.failed(refused)
    before = [m for m in _HEAVY if m in sys.modules]
    try:
        record = replace(record, location=_file_of(entry.module) or record.location)
        loaded = inspect(_plugin_object(entry), record)
    except KeyboardInterrupt:
        raise
    except BaseException as e:  # SystemExit included: a plugin that fails is a row, never the end
        return record.failed(_broken(record, e), e)
    heavy = [m for m in _HEAVY if m in sys.modules and m not in before]
    note = f"its light module imports {' and '.join(heavy)}, which slows every listing down"
    return replace(loaded, notes=(*loaded.notes, note)) if heavy else loaded


def _plugin_object(entry: EntryPoint) -> Any:
    found = import_installed(entry.module)
    for part in filter(None, (entry.attr or "").split(".")):
        found = getattr(found, part)
    return found


def _file_of(module: str) -> str | None:
    spec = find(module)
    return spec.origin if spec is not None and spec.has_location else None


def _broken(record: PluginRecord, error: BaseException) -> Fault:
    hint = f"reinstall or upgrade {record.distribution}, tell its authors, or set {DENY}={record.distribution}"
    return Fault(Status.BROKEN, describe(error), hint)


def describe(error: BaseException) -> str:
    """An exception in one line, with the innermost line of code that is not the import machinery's."""
    text = str(error).strip().partition("\n")[0] if not isinstance(error, KeyError) else repr(error.args)
    line = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, PluginDefect):
        return text
    where = None if isinstance(error, SyntaxError) else _innermost(error)
    return f"{line} ({where})" if where else line


def _innermost(error: BaseException) -> str | None:
    where, frame = None, error.__traceback__
    while frame is not None:
        file = frame.tb_frame.f_code.co_filename
        if not file.startswith("<") and os.path.dirname(file) not in (_HERE, _IMPORTLIB):
            where = f"{file}:{frame.tb_lineno}"
        frame = frame.tb_next
    return where


_HERE = os.path.dirname(os.path.abspath(__file__))
_IMPORTLIB = os.path.join(os.path.dirname(os.__file__), "importlib")


# --- checking what it declares ----------------------------------------------------------------------------------------


def inspect(plugin: Any, record: PluginRecord) -> PluginRecord:
    """Validate the hook implementations of ``plugin`` and collect its declarations; raises PluginDefect."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(Hooks)
    try:
        manager.register(plugin, f"{record.distribution}/{record.name}")
    except pluggy.PluginValidationError as e:
        raise PluginDefect(" ".join(str(e).split())) from e
    backends = _collect(manager, "delegraph_backends")
    faults = {s.name: f for s in backends if (f := fault_of(s, record)) is not None}
    worst = next(iter(faults.values()), None)
    if worst is not None and worst.status is Status.INCOMPATIBLE:  # its other hooks may be of that other version
        return replace(record, declarations=tuple(backends), faults=faults).failed(worst)
    _refuse_misspelt(manager, plugin)
    _refuse_twice(backends)
    others = [d for hook in DECLARATION_OF if hook != "delegraph_backends" for d in _collect(manager, hook)]
    checked = replace(record, declarations=(*backends, *others), faults=faults, manager=manager)
    return checked.failed(worst) if worst is not None else checked


def _collect(manager: pluggy.PluginManager, hook: str) -> list[Any]:
    """Call a declaring hook of the one plugin that ``manager`` has, and check the answer."""
    caller, wanted = getattr(manager.hook, hook), DECLARATION_OF[hook]
    answers = caller()
    if len(answers) < sum(not (i.hookwrapper or i.wrapper) for i in caller.get_hookimpls()):
        raise PluginDefect(f"{hook} returned None; it returns a list of {wanted.__name__}")
    for answer in answers:
        if not isinstance(answer, (list, tuple)):
            raise PluginDefect(f"{hook} returned {_shown(answer)}; it returns a list of {wanted.__name__}")
    found = [item for answer in answers for item in answer]
    for item in found:
        if not isinstance(item, wanted):
            raise PluginDefect(f"{hook} returned a list with {_shown(item)}; each item is a {wanted.__name__}")
    return found


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


def _refuse_misspelt(manager: pluggy.PluginManager, plugin: Any) -> None:
    """Hook names that nobody calls, and hooks whose author forgot the mark: both would be silently ignored."""
    known = [n for n, caller in vars(manager.hook).items() if caller.has_spec()]
    for name, caller in vars(manager.hook).items():
        if name not in known and not all(i.optionalhook for i in caller.get_hookimpls()):
            raise PluginDefect(f"there is no hook {name!r}{suggestion(name, known)}")
    for name in known:
        if callable(getattr(plugin, name, None)) and not getattr(manager.hook, name).get_hookimpls():
            raise PluginDefect(f"{name} lacks the decorator @hookimpl")


def suggestion(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the closest of ``known`` (of those that differ in case, the first), or nothing."""
    from difflib import get_close_matches

    by_lower: dict[str, str] = {}
    for k in known:
        by_lower.setdefault(k.lower(), k)
    close = get_close_matches(name.lower(), list(by_lower), n=1, cutoff=0.6)
    return f"; did you mean {by_lower[close[0]]!r}?" if close else ""


def _refuse_twice(backends: Iterable[BackendSpec]) -> None:
    seen: set[str] = set()
    for spec in backends:
        if spec.name in seen:
            raise PluginDefect(f"it declares backend {spec.name!r} twice")
        seen.add(spec.name)


def fault_of(spec: BackendSpec, record: PluginRecord) -> Fault | None:
    """Why this backend of ``record`` cannot be used here, or None; imports nothing."""
    if spec.api not in SUPPORTED_APIS:
        ours = " and ".join(map(str, SUPPORTED_APIS))
        error = f"backend {spec.name!r} was written for plugin API {spec.api}; this delegraph speaks {ours}"
        old = record.distribution if spec.api < API_VERSION else "delegraph"
        return Fault(Status.INCOMPATIBLE, error, f"upgrade {old}")
    absent = missing(spec.requires)
    if absent:
        error = f"backend {spec.name!r} needs {' and '.join(map(repr, absent))}, which is not installed"
        return Fault(Status.UNAVAILABLE, error, spec.install_hint or f"install what provides {', '.join(absent)}")
    return None
