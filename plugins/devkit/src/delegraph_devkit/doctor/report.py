"""Report plugins with their problems and the remedies: ``delegraph doctor``."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

from delegraph.discovery.records import Fault, PluginRecord, Status
from delegraph.io.escape_for_terminal import printable
from delegraph.plugin import DECLARATION_OF, BackendSpec, RemoteBackendSpec

from .probe import ProbeResult, target_faults

_DEPENDENCIES = tuple("delegraph torch numpy pluggy packaging argcomplete".split())


@dataclass(frozen=True)
class PluginRow:
    """One plugin, with its status after the import of all its targets.

    ``problems`` prevent the use of the plugin or a part of it; ``warnings`` do not.
    """

    name: str
    distribution: str
    version: str
    location: str
    status: Status
    offers: Mapping[str, tuple[str, ...]]
    """The names of the plugin's ``backends``, ``commands``, ``formats`` and so on."""
    environments: Mapping[str, str]
    """Backend in an environment of its own -> the environment, and the file that names
    it.
    """
    problems: tuple[Fault, ...]
    warnings: tuple[Fault, ...]

    def __str__(self) -> str:
        """Return lines of text: name and status, offers, problems, warnings."""
        source = f"{self.distribution} {self.version}".rstrip()
        lines = [f"[{self.status}] {self.name} ({source}) {self.location}"]
        for kind, names in self.offers.items():
            if names:
                lines.append(f"  {kind}: {', '.join(names)}")
        lines += [
            f"  {name} is in {place}" for name, place in self.environments.items()
        ]
        for problem in self.problems:
            lines += _lines("problem", problem)
        for warning in self.warnings:
            lines += _lines("warning", warning)
        return "\n".join(map(printable, lines))


def _lines(kind: str, fault: Fault) -> Iterator[str]:
    """Yield the lines of a fault; ``kind`` is "problem" or "warning"."""
    yield f"  {kind}: {fault.error}"
    if fault.hint:
        yield f"  hint: {fault.hint}"


@dataclass(frozen=True)
class DoctorReport:
    """The result of ``delegraph doctor``.

    ``versions``: name of a dependency -> its version, or "not installed".
    """

    versions: dict[str, str]
    plugins: tuple[PluginRow, ...]
    notes: tuple[str, ...]

    @property
    def healthy(self) -> bool:
        """Return whether every plugin that is not disabled can be used."""
        return all(p.status in (Status.OK, Status.DISABLED) for p in self.plugins)

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary; each plugin's offers become keys of its row."""
        fields = asdict(self)
        fields["plugins"] = [row | row.pop("offers") for row in fields["plugins"]]
        return {**fields, "healthy": self.healthy}

    def __str__(self) -> str:
        """Return the text of the command: versions, plugins, notes, and a verdict."""
        versions = ", ".join(
            f"{name} {version}" for name, version in self.versions.items()
        )
        rows = [str(p) for p in self.plugins] or ["no plugins are installed"]
        notes = [f"note: {note}" for note in self.notes]
        bad = sum(p.status not in (Status.OK, Status.DISABLED) for p in self.plugins)
        verdict = "everything is in order"
        if bad:
            verdict = f"{bad} of {len(self.plugins)} plugins cannot be used"
        return "\n".join([versions, *rows, *notes, verdict])


def build_report(
    records: Sequence[PluginRecord],
    notes: Sequence[str],
    probed: Mapping[str, ProbeResult],
) -> DoctorReport:
    """Build the report from the records of this process and the results of ``probe``.

    Plugins without a result were registered in this process; their targets are imported
    here.
    """
    rows = tuple(_row(r, probed.get(r.full_name), records) for r in records)
    versions = {
        "python": platform.python_version(),
        "platform": f"{sys.platform} {platform.machine()}",
    }
    versions |= {name: _version(name) or "not installed" for name in _DEPENDENCIES}
    return DoctorReport(versions, rows, tuple(notes))


