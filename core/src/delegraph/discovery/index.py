"""Look-up by name: an immutable table over what the plugins declared."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ..errors import (
    BackendNotFound,
    DelegraphError,
    FormatNotFound,
    PluginBroken,
    PluginConflict,
    PluginIncompatible,
    PluginUnavailable,
)
from ..plugin import BackendSpec, CommandSpec, FormatSpec, OptionSpec, PartitionerSpec, QuantizerSpec, RuntimeSpec
from .distributions import canonical
from .entry_points import Discovery
from .loading import missing
from .record import DENY, Fault, PluginRecord, Status, suggestion

S = TypeVar("S", PartitionerSpec, RuntimeSpec, QuantizerSpec)


FORMAT_DISTRIBUTIONS = {".pte": "delegraph-executorch", ".tosa": "delegraph-tosa"}
"""Suffix -> the distribution that offers it, for the error that says what to install."""


@dataclass(frozen=True)
class Offer:
    """A declared backend and the plugin that declares it."""

    spec: BackendSpec
    record: PluginRecord
    fault: Fault | None = None

    @property
    def full_name(self) -> str:
        """``distribution/name``, which is never ambiguous between distributions."""
        return f"{self.record.distribution}/{self.spec.name}"

    @property
    def keys(self) -> set[str]:
        """All names that it is found by."""
        names, owner = {self.spec.name, self.spec.backend_id}, canonical(self.record.distribution)
        return names | {f"{owner}/{n}" for n in names}


@dataclass(frozen=True)
class BackendInfo:
    """One row of ``delegraph.backends()``."""

    name: str
    backend_id: str
    distribution: str
    version: str
    location: str
    status: Status
    error: str
    hint: str
    summary: str
    api: int
    target: str
    options: tuple[OptionSpec, ...]
    formats: tuple[str, ...]
    partitioners: tuple[str, ...]
    has_runtime: bool

    @property
    def usable(self) -> bool:
        return self.status is Status.OK

    @property
    def full_name(self) -> str:
        """``distribution/name``, which is never ambiguous between distributions."""
        return f"{self.distribution}/{self.name}"


class Catalogue:
    """Everything that is declared, by name. A registry makes a new one whenever something changes."""

    def __init__(self, discovery: Discovery) -> None:
        offers = [Offer(d, r, r.faults.get(d.name)) for r in discovery.records for d in _backends_of(r)]
        self._by_key: dict[str, list[Offer]] = {}
        for offer in offers:
            for key in offer.keys:
                self._by_key.setdefault(key, []).append(offer)
        self.offers = sorted(map(self._judged, offers), key=lambda o: (o.spec.name, o.record.distribution))
        conflicts = {id(o.record): o.fault for o in self.offers if o.fault and o.fault.status is Status.CONFLICT}
        self.records = tuple(_with_conflict(r, conflicts.get(id(r))) for r in discovery.records)
        self._declared: dict[tuple[type, str], list[tuple[Any, PluginRecord]]] = {}
        self._formats: dict[str, list[tuple[FormatSpec, PluginRecord]]] = {}
        for record in self.records:
            for d in record.declarations:
                if isinstance(d, FormatSpec):
                    self._formats.setdefault(d.suffix.lower(), []).append((d, record))
                elif not isinstance(d, (BackendSpec, CommandSpec)):
                    self._declared.setdefault((type(d), _key(d.backend)), []).append((d, record))
        self.notes = (*discovery.notes, *self._orphans())

    def _judged(self, offer: Offer) -> Offer:
        """Two providers of one bare name are a conflict, whatever else is right or wrong with them."""
        for name in (offer.spec.name, offer.spec.backend_id):
            if len(self._by_key[name]) > 1:
                error = _conflict(name, self._by_key[name])
                return replace(offer, fault=Fault(Status.CONFLICT, error.message, error.hint or ""))
        return offer

    def _orphans(self) -> Iterable[str]:
        for (kind, key), found in self._declared.items():
            if key not in self._by_key:
                owners = " and ".join(record.owner for _, record in found)
                yield f"{owners} declares a {kind.__name__} for {key!r}, which is not installed"

    def infos(self) -> list[BackendInfo]:
        """All declared backends, sorted by name."""
        return [self._info(o) for o in self.offers]

    def _info(self, offer: Offer) -> BackendInfo:
        spec, record, fault = offer.spec, offer.record, offer.fault
        return BackendInfo(
            name=spec.name,
            backend_id=spec.backend_id,
            distribution=record.distribution,
            version=record.version,
            location=record.location,
            status=fault.status if fault else Status.OK,
            error=fault.error if fault else "",
            hint=fault.hint if fault else "",
            summary=spec.summary,
            api=spec.api,
            target=spec.target,
            options=spec.options,
            formats=tuple(
                d.suffix for found in self._formats.values() for d, r in found if r.distribution == record.distribution
            ),
            partitioners=tuple(s.name for s, _ in self._of(offer, PartitionerSpec)),
            has_runtime=bool(self._of(offer, RuntimeSpec)),
        )

    def find(self, name: str) -> Offer:
        """The backend of that short name, backend id or ``distribution/name``, usable or not."""
        found = self._by_key.get(_key(name), [])
        if len(found) > 1:
            raise _conflict(name, found)
        if not found:
            raise self._not_found(name)
        return found[0]

    def usable(self, name: str) -> Offer:
        """As ``find``; raises PluginIncompatible or PluginUnavailable if it cannot be used."""
        offer = self.find(name)
        if offer.fault is not None:
            raise _unusable(offer.record, offer.fault)
        return offer

    def preferring(self, names: Iterable[str]) -> Catalogue:
        """The same, with the bare names of backends that are asked for in full meaning those. Raises PluginConflict."""
        chosen: dict[str, Offer] = {}
        for offer in (self.find(n) for n in names if "/" in n):
            for key in (offer.spec.name, offer.spec.backend_id):
                if chosen.setdefault(key, offer) is not offer:
                    both = f"{chosen[key].full_name} and {offer.full_name}"
                    text = f"{both} are both {key!r}, which is what a program stores"
                    raise PluginConflict("plugin-conflict", text, hint="lower for one of them at a time")
        if not chosen:
            return self
        view = copy.copy(self)
        view._by_key = {**self._by_key, **{key: [offer] for key, offer in chosen.items()}}
        return view

    def names(self) -> list[str]:
        """The short names that are installed."""
        return sorted({o.spec.name for o in self.offers})

    def taken(self, spec: BackendSpec) -> Offer | None:
        """Who has a bare name of ``spec`` already."""
        return next((o for n in (spec.name, spec.backend_id) for o in self._by_key.get(n, [])), None)

    def partitioner(self, name: str) -> tuple[Offer, PartitionerSpec, PluginRecord]:
        """The default partitioner of the backend ``name``, or else the partitioner of that name, and its backend."""
        if _key(name) not in self._by_key:
            for record in self.records:
                for d in record.declarations:
                    if isinstance(d, PartitionerSpec) and d.name == name:
                        return self.usable(d.backend), d, record
        offer = self.usable(name)
        spec, record = _default(offer, self._of(offer, PartitionerSpec))
        return offer, spec, record

    def only(self, offer: Offer, kind: type[S]) -> tuple[S, PluginRecord] | None:
        """The runtime or quantiser of a backend: its own distribution's, else the only one of another."""
        found = self._of(offer, kind)
        if len(found) > 1:
            owners = " and ".join(r.owner for _, r in found)
            raise PluginConflict("plugin-conflict", f"backend {offer.full_name} has several {kind.__name__}: {owners}")
        return found[0] if found else None

    def _of(self, offer: Offer, kind: type[S]) -> list[tuple[S, PluginRecord]]:
        """What the backend's own distribution declares for it; else what others do, who mean no backend of theirs."""
        meant = [found for key in sorted(offer.keys) for found in self._declared.get((kind, key), [])]
        owner = canonical(offer.record.distribution)
        own = [(d, r) for d, r in meant if canonical(r.distribution) == owner]
        return own or [(d, r) for d, r in meant if d.backend not in _own_names(r)]

    def owner(self, kind: type) -> PluginRecord | None:
        """The plugin that declares the class; else the only one that declares something of the class's package."""
        package = kind.__module__.partition(".")[0]
        for start in (f"{kind.__module__}:{kind.__qualname__}", f"{package}.", f"{package}:"):
            found = [r for r in self.records if any(d.target.startswith(start) for d in r.declarations)]
            if len({r.distribution for r in found}) == 1:
                return found[0]
        return None

    def format(self, name: str) -> tuple[FormatSpec, PluginRecord]:
        """The format with the longest suffix of the file name. Raises FormatNotFound, PluginConflict or the like."""
        fitting = [suffix for suffix in self._formats if name.lower().endswith(suffix)]
        if not fitting:
            raise self._format_not_found(name)
        offers = self._formats[max(fitting, key=len)]
        if len(offers) > 1:
            text = f"{len(offers)} plugins offer the format {max(fitting, key=len)}"
            owners = " and ".join(sorted(r.address for _, r in offers))
            hint = f"set {DENY} to one of them, such as {offers[0][1].distribution}"
            raise PluginConflict("plugin-conflict", f"{text}: {owners}", hint=hint)
        ((spec, record),) = offers
        if absent := missing(spec.requires):
            text = f"the format {spec.suffix} of {record.owner} needs {', '.join(absent)}, which is not installed"
            hint = spec.install_hint or f"install what provides {', '.join(absent)}"
            raise PluginUnavailable("plugin-unavailable", text, hint=hint)
        return spec, record

    def _format_not_found(self, name: str) -> DelegraphError:
        """What would provide the format: a plugin that is installed and cannot be used, or one that is not."""
        distribution = next((d for suffix, d in FORMAT_DISTRIBUTIONS.items() if name.lower().endswith(suffix)), None)
        for record in self.records:
            if record.status is not Status.OK and canonical(record.distribution) == distribution:
                return _unusable(record, Fault(record.status, record.error, record.hint))
        known = ", ".join(sorted(self._formats)) or "none"
        text = f"no installed plugin offers the format of {name!r} (suffixes: {known})"
        return FormatNotFound("format-not-found", text, hint=distribution and f"pip install {distribution}")

    def _not_found(self, name: str) -> DelegraphError:
        for record in self.records:
            if record.status is not Status.OK and _names_plugin(name, record):
                return _unusable(record, Fault(record.status, record.error, record.hint))
        installed = ", ".join(self.names()) or "none"
        silent = [r.name for r in self.records if r.status is Status.BROKEN]
        failed = f"; {', '.join(silent)} could not be loaded, see `delegraph doctor`" if silent else ""
        guess = suggestion(name, [*self.names(), *(o.spec.backend_id for o in self.offers), *sorted(self._by_key)])
        text = f"no installed plugin offers a backend {name!r}{guess} (installed: {installed}{failed})"
        return BackendNotFound("backend-not-found", text)


