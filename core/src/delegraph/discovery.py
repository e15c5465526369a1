"""Which plugins are installed, and what became of each.

The loop over the entry points is our own, because pluggy's stops at the first plugin that fails. Whatever a plugin does
at import (raise, exit, answer nonsense) ends as its record; the other plugins do not notice. Nothing is imported before
DELEGRAPH_PLUGINS and DELEGRAPH_DISABLE_PLUGINS were asked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import importlib_metadata
from importlib_metadata import EntryPoint

from .heavy import HeavyImports
from .inspection import inspect
from .plugin import PROJECT
from .records import ALLOW, DENY, Fault, PluginRecord, Status, broken
from .targets import find, import_installed, installed_path

IN_PROCESS = "in-process"
"""The distribution that backends registered in this process belong to."""
Found = tuple[EntryPoint, PluginRecord]
"""An entry point that nothing was imported of yet, and whose it is."""
Key = tuple[str, str]
"""Distribution and entry point's name."""
_Distribution = Any  # importlib-metadata types it differently from version to version


@dataclass(frozen=True)
class Discovery:
    """All plugins found, and remarks that belong to none of them."""

    records: tuple[PluginRecord, ...] = ()
    notes: tuple[str, ...] = ()


def canonical(distribution: str) -> str:
    """A distribution's name as package indexes compare it: ``Delegraph_TOSA`` is ``delegraph-tosa``."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def discover(
    entry_points: Iterable[EntryPoint] | None = None,
    environ: Mapping[str, str] = os.environ,
    refused: Mapping[Key, Fault] | None = None,
) -> Discovery:
    """Load the light modules of all plugins that the environment allows; never raises for a plugin's fault.

    ``refused`` are not loaded either, for the reason given: they were seen to end the process that does.
    """
    selection, found = Selection.of(environ), identify(entry_points)
    records = []
    for entry, record in found:
        fault = selection.fault(record) or (refused or {}).get((record.distribution, record.name))
        records.append(_located(entry, record).failed(fault) if fault is not None else load(entry, record))
    return Discovery(tuple(records), selection.unknown([r for _, r in found]))


def loadable(entry_points: Iterable[EntryPoint] | None = None, environ: Mapping[str, str] = os.environ) -> list[Found]:
    """What ``discover`` would load; imports nothing."""
    selection = Selection.of(environ)
    return [(entry, record) for entry, record in identify(entry_points) if selection.fault(record) is None]


def identify(entry_points: Iterable[EntryPoint] | None) -> list[Found]:
    """The entry points given, or those of everything that is installed, and whose each is."""
    return list(_installed()) if entry_points is None else [_identify(e) for e in entry_points]


# --- what is installed ------------------------------------------------------------------------------------------------


def _installed() -> Iterator[Found]:
    """Entry points of each distribution that offers some. Of several copies the first on the path counts."""
    path = installed_path()
    names = dict.fromkeys(_name_and_version(d)[0] for d in importlib_metadata.distributions(path=path) if _offers(d))
    for name in names:
        first, *others = importlib_metadata.distributions(name=name, path=path)
        identity = (*_name_and_version(first), _place(first))
        warnings = tuple(map(_second_copy, others))
        for entry in first.entry_points.select(group=PROJECT):
            yield entry, PluginRecord(entry.name, *identity, warnings=warnings)


def _second_copy(distribution: _Distribution) -> Fault:
    name, version = _name_and_version(distribution)
    error = f"a second copy at {_place(distribution)} ({version}) is not used: the first on the path counts"
    return Fault(Status.OK, error, f"remove one of them, as with: python -m pip uninstall {name}")


def _offers(distribution: _Distribution) -> bool:
    """Whether it has entry points of ours: told without parsing anything."""
    try:
        text = distribution.read_text("entry_points.txt")
    except (OSError, ValueError):  # not ours to report: unreadable metadata of whatever else is installed
        return False
    return text is not None and _GROUP.search(text) is not None


_GROUP = re.compile(rf"^[ \t]*\[{PROJECT}\]", re.MULTILINE)


def _identify(entry: EntryPoint) -> Found:
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


def load(entry: EntryPoint, record: PluginRecord) -> PluginRecord:
    """Import one light module and collect what it declares."""
    try:
        with HeavyImports() as watch:
            record = _located(entry, record)
            loaded = inspect(_plugin_object(entry), record)
    except KeyboardInterrupt:
        raise
    except BaseException as e:  # SystemExit included: a plugin that fails is a row, never the end
        return record.failed(broken(e, record), e)
    heavy = watch.warning()
    return loaded if heavy is None else replace(loaded, warnings=(*loaded.warnings, heavy))


def _plugin_object(entry: EntryPoint) -> Any:
    found = import_installed(entry.module)
    for part in filter(None, (entry.attr or "").split(".")):
        found = getattr(found, part)
    return found


def _located(entry: EntryPoint, record: PluginRecord) -> PluginRecord:
    """With the file of the light module, which is found and not imported."""
    try:
        spec = find(entry.module)
    except (AttributeError, ValueError):  # the entry point names no module; loading it says so
        return record
    return replace(record, location=spec.origin) if spec is not None and spec.has_location and spec.origin else record