def _row(
    record: PluginRecord,
    probed: ProbeResult | None,
    all_records: Sequence[PluginRecord],
) -> PluginRow:
    """Return the row of one plugin.

    ``probed`` is the result of the child process. It is None for a plugin that was
    registered in this process: its targets are imported here. Other plugins of the same
    name are found in ``all_records``.
    """
    result = ProbeResult.of(list(target_faults(record))) if probed is None else probed
    faults = [result.fatal] if result.fatal else []
    if record.status is not Status.OK:
        faults.append(Fault(record.status, record.error, record.hint))
    for requirement in _requirements(record.distribution):
        faults += _unmet(requirement, record)
    # in a usable plugin, a backend that lacks an optional module is a warning;
    # other unusable backends are problems
    lacking: list[Fault] = []
    for fault in record.faults.values():
        if record.status is Status.OK and fault.status is Status.UNAVAILABLE:
            lacking.append(fault)
        else:
            faults.append(fault)
    faults = list(dict.fromkeys([*faults, *result.faults]))
    problems = tuple(f for f in faults if f.status is not Status.OK)
    warnings = [
        *(f for f in faults if f.status is Status.OK),
        *lacking,
        *record.warnings,
        *result.warnings,
    ]
    warnings += _same_name(record, all_records)
    if not record.declarations and not problems:
        warnings.append(Fault(Status.OK, "it declares nothing", _NOTHING))
    return PluginRow(
        name=record.name,
        distribution=record.distribution,
        version=record.version,
        location=record.location,
        status=problems[0].status if problems else Status.OK,
        offers={
            hook.removeprefix("delegraph_"): tuple(
                d.key for d in record.declarations if isinstance(d, kind)
            )
            for hook, kind in DECLARATION_OF.items()
            if kind.alone or kind is BackendSpec
        },
        environments={
            d.key: d.location
            for d in record.declarations
            if isinstance(d, RemoteBackendSpec)
        },
        problems=problems,
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _version(distribution: str) -> str | None:
    """Return the version of an installed distribution; None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _requirements(distribution: str) -> list[str]:
    """Return the requirements in the metadata of an installed distribution."""
    try:
        return metadata.requires(distribution) or []
    except (metadata.PackageNotFoundError, OSError, ValueError):
        return []  # it was registered in this process, or its metadata is damaged


def _unmet(text: str, record: PluginRecord) -> Iterator[Fault]:
    """Yield a fault if a requirement of the plugin's distribution is invalid or unmet.

    Requirements of extras, and those for other systems or Python versions, do not
    count.
    """
    from packaging.requirements import Requirement

    try:
        requirement = Requirement(text)
        marker = requirement.marker
        applies = marker is None or marker.evaluate({"extra": ""})
    except (ValueError, RecursionError):
        yield Fault(
            Status.OK,
            f"its metadata has an invalid requirement: {text[:100]!r}",
            f"for the authors of {record.distribution}: write it as in PEP 508",
        )
        return
    if not applies:
        return
    present = _version(requirement.name)
    hint = f"python -m pip install {str(requirement).partition(';')[0]!r}"
    if present is None:
        yield Fault(
            Status.UNAVAILABLE,
            f"it requires {requirement}, which is not installed",
            hint,
        )
        return
    try:
        fits = requirement.specifier.contains(present, prereleases=True)
    except ValueError:
        # the installed version cannot be compared: it fits only if any version does
        fits = not requirement.specifier
    if not fits:
        yield Fault(
            Status.INCOMPATIBLE,
            f"it requires {requirement}, and {present} is installed",
            hint,
        )


_NOTHING = (
    "for its authors: the entry point names the module (or object) that has the"
    " functions marked @hookimpl"
)


def _same_name(
    record: PluginRecord, all_records: Sequence[PluginRecord]
) -> Iterator[Fault]:
    """Yield a warning if another distribution has an entry point of the same name.

    Both plugins work, but DELEGRAPH_PLUGINS and DELEGRAPH_DISABLE_PLUGINS apply to
    both.
    """
    others = [
        r
        for r in all_records
        if r.name == record.name and r.distribution != record.distribution
    ]
    if others:
        error = (
            f"the entry point {record.name!r} is also one of"
            f" {' and of '.join(r.address for r in others)}"
        )
        hint = (
            "to allow or disable this one by name, write"
            f" {record.distribution}/{record.name}"
        )
        yield Fault(Status.OK, error, hint)
