"""What is wrong with this installation, whose it is, and what to do about it."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import importlib_metadata

from .discovery import Fault, PluginRecord, Status
from .errors import DelegraphError
from .plugin import BackendSpec, Declaration, RuntimeSpec
from .resolution import resolve
from .targets import missing

if TYPE_CHECKING:
    from .registry import Registry

_DEPENDENCIES = ("delegraph", "torch", "numpy", "pluggy", "flatbuffers", "importlib-metadata")


@dataclass(frozen=True)
class PluginRow:
    """One plugin: its status after all of its targets were imported, what is wrong, and remarks."""

    name: str
    distribution: str
    version: str
    location: str
    status: Status
    backends: tuple[str, ...]
    problems: tuple[Fault, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        head = f"[{self.status}] {self.name} ({self.distribution} {self.version}".rstrip() + f") {self.location}"
        offers = [f"  backends: {', '.join(self.backends)}"] if self.backends else []
        wrong = [line for p in self.problems for line in (f"  problem: {p.error}", f"  what to do: {p.hint}")]
        return "\n".join([head, *offers, *wrong, *(f"  note: {n}" for n in self.notes)])


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


def examine(registry: Registry) -> DoctorReport:
    """Import all targets of all plugins that are not disabled, each for itself, and say what fails."""
    rows = tuple(_row(record) for record in registry.plugins())
    return DoctorReport(_versions(), rows, tuple(registry.notes()))


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "platform": f"{sys.platform} {platform.machine()}"}
    for name in _DEPENDENCIES:
        try:
            found[name] = importlib_metadata.version(name)
        except importlib_metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _row(record: PluginRecord) -> PluginRow:
    problems = tuple(_problems(record))
    notes = record.notes if record.declarations or problems else (*record.notes, "it declares nothing")
    status = record.status if record.status is not Status.OK or not problems else problems[0].status
    backends = tuple(d.name for d in record.declarations if isinstance(d, BackendSpec))
    return PluginRow(
        record.name, record.distribution, record.version, record.location, status, backends, problems, notes
    )


def _problems(record: PluginRecord) -> Iterator[Fault]:
    own = [Fault(record.status, record.error, record.hint)] if record.status is not Status.OK else []
    yield from dict.fromkeys([*own, *record.faults.values()])
    if record.status in (Status.OK, Status.CONFLICT, Status.UNAVAILABLE):
        for declaration in record.declarations:
            yield from _target_problem(declaration, record)


def _target_problem(declaration: Declaration, record: PluginRecord) -> Iterator[Fault]:
    backend = declaration.name if isinstance(declaration, BackendSpec) else declaration.backend
    needs = missing(declaration.requires) if isinstance(declaration, RuntimeSpec) else []
    if backend in record.faults:
        return
    if needs:
        error = f"the runtime of {backend!r} needs {', '.join(needs)}, which is not installed"
        yield Fault(Status.UNAVAILABLE, error, f"install {', '.join(needs)}")
        return
    try:
        resolve(declaration, record)
    except DelegraphError as e:
        yield Fault(Status.BROKEN, e.message, e.hint or "")
