"""What is wrong with this installation, whose it is, and what to do about it."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import importlib_metadata

from .discovery import Key
from .examination import Examination, target_faults
from .plugin import BackendSpec
from .records import Fault, PluginRecord, Status

_DEPENDENCIES = ("delegraph", "torch", "numpy", "pluggy", "flatbuffers", "importlib-metadata")


@dataclass(frozen=True)
class PluginRow:
    """One plugin: its status after all of its targets were imported, what is wrong, and what is odd but harmless."""

    name: str
    distribution: str
    version: str
    location: str
    status: Status
    backends: tuple[str, ...]
    problems: tuple[Fault, ...]
    warnings: tuple[Fault, ...]

    def __str__(self) -> str:
        head = f"[{self.status}] {self.name} ({self.distribution} {self.version}".rstrip() + f") {self.location}"
        offers = [f"  backends: {', '.join(self.backends)}"] if self.backends else []
        wrong = [line for p in self.problems for line in _lines("problem", p)]
        odd = [line for w in self.warnings for line in _lines("warning", w)]
        return "\n".join([head, *offers, *wrong, *odd])


def _lines(kind: str, fault: Fault) -> Iterator[str]:
    yield f"  {kind}: {fault.error}"
    if fault.hint:
        yield f"  what to do: {fault.hint}"


@dataclass(frozen=True)
class DoctorReport:
    """Versions, one row a plugin, and remarks that belong to none."""

    versions: dict[str, str]
    plugins: tuple[PluginRow, ...]
    notes: tuple[str, ...]

    @property
    def healthy(self) -> bool:
        """Whether every plugin that is not disabled can be used."""
        return all(p.status in (Status.OK, Status.DISABLED) for p in self.plugins)

    def to_json(self) -> dict[str, Any]:
        """As a dictionary."""
        return {**asdict(self), "healthy": self.healthy}

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        rows = [str(p) for p in self.plugins] or ["no plugins are installed"]
        bad = sum(p.status not in (Status.OK, Status.DISABLED) for p in self.plugins)
        verdict = f"{bad} of {len(self.plugins)} plugins cannot be used" if bad else "everything is in order"
        return "\n".join([versions, *rows, *(f"note: {n}" for n in self.notes), verdict])


def report(records: Sequence[PluginRecord], notes: Sequence[str], examined: Mapping[Key, Examination]) -> DoctorReport:
    """Put together what this process knows of its plugins and what was found in processes of their own.

    Plugins that were not examined (registered in this process) have their targets imported here.
    """
    rows = tuple(_row(r, examined.get((r.distribution, r.name)), records) for r in records)
    return DoctorReport(_versions(), rows, tuple(notes))


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "platform": f"{sys.platform} {platform.machine()}"}
    for name in _DEPENDENCIES:
        try:
            found[name] = importlib_metadata.version(name)
        except importlib_metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _row(record: PluginRecord, examined: Examination | None, all_records: Sequence[PluginRecord]) -> PluginRow:
    found = _here(record) if examined is None else examined
    own = [Fault(record.status, record.error, record.hint)] if record.status is not Status.OK else []
    fatal = [found.fatal] if found.fatal else []
    problems = tuple(dict.fromkeys([*fatal, *own, *record.faults.values(), *found.faults]))
    odd = [*record.warnings, *found.warnings, *_same_name(record, all_records)]
    if not record.declarations and not record.events and not problems:
        odd.append(Fault(Status.OK, "it declares nothing", _NOTHING))
    return PluginRow(
        **{"name": record.name, "distribution": record.distribution, "version": record.version},
        location=record.location,
        status=problems[0].status if problems else Status.OK,
        backends=tuple(d.name for d in record.declarations if isinstance(d, BackendSpec)),
        problems=problems,
        warnings=tuple(dict.fromkeys(odd)),
    )


def _here(record: PluginRecord) -> Examination:
    faults = tuple(target_faults(record))
    wrong = tuple(f for f in faults if f.status is not Status.OK)
    return Examination(wrong, tuple(f for f in faults if f.status is Status.OK))


_NOTHING = "for its authors: the entry point names the module (or object) that has the functions marked @hookimpl"


def _same_name(record: PluginRecord, all_records: Sequence[PluginRecord]) -> Iterator[Fault]:
    """Entry points of one name in two distributions are two plugins; only who disables one by name has to know."""
    others = [r for r in all_records if r.name == record.name and r.distribution != record.distribution]
    if others:
        error = f"the entry point {record.name!r} is also one of {' and of '.join(r.address for r in others)}"
        hint = f"nothing, unless you allow or disable it by name: then write {record.distribution}/{record.name}"
        yield Fault(Status.OK, error, hint)