def _backends_of(record: PluginRecord) -> list[BackendSpec]:
    return [d for d in record.declarations if isinstance(d, BackendSpec)]


def _own_names(record: PluginRecord) -> set[str]:
    return {n for s in _backends_of(record) for n in (s.name, s.backend_id)}


def _key(name: str) -> str:
    distribution, slash, rest = name.partition("/")
    return f"{canonical(distribution)}/{rest}" if slash else name


def _names_plugin(name: str, record: PluginRecord) -> bool:
    return _key(name) in (record.name, f"{canonical(record.distribution)}/{record.name}") or canonical(
        name
    ) == canonical(record.distribution)


def _with_conflict(record: PluginRecord, conflict: Fault | None) -> PluginRecord:
    return record.failed(conflict) if conflict is not None and record.status is Status.OK else record


def _conflict(name: str, offers: Sequence[Offer]) -> PluginConflict:
    owners = " and ".join(sorted(o.record.address for o in offers))
    full = " or ".join(repr(n) for n in sorted({o.full_name for o in offers}))
    one = offers[0].record.distribution
    hint = f"ask for {full}, or set {DENY} to one of them, such as {one}"
    return PluginConflict("plugin-conflict", f"{len(offers)} plugins offer a backend {name!r}: {owners}", hint=hint)


