"""The report of ``delegraph doctor``: each plugin with its problems, and what to do
about them.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

from delegraph.discovery.records import Fault, PluginRecord, Status
from delegraph.io.escape import printable
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
    """``backends``, ``commands``, ``formats`` and so on -> the names under which the
    plugin offers them.
    """
    environments: Mapping[str, str]
    """Name of a backend that is in an environment of its own -> where that is, and what
    names it.
    """
    problems: tuple[Fault, ...]
    warnings: tuple[Fault, ...]

    def __str__(self) -> str:
        """The plugin in lines of text: name and status, what it offers, problems,
        warnings.
        """
        head = (
            f"[{self.status}] {self.name} ({self.distribution} {self.version}".rstrip()
            + f") {self.location}"
        )
        offers = [
            f"  {kind}: {', '.join(names)}"
            for kind, names in self.offers.items()
            if names
        ]
        offers += [
            f"  {name} is in {place}" for name, place in self.environments.items()
        ]
        problems = [line for p in self.problems for line in _lines("problem", p)]
        warnings = [line for w in self.warnings for line in _lines("warning", w)]
        return "\n".join(map(printable, [head, *offers, *problems, *warnings]))


def _lines(kind: str, fault: Fault) -> Iterator[str]:
    """The lines of text for a fault; ``kind`` is "problem" or "warning"."""
    yield f"  {kind}: {fault.error}"
    if fault.hint:
        yield f"  what to do: {fault.hint}"


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
        """Whether every plugin that is not disabled can be used."""
        return all(p.status in (Status.OK, Status.DISABLED) for p in self.plugins)

    def to_json(self) -> dict[str, Any]:
        """The report as a dictionary; each plugin's offers become keys of its row."""
        fields = asdict(self)
        fields["plugins"] = [row | row.pop("offers") for row in fields["plugins"]]
        return {**fields, "healthy": self.healthy}

    def __str__(self) -> str:
        """The text that the command prints: versions, plugins, notes, and how many
        plugins cannot be used.
        """
        versions = ", ".join(
            f"{name} {version}" for name, version in self.versions.items()
        )
        rows = [str(p) for p in self.plugins] or ["no plugins are installed"]
        bad = sum(p.status not in (Status.OK, Status.DISABLED) for p in self.plugins)
        verdict = (
            f"{bad} of {len(self.plugins)} plugins cannot be used"
            if bad
            else "everything is in order"
        )
        return "\n".join(
            [versions, *rows, *(f"note: {n}" for n in self.notes), verdict]
        )


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
    """The row of one plugin.

    ``probed``: what the child process found; None for a plugin that was registered in
    this process, whose targets are imported here. ``all_records``: those of all
    plugins, to find others with the same name.
    """
    result = ProbeResult.of(list(target_faults(record))) if probed is None else probed
    faults = [result.fatal] if result.fatal else []
    if record.status is not Status.OK:
        faults.append(Fault(record.status, record.error, record.hint))
    for requirement in _requirements(record.distribution):
        faults += _unmet(requirement, record)
    # a backend of a usable plugin that only lacks an optional module is a warning;
    # other unusable backends are problems
    lacking: list[Fault] = []
    for fault in record.faults.values():
        is_optional = record.status is Status.OK and fault.status is Status.UNAVAILABLE
        (lacking if is_optional else faults).append(fault)
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
    """Return the requirements of an installed distribution, as its metadata has them."""
    try:
        return metadata.requires(distribution) or []
    except (metadata.PackageNotFoundError, OSError, ValueError):
        return []  # it was registered in this process, or its metadata is damaged


def _unmet(text: str, record: PluginRecord) -> Iterator[Fault]:
    """A fault if ``text``, one requirement of the plugin's distribution, is not met or
    cannot be read; else nothing.

    Requirements of extras, and those for other systems or Python versions, do not
    count.
    """
    from packaging.requirements import Requirement

    try:
        requirement = Requirement(text)
        applies = requirement.marker is None or requirement.marker.evaluate(
            {"extra": ""}
        )
    except (ValueError, RecursionError):
        hint = f"for the authors of {record.distribution}: write it as PEP 508 says"
        yield Fault(
            Status.OK,
            f"its metadata requires {text[:100]!r}, which is no requirement",
            hint,
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
    """A warning if another distribution has an entry point of the same name.

    Both plugins work. But that name in DELEGRAPH_PLUGINS or DELEGRAPH_DISABLE_PLUGINS
    means both.
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
            "nothing, unless you allow or disable it by name: then write"
            f" {record.distribution}/{record.name}"
        )
        yield Fault(Status.OK, error, hint)
