"""Finds the installed plugins and loads their light modules; the result is one record
for each plugin.

A failure of one plugin does not affect the others. If its import raises or exits, if
its hooks return something wrong, or if its installation is damaged, its record says so.
(pluggy's own loop stops at the first plugin that fails.) DELEGRAPH_PLUGINS and
DELEGRAPH_DISABLE_PLUGINS apply before anything of a plugin is imported and its METADATA
is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

from importlib_metadata import EntryPoint

from .distributions import (
    Damaged,
    Distribution,
    canonical,
    copies,
    entry_points_of,
    head,
    name_and_version,
    place,
)
from .loading import exits_raise, find, hangs_shown, import_installed
from .record import (
    ALLOW,
    DENY,
    Fault,
    PluginDefect,
    PluginRecord,
    Status,
    advice,
    describe,
    without,
)
from .validate import read_declarations

Key = tuple[str, str]
"""(name of a plugin's distribution, name of its entry point)"""


class Discovery(NamedTuple):
    """The records of all plugins, and ``notes``: remarks that concern no single plugin."""

    records: tuple[PluginRecord, ...] = ()
    notes: tuple[str, ...] = ()


Candidate = tuple[EntryPoint | None, PluginRecord, Distribution]
"""An entry point that is not imported yet, its record, and its distribution (None if
not known).

The entry point is None if the distribution is damaged in such a way that its entry
points cannot be read.
"""


def discover(
    entry_points: Iterable[EntryPoint] | None = None,
    environ: Mapping[str, str] = os.environ,
    refused: Mapping[Key, Fault] | None = None,
) -> Discovery:
    """Load the light modules of all plugins that the environment allows. Faults of
    plugins are recorded, not raised.

    ``entry_points``: the plugins to load; None: all that are installed. ``environ``:
    has the variables that ``Selection`` reads. ``refused``: plugins that are not
    loaded, because loading them ended another process -> the fault that their records
    get.
    """
    refused = refused or {}
    selection = Selection.of(environ)
    records = []
    for entry, record in _select(entry_points, selection):
        key = (record.distribution, record.name)
        # else disabled or damaged, as the record says
        if record.status is Status.OK and entry is not None:
            record = (
                record.failed(refused[key]) if key in refused else load(entry, record)
            )
        records.append(record)
    return Discovery(tuple(records), selection.unknown(records))


def loadable(
    entry_points: Iterable[EntryPoint] | None,
) -> list[tuple[EntryPoint, PluginRecord]]:
    """The plugins that ``discover(entry_points)`` would load, with their records so
    far. Imports nothing.
    """
    selected = _select(entry_points, Selection.of(os.environ))
    return [
        (entry, record)
        for entry, record in selected
        if entry is not None and record.status is Status.OK
    ]


def _select(
    entry_points: Iterable[EntryPoint] | None, selection: Selection
) -> Iterator[tuple[EntryPoint | None, PluginRecord]]:
    """Each entry point with its record, which already has a fault if the plugin must
    not or cannot be loaded.

    ``entry_points``: None for all that are installed. An entry point in the result is
    None if it could not be read.
    """
    candidates = (
        _read_installed() if entry_points is None else map(_candidate, entry_points)
    )
    for entry, record, distribution in candidates:
        try:
            spec = find(entry.module) if entry is not None else None
        except (AttributeError, ImportError, OSError, ValueError):
            # no such module: ``load`` records the error
            spec = None
        located = (
            replace(record, location=spec.origin)
            if spec and spec.has_location and spec.origin
            else record
        )
        fault = selection.fault(record)
        # METADATA is not read for a disabled plugin
        yield (
            entry,
            (
                located.failed(fault)
                if fault is not None
                else _add_metadata(located, distribution)
            ),
        )


# --- what is installed ----------------------------------------------------------------


def _read_installed() -> Iterator[Candidate]:
    """A candidate for each entry point of each installed distribution; of several
    copies, the first on the path counts.

    A distribution whose entry points cannot be read is one candidate, with the fault
    and without an entry point.
    """
    for first, *others in copies().values():
        record = _record(first)
        try:
            entries = entry_points_of(first)
        except Damaged as e:
            yield None, _mark_damaged(record, e), first
            continue
        warnings = tuple(map(_second_copy, others)) if entries else ()
        for entry in entries:
            yield entry, replace(record, name=entry.name, warnings=warnings), first


def _candidate(entry: EntryPoint) -> Candidate:
    """The candidate for an entry point that the caller of ``discover`` passed.

    If the entry point does not know its distribution, its top-level package stands for
    the distribution's name.
    """
    distribution = getattr(entry, "dist", None)
    if distribution is None:
        return (
            entry,
            PluginRecord(entry.name, entry.value.partition(".")[0], "", entry.value),
            None,
        )
    return entry, replace(_record(distribution), name=entry.name), distribution


def _record(distribution: Distribution) -> PluginRecord:
    """A record with what a distribution's folder tells. Its ``name`` is the
    distribution's; callers replace it.
    """
    name, version = name_and_version(distribution)
    return PluginRecord(canonical(name), canonical(name), version, place(distribution))


def _second_copy(distribution: Distribution) -> Fault:
    """The warning for a second installed copy of a distribution, which is not used."""
    name, version = name_and_version(distribution)
    error = (
        f"a second copy at {place(distribution)} ({version}) is not used: the first on"
        " the path counts"
    )
    return Fault(
        Status.OK,
        error,
        f"remove one of them, as with: python -m pip uninstall {canonical(name)}",
    )


def _add_metadata(record: PluginRecord, distribution: Distribution) -> PluginRecord:
    """``record`` with the name, version and requirements in METADATA.

    It gets a fault if METADATA is damaged, or names another distribution than the
    metadata folder does. A record that has a fault already, or whose distribution is
    not known (None), is returned unchanged.
    """
    if distribution is None or record.status is not Status.OK:
        return record
    try:
        metadata = head(distribution)
        if metadata.name and canonical(metadata.name) != record.distribution:
            raise Damaged(
                f"METADATA is that of {metadata.name!r}; its folder is called"
                f" {record.distribution!r}"
            )
    except Damaged as e:
        return _mark_damaged(record, e)
    name = metadata.name or record.distribution
    version = metadata.version or record.version
    return replace(
        record, distribution=name, version=version, requirements=metadata.requirements
    )


def _mark_damaged(record: PluginRecord, error: Damaged) -> PluginRecord:
    """``record`` with the fault that its installation is damaged by ``error``."""
    hint = (
        f"reinstall {record.distribution}, or remove what is left of it;"
        f" {without(record)}"
    )
    return record.failed(
        Fault(Status.BROKEN, f"its installation is damaged: {error}", hint)
    )


# --- what may be loaded ---------------------------------------------------------------


class Selection(NamedTuple):
    """The names in DELEGRAPH_PLUGINS (``allowed``) and DELEGRAPH_DISABLE_PLUGINS
    (``denied``).

    A name is that of a distribution or of an entry point, or ``distribution/entry
    point``.
    """

    allowed: tuple[str, ...]
    denied: tuple[str, ...]

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Selection:
        """Read the two variables from ``environ``. An empty variable counts as unset."""
        allowed, denied = (
            tuple(n.strip() for n in environ.get(v, "").split(",") if n.strip())
            for v in (ALLOW, DENY)
        )
        return cls(allowed, denied)

    def fault(self, record: PluginRecord) -> Fault | None:
        """Why the plugin must not be imported; None if it may be. A plugin in both
        variables is denied.
        """
        if any(_is_named(n, record) for n in self.denied):
            return Fault(
                Status.DISABLED, f"{DENY} names it", f"take it out of {DENY} to use it"
            )
        if self.allowed and not any(_is_named(n, record) for n in self.allowed):
            return Fault(
                Status.DISABLED,
                f"{ALLOW} is set and does not name it",
                f"add it to {ALLOW} to use it",
            )
        return None

    def unknown(self, records: Iterable[PluginRecord]) -> tuple[str, ...]:
        """A remark for each name in the variables that none of ``records`` has."""
        records = list(records)
        remarks = []
        for variable, names in ((ALLOW, self.allowed), (DENY, self.denied)):
            for name in names:
                if not any(_is_named(name, record) for record in records):
                    remarks.append(f"{variable} names {name!r}, which is not installed")
        return tuple(remarks)


def _is_named(name: str, record: PluginRecord) -> bool:
    """Whether ``name``, taken from an environment variable, means the plugin of
    ``record``.
    """
    distribution = canonical(record.distribution)
    entry = canonical(record.name)
    return canonical(name) in (distribution, entry, f"{distribution}/{entry}")


# --- loading one ----------------------------------------------------------------------


def load(entry: EntryPoint, record: PluginRecord) -> PluginRecord:
    """Import one light module; returns ``record`` with its declarations, or with the
    fault if that fails.
    """
    with exits_raise(), hangs_shown():
        try:
            if not entry.pattern.match(entry.value):
                remedy = (
                    "name the module that has the hooks, as in `chip ="
                    ' "chip_plugin.declaration"`'
                )
                text = (
                    f"its entry point is {entry.value!r}, which is no module and no"
                    " module:object"
                )
                raise PluginDefect(text, remedy)
            attributes = filter(None, (entry.attr or "").split("."))
            # the module, or an object in it
            plugin = reduce(getattr, attributes, import_installed(entry.module))
            loaded = read_declarations(plugin, record)
        except KeyboardInterrupt:
            raise
        except BaseException as e:
            # also SystemExit: a plugin that fails must not end the process
            loaded = record.failed(
                Fault(Status.BROKEN, describe(e, record.modules), advice(e, record)), e
            )
    return loaded