def _default(offer: Offer, found: Sequence[tuple[PartitionerSpec, PluginRecord]]) -> tuple[Any, PluginRecord]:
    marked = [f for f in found if f[0].default] or list(found)
    if len(marked) == 1:
        return marked[0]
    if not found:
        raise PluginBroken("plugin-broken", f"backend {offer.full_name} declares no partitioner")
    names = ", ".join(s.name for s, _ in marked)
    text = f"backend {offer.full_name} has several partitioners and not one default: {names}"
    raise PluginBroken("plugin-broken", text, hint="ask for one of them by its own name")


_ERRORS: dict[Status, tuple[type[DelegraphError], str]] = {
    Status.INCOMPATIBLE: (PluginIncompatible, "plugin-incompatible"),
    Status.UNAVAILABLE: (PluginUnavailable, "plugin-unavailable"),
    Status.CONFLICT: (PluginConflict, "plugin-conflict"),
    Status.DISABLED: (BackendNotFound, "backend-not-found"),
    Status.BROKEN: (PluginBroken, "plugin-broken"),
}


def _unusable(record: PluginRecord, fault: Fault) -> DelegraphError:
    kind, code = _ERRORS[fault.status]
    error = kind(code, f"plugin {record.name!r} of {record.owner} is {fault.status}: {fault.error}", hint=fault.hint)
    error.__cause__ = record.exception
    return error
