"""Lists the installed plugins, and loads their light modules.

A failure of one plugin or distribution does not affect the others: its record has the
fault. Two environment variables decide which plugins are loaded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from importlib.metadata import Distribution, EntryPoint, distributions

import pluggy

from ..plugin import PROJECT
from .explain_exception import advice, describe, disable_hint, name_and_text
from .import_by_name import (
    exits_raise,
    find,
    hangs_shown,
    import_installed,
    installed_path,
)
from .read_declarations import plugin_manager, read_declarations
from .records import ALLOW, DENY, Fault, PluginRecord, Status, canonical


def discover(refused: Mapping[str, Fault] | None = None) -> list[PluginRecord]:
    """Load the light modules of all plugins that the environment allows. Faults of
    plugins are recorded, not raised.

    ``refused``: ``distribution/name`` of a plugin that must not be loaded -> the fault
    for its record. Loading such a plugin has ended another process before.
    """
    refused = refused or {}
    manager = plugin_manager()
    records = []
    for entry, record in find_plugins():
        fault = refused.get(record.full_name)
        if fault is not None:
            record = record.failed(fault)
        elif entry is not None:
            record = load_plugin(manager, entry, record)
        records.append(record)
    return records


def find_plugins() -> Iterator[tuple[EntryPoint | None, PluginRecord]]:
    """Yield the entry point and the record of each installed plugin, without importing
    the plugin.

    If the plugin must not or cannot be loaded, the entry point is None, and the record
    has the fault.
    """
    for entry, record in _read_distributions():
        fault = record.fault or _disabled(record)
        if fault is None:
            yield entry, record
        else:
            yield None, record.failed(fault)


def _read_distributions() -> Iterator[tuple[EntryPoint | None, PluginRecord]]:
    """Yield each entry point in the group ``delegraph``, with a record. If the
    entry points of a distribution cannot be read, yield None and a record with the
    fault.

    Of several copies of a distribution, the first on the path counts, as for Python's
    imports; the records have warnings about the others.
    """
    # normalized name -> (version, distribution) of each copy
    copies: dict[str, list[tuple[str, Distribution]]] = {}
    for distribution in distributions(path=installed_path()):
        name, version = _name_and_version(distribution)
        copies.setdefault(canonical(name), []).append((version, distribution))
    for name, found in copies.items():
        version, distribution = found[0]
        folder = str(distribution.locate_file(""))
        # name and location of the distribution, which are replaced for each entry
        # point below
        record = PluginRecord(name, distribution=name, version=version, location=folder)
        try:
            entries = _entry_points(distribution)
        except Exception as e:
            yield None, record.failed(_damaged(e, record))
            continue
        warnings = tuple(_unused_copy(name, *other) for other in found[1:])
        for entry in entries:
            location = _file_of(entry) or folder
            plugin = replace(
                record, name=entry.name, location=location, warnings=warnings
            )
            yield entry, plugin


def _name_and_version(distribution: Distribution) -> tuple[str, str]:
    """Return name and version of a distribution.

    The name of the metadata folder has both, so usually no file is opened. An egg has no
    such folder: its metadata are read. If they are damaged, the name is that of the
    folder in which the egg is installed, and the version is "".
    """
    # for example ``acme_npu-1.0.dist-info``
    folder = os.path.basename(str(getattr(distribution, "_path", "")))
    name, _, version = folder.rpartition(".")[0].partition("-")
    if name:
        return name, version
    try:
        return distribution.metadata["Name"], distribution.version
    except Exception:  # the metadata are damaged
        return os.path.basename(str(distribution.locate_file(""))), ""


def _entry_points(distribution: Distribution) -> list[EntryPoint]:
    """Return the entry points of a distribution in the group ``delegraph``.

    The list is empty if entry_points.txt is missing or does not have the group. Raises
    an exception if the file has the group and is damaged.
    """
    # without the closing bracket, which a damaged file may lack
    group = f"[{PROJECT}"
    try:
        text = distribution.read_text("entry_points.txt")
    except UnicodeDecodeError as e:
        if group.encode() in e.object:
            raise
        return []
    except OSError:
        return []
    if text is None or group not in text:
        return []
    entries = [entry for entry in distribution.entry_points if entry.group == PROJECT]
    for entry in entries:
        if not entry.pattern.match(entry.value):
            raise ValueError(
                f"the entry point {entry.name} = {entry.value!r} names no module"
            )
    return entries


def _damaged(error: Exception, record: PluginRecord) -> Fault:
    """Return the fault of a distribution with unreadable entry points."""
    return Fault(
        Status.BROKEN,
        "its installation is damaged: entry_points.txt cannot be read:"
        f" {name_and_text(error)}",
        f"reinstall {record.distribution}; {disable_hint(record)}",
    )


def _unused_copy(name: str, version: str, distribution: Distribution) -> Fault:
    """Return the warning for a copy of a distribution that is not the first on the
    path.
    """
    # ``Status.OK`` makes this a warning: the plugin can be used
    return Fault(
        Status.OK,
        f"a second copy at {distribution.locate_file('')} ({version}) is not used: the"
        " first on the path counts",
        f"remove one of them, as with: python -m pip uninstall {name}",
    )


def _file_of(entry: EntryPoint) -> str | None:
    """Return the file of a light module; None if the module has no file or is not
    found.
    """
    try:
        spec = find(entry.module)
    except (AttributeError, ImportError, OSError, ValueError):
        return None  # ``load_plugin`` records the error
    return spec.origin if spec is not None and spec.has_location else None


# --- allowed plugins ------------------------------------------------------------------


def names_in(variable: str) -> list[str]:
    """Return the names in an environment variable, in normalized form. A name has one of
    the forms ``distribution``, ``entry point`` and ``distribution/entry point``.
    """
    names = os.environ.get(variable, "").split(",")
    return [canonical(name.strip()) for name in names if name.strip()]


def is_named(record: PluginRecord, names: Sequence[str]) -> bool:
    """Return whether one of ``names`` (see ``names_in``) means the plugin ``record``."""
    return not {
        record.distribution,
        canonical(record.name),
        canonical(record.full_name),
    }.isdisjoint(names)


def _disabled(record: PluginRecord) -> Fault | None:
    """Return the fault of a plugin that the environment variables disable; None if the
    plugin may be loaded. A plugin that both variables name is disabled.
    """
    if is_named(record, names_in(DENY)):
        return Fault(
            Status.DISABLED, f"{DENY} names it", f"take it out of {DENY} to use it"
        )
    allowed = names_in(ALLOW)
    if allowed and not is_named(record, allowed):
        return Fault(
            Status.DISABLED,
            f"{ALLOW} is set and does not name it",
            f"add it to {ALLOW} to use it",
        )
    return None


# --- loading one ----------------------------------------------------------------------


def load_plugin(
    manager: pluggy.PluginManager, entry: EntryPoint, record: PluginRecord
) -> PluginRecord:
    """Import a light module and register it in ``manager``; return ``record`` with the
    plugin's declarations. If anything fails, return ``record`` with the fault instead.
    """
    with exits_raise(), hangs_shown():
        try:
            module = import_installed(entry.module)
            attributes = entry.attr.split(".") if entry.attr else []
            plugin = reduce(getattr, attributes, module)
            return read_declarations(manager, plugin, record)
        except KeyboardInterrupt:
            raise
        except BaseException as e:
            # also SystemExit: a plugin that fails must not end the process
            text = describe(e, [record.location, *record.modules])
            return record.failed(Fault(Status.BROKEN, text, advice(e, record)), e)
