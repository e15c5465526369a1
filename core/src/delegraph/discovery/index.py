"""An immutable index of everything that plugins declare, for look-up by name."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from ..errors import (
    BackendNotFound,
    DelegraphError,
    FormatNotFound,
    NoRuntime,
    PluginBroken,
    PluginConflict,
    PluginIncompatible,
    PluginUnavailable,
    UsageError,
)
from ..plugin import (
    BackendSpec,
    BySuffix,
    Declaration,
    FormatSpec,
    OptionSpec,
    PartitionerSpec,
    QuantizerSpec,
    ReportSpec,
    RuntimeSpec,
)
from .distributions import canonical
from .entry_points import Discovery
from .loading import missing
from .own import OWN, Provider, names_of_backends, provider_of
from .record import DENY, Fault, PluginRecord, Status, nearest, suggestion

D = TypeVar("D", bound=Declaration)
Declared = tuple[D, PluginRecord]
"""A declaration, and the record of the plugin that makes it."""

DELEGRAPH = PluginRecord("delegraph", "delegraph", "", "itself")
"""The record that stands for delegraph itself, as the owner of its own declarations."""


class BackendEntry(NamedTuple):
    """A declared backend and the record of its plugin. ``fault``: why it cannot be
    used; None if it can.
    """

    spec: BackendSpec
    record: PluginRecord
    fault: Fault | None = None

    @property
    def full_name(self) -> str:
        """``distribution/name``, which is never ambiguous between distributions."""
        return f"{self.record.distribution}/{self.spec.name}"

    @property
    def keys(self) -> set[str]:
        """All names by which the backend is found: short name and backend id, each with
        and without distribution.
        """
        names = {self.spec.name, self.spec.backend_id}
        owner = canonical(self.record.distribution)
        return names | {f"{owner}/{n}" for n in names}


@dataclass(frozen=True)
class BackendInfo:
    """One row of ``delegraph.backends()``. ``error`` and ``hint`` are "" if the backend
    can be used.
    """

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
    has_quantizer: bool
    is_default: bool

    @property
    def usable(self) -> bool:
        return self.status is Status.OK

    @property
    def full_name(self) -> str:
        """``distribution/name``, which is never ambiguous between distributions."""
        return f"{self.distribution}/{self.name}"


class Index:
    """All declarations, by name. Never changes: a registry creates a new index when a
    plugin is added or removed.

    ``_by_key``: any name of a backend -> the backends with that name. ``_declared``:
    (kind, key) -> the other declarations of that kind and key. ``entries``: all
    backends, each with its conflict if another has the same name.
    """

    def __init__(self, discovery: Discovery) -> None:
        """``discovery``: the records of all plugins, installed or registered."""
        self._by_key: dict[str, list[BackendEntry]] = {}
        self._declared: dict[tuple[type[Declaration], str], list[Declared[Any]]] = {}
        for spec in OWN:
            self._declared[type(spec), spec.key] = [(spec, DELEGRAPH)]
        for record in discovery.records:
            for spec in record.declarations:
                self._add(spec, record)
        # each backend once: ``_by_key`` has it under several keys, of which one is its
        # short name
        backends = [
            e
            for key, same in self._by_key.items()
            if "/" not in key
            for e in same
            if key == e.spec.name
        ]
        self.entries = sorted(
            map(self._with_conflict, backends),
            key=lambda e: (e.spec.name, e.record.distribution),
        )
        # a plugin with a backend that has a conflict gets that fault itself
        conflicts = {
            id(e.record): e.fault
            for e in self.entries
            if e.fault and e.fault.status is Status.CONFLICT
        }
        records = []
        for record in discovery.records:
            conflict = conflicts.get(id(record))
            records.append(
                record
                if conflict is None or record.status is not Status.OK
                else record.failed(conflict)
            )
        self.records = tuple(records)
        self.notes = (*discovery.notes, *self._orphans())

    def _add(self, spec: Declaration, record: PluginRecord) -> None:
        """Add one declaration of the plugin ``record``.

        A backend is added under each of its names. A declaration for a backend
        (partitioner, runtime, quantizer) is added under the backend's name. One that
        stands alone (command, format, report, model) is added under its key, unless
        delegraph itself has that key, and under ``distribution/key``.
        """
        if isinstance(spec, BackendSpec):
            entry = BackendEntry(spec, record, record.faults.get(spec.name))
            for key in entry.keys:
                self._by_key.setdefault(key, []).append(entry)
            return
        key = spec.key if spec.alone else _key_of(spec.key)
        same_key = self._declared.setdefault((type(spec), key), [])
        # a plugin cannot take a name from delegraph itself
        if not (same_key and same_key[0][1] is DELEGRAPH):
            same_key.append((spec, record))
        if spec.alone:
            self._declared[type(spec), f"{canonical(record.distribution)}/{key}"] = [
                (spec, record)
            ]

    def _with_conflict(self, entry: BackendEntry) -> BackendEntry:
        """``entry``, with a fault if another backend has the same name or id, whether
        that one can be used or not.
        """
        for name in (entry.spec.name, entry.spec.backend_id):
            if len(self._by_key[name]) > 1:
                error = _backend_conflict(name, self._by_key[name])
                return entry._replace(
                    fault=Fault(Status.CONFLICT, error.message, error.hint or "")
                )
        return entry

    def _orphans(self) -> Iterable[str]:
        """A remark for each backend that is not installed, and each kind of declaration
        that plugins make for it.
        """
        for (kind, key), declared in self._declared.items():
            if not kind.alone and key not in self._by_key:
                owners = " and ".join(record.owner for _, record in declared)
                yield (
                    f"{owners} declares a {kind.noun} of {key!r}, which is not"
                    " installed"
                )

    def info(self, entry: BackendEntry) -> BackendInfo:
        """The row of ``delegraph.backends()`` for a backend."""
        spec = entry.spec
        record = entry.record
        fault = entry.fault or Fault(Status.OK, "")
        return BackendInfo(
            name=spec.name,
            backend_id=spec.backend_id,
            distribution=record.distribution,
            version=record.version,
            location=spec.location or record.location,
            status=fault.status,
            error=fault.error,
            hint=fault.hint,
            summary=spec.summary,
            api=spec.api,
            target=spec.target,
            options=spec.options,
            formats=tuple(
                f.suffix
                for f, r in self.all(FormatSpec)
                if r.distribution == record.distribution
            ),
            partitioners=tuple(
                s.name for s, _ in self.of_backend(PartitionerSpec, entry)
            ),
            has_runtime=bool(self.of_backend(RuntimeSpec, entry)),
            has_quantizer=bool(self.of_backend(QuantizerSpec, entry)),
            is_default=entry.spec.default,
        )

    def find(self, name: str) -> BackendEntry:
        """The backend called ``name`` (short name, backend id or
        ``distribution/name``), whether it can be used or not.

        Raises PluginConflict if several have that name; if none has it,
        BackendNotFound, or the error for a plugin of that name that cannot be used.
        """
        entries = self._by_key.get(_key_of(name), [])
        if len(entries) > 1:
            raise _backend_conflict(name, entries)
        if not entries:
            raise self._not_found(name)
        return entries[0]

    def usable(self, name: str) -> BackendEntry:
        """As ``find``, but raises PluginIncompatible, PluginUnavailable or
        PluginConflict if it cannot be used.
        """
        entry = self.find(name)
        if entry.fault is not None:
            raise _unusable(entry.record, entry.fault)
        return entry

    def preferring(self, names: Iterable[str]) -> Index:
        """An index in which the backends that ``names`` has as ``distribution/name``
        win over others of the same name.

        With ``acme/npu`` in ``names``, the bare name ``npu`` and the backend's id mean
        that backend, even if other distributions have a backend of the same name or id.
        Bare names in ``names`` have no effect. Raises PluginConflict if two backends in
        ``names`` have the same name or id.
        """
        # name or id -> the backend that it means in the new index
        chosen: dict[str, BackendEntry] = {}
        for entry in (self.find(n) for n in names if "/" in n):
            for key in (entry.spec.name, entry.spec.backend_id):
                other = chosen.setdefault(key, entry)
                if other is not entry:
                    both = f"{other.full_name} and {entry.full_name}"
                    text = f"{both} are both {key!r}, which is what a program stores"
                    raise PluginConflict(
                        "plugin-conflict", text, hint="lower for one of them at a time"
                    )
        if not chosen:
            return self
        preferring = copy.copy(self)
        preferring._by_key = self._by_key | {
            key: [entry] for key, entry in chosen.items()
        }
        return preferring

    def taken(self, spec: BackendSpec) -> BackendEntry | None:
        """The backend that already has the name or id of ``spec``; None if both are
        free.
        """
        return next(
            (
                entry
                for key in (spec.name, spec.backend_id)
                for entry in self._by_key.get(key, [])
            ),
            None,
        )

    def partitioner(
        self, name: str
    ) -> tuple[BackendEntry, PartitionerSpec, PluginRecord]:
        """(backend, its partitioner, record of the plugin that declares the
        partitioner).

        ``name``: of a backend, for its default partitioner, or else of a partitioner.
        Raises what ``usable`` does, and PluginBroken if the backend has no partitioner,
        or several without exactly one default.
        """
        # no backend is called so; a partitioner may be
        if _key_of(name) not in self._by_key:
            for record in self.records:
                for d in record.declarations:
                    if isinstance(d, PartitionerSpec) and d.name == name:
                        return self.usable(d.backend), d, record
        entry = self.usable(name)
        declared = self.of_backend(PartitionerSpec, entry)
        defaults = [
            (spec, record) for spec, record in declared if spec.default
        ] or declared
        if len(defaults) == 1:
            return entry, *defaults[0]
        if not declared:
            raise PluginBroken(
                "plugin-broken", f"backend {entry.full_name} declares no partitioner"
            )
        names = ", ".join(spec.name for spec, _ in defaults)
        text = (
            f"backend {entry.full_name} has several partitioners and not one default:"
            f" {names}"
        )
        raise PluginBroken(
            "plugin-broken", text, hint="ask for one of them by its own name"
        )

    def only(self, kind: type[D], entry: BackendEntry) -> Declared[D] | None:
        """The declaration of a kind of which a backend has at most one (runtime,
        quantizer); None if it has none.

        Raises PluginConflict if ``of_backend`` finds several.
        """
        declared = self.of_backend(kind, entry)
        if len(declared) > 1:
            owners = " and ".join(r.owner for _, r in declared)
            text = (
                f"backend {entry.full_name} has {len(declared)} {kind.noun}s: {owners}"
            )
            raise PluginConflict(
                "plugin-conflict", text, hint=f"set {DENY} to all of them but one"
            )
        return declared[0] if declared else None

    def of_backend(self, kind: type[D], entry: BackendEntry) -> list[Declared[D]]:
        """The declarations of a kind for a backend: those of its own distribution or,
        if it has none, those of others.

        Another distribution that has a backend of that name, too, is left out: its
        declarations are for its own one.
        """
        by_name = [
            declared
            for key in sorted(entry.keys)
            for declared in self._declared.get((kind, key), [])
        ]
        owner = canonical(entry.record.distribution)
        own = [(d, r) for d, r in by_name if canonical(r.distribution) == owner]
        if own:
            return own
        # ``d.key`` names the backend that ``d`` is for, and ``r.backends`` are those
        # that its plugin declares itself
        return [
            (d, r)
            for d, r in by_name
            if all(d.key not in (b.name, b.backend_id) for b in r.backends)
        ]

    def owner(self, kind: type) -> PluginRecord | None:
        """The plugin that declares the class ``kind``, else the only one with a target
        in the same top-level package.

        None if there is neither.
        """
        package = kind.__module__.partition(".")[0]
        # targets are "package.module:Name": the class itself, then any module of the
        # package, then the package
        for start in (
            f"{kind.__module__}:{kind.__qualname__}",
            f"{package}.",
            f"{package}:",
        ):
            owners = [
                r
                for r in self.records
                if any(d.target.startswith(start) for d in r.declarations)
            ]
            if len({r.distribution for r in owners}) == 1:
                return owners[0]
        return None

    def all(self, kind: type[D]) -> list[Declared[D]]:
        """All declarations of a kind by plugins, sorted by name and distribution;
        delegraph's own are left out.
        """
        declared = [
            (d, r) for r in self.records for d in r.declarations if isinstance(d, kind)
        ]
        return sorted(declared, key=lambda pair: (pair[0].key, pair[1].distribution))

    def get(self, kind: type[D], asked: str) -> Declared[D]:
        """The declaration of a kind that ``asked`` names, and its plugin.

        ``asked``: a name, ``distribution/name``, or a file's name, of which the suffix
        counts. Raises PluginConflict if several plugins declare it, PluginUnavailable
        if it needs a module that is not installed, and if no plugin declares it the
        error of ``_not_declared``.
        """
        # names that first-party distributions would declare count as known, even if
        # these are not installed: otherwise r.nodes.json would be written as a .json
        # file, where an error has to say what to install
        asked_keys = (asked, *kind.meant_by(asked))
        key = next(
            (
                k
                for k in asked_keys
                if (kind, k) in self._declared or provider_of(kind, k)
            ),
            asked,
        )
        declared = self._declared.get((kind, key))
        if declared is None:
            raise self._not_declared(kind, asked)
        if len(declared) > 1:
            full_names = [f"{canonical(r.distribution)}/{d.key}" for d, r in declared]
            raise _conflict(
                f"the {declared[0][0].title}", [r for _, r in declared], full_names
            )
        ((spec, record),) = declared
        if absent := missing(spec.requires):
            text = (
                f"the {spec.title} of {record.owner} needs {', '.join(absent)}, which"
                " is not installed"
            )
            hint = spec.install_hint or f"install what provides {', '.join(absent)}"
            raise PluginUnavailable("plugin-unavailable", text, hint=hint)
        return spec, record

    def suffix_for(self, runtime: str) -> str:
        """The suffix of the files that the runtime ``runtime`` executes; of several
        suffixes the first by name.

        Raises NoRuntime if no plugin has a file format that names this runtime.
        """
        specs = [spec for spec, _ in self.all(FormatSpec)]
        suffix = next((spec.suffix for spec in specs if runtime in spec.runtimes), None)
        if suffix is None:
            provider = provider_of("runtimes", runtime)
            if provider is not None:
                text = (
                    f"the runtime {runtime!r} comes with {provider.distribution}, which"
                    " is not installed"
                )
                raise NoRuntime("no-runtime", text, hint=provider.hint)
            known = (
                ", ".join(sorted({name for spec in specs for name in spec.runtimes}))
                or "none"
            )
            raise NoRuntime(
                "no-runtime",
                f"no installed plugin executes files in the runtime {runtime!r}"
                f" ({known})",
            )
        return suffix

    def _not_declared(self, kind: type[Declaration], asked: str) -> DelegraphError:
        """The error for a name ``asked`` that no usable plugin declares.

        If a distribution of this project has such a declaration, the error says why
        that distribution cannot be used, or how to install it. Otherwise the error
        suggests the closest name that is declared.
        """
        provider = next(
            filter(None, (provider_of(kind, k) for k in kind.meant_by(asked))), None
        )
        what = (
            f"{kind.noun} for {asked!r}"
            if issubclass(kind, BySuffix)
            else f"{kind.noun} {asked!r}"
        )
        error, code = _NOT_DECLARED.get(kind, (UsageError, "usage-invalid"))
        if provider is not None:
            unusable = self._unusable_provider(provider, what)
            if unusable is not None:
                return unusable
            text = (
                f"the {what} comes with {provider.distribution}, which is not installed"
            )
            return error(code, text, hint=provider.hint)
        known = sorted(
            {
                key
                for declared_kind, key in self._declared
                if declared_kind is kind and "/" not in key
            }
        )
        text = (
            f"there is no {what}{suggestion(asked, known)} ({kind.noun}s:"
            f" {', '.join(known) or 'none'})"
        )
        return error(
            code, text, hint="`delegraph doctor` lists plugins that are broken"
        )

    def _not_found(self, name: str) -> DelegraphError:
        """The error for a backend ``name`` that is not declared.

        If a plugin that cannot be used has that name, or its distribution does, the
        error says why it cannot be used. If a distribution of this project has such a
        backend, the error says how to install it. If ``name`` is the class of a backend
        that is declared with another id, that declaration is the fault.
        """
        for entry in self.entries:
            if entry.spec.target.rpartition(":")[2] == name:
                text = (
                    f"backend {entry.spec.target!r} of {entry.record.owner}"
                    f" {entry.spec.wrong_id(name)}"
                )
                return PluginBroken(
                    "plugin-broken",
                    text,
                    hint=f"for the authors of {entry.record.distribution}",
                )
        for record in self.records:
            distribution = canonical(record.distribution)
            is_plugin = _key_of(name) in (record.name, f"{distribution}/{record.name}")
            if record.status is not Status.OK and (
                is_plugin or canonical(name) == distribution
            ):
                return _unusable(
                    record, Fault(record.status, record.error, record.hint)
                )
        owner, _, short_name = _key_of(name).rpartition("/")
        provider = provider_of(BackendSpec, short_name)
        if provider is not None and owner in ("", provider.distribution):
            unusable = self._unusable_provider(provider, f"backend {name!r}")
            if unusable is not None:
                return unusable
            if not any(
                canonical(record.distribution) == provider.distribution
                for record in self.records
            ):
                text = (
                    f"the backend {name!r} comes with {provider.distribution}, which is"
                    " not installed"
                )
                return BackendNotFound("backend-not-found", text, hint=provider.hint)
        names = sorted({e.spec.name for e in self.entries})
        broken = [r.name for r in self.records if r.status is Status.BROKEN]
        failed = (
            f"; {', '.join(broken)} could not be loaded, see `delegraph doctor`"
            if broken
            else ""
        )
        # backends with a conflict are suggested, too: their full names can be used
        usable = [
            e
            for e in self.entries
            if e.fault is None or e.fault.status is Status.CONFLICT
        ]
        guess = suggestion(
            name,
            [
                word
                for e in usable
                for word in (e.spec.name, e.spec.backend_id, e.full_name)
            ],
        )
        text = (
            f"Backend {name} was not found{guess} (installed:"
            f" {', '.join(names) or 'none'}{failed})"
        )
        ours = names_of_backends()
        near = None if guess else nearest(name, ours)
        if near is None or near in names:
            return BackendNotFound("backend-not-found", text)
        hint = f"if you mean {near!r}: {ours[near].hint}"
        return BackendNotFound("backend-not-found", text, hint=hint)

    def _unusable_provider(
        self, provider: Provider, what: str
    ) -> DelegraphError | None:
        """The error for ``what`` if its distribution is installed and cannot be used;
        None otherwise.
        """
        for record in self.records:
            if (
                record.status is not Status.OK
                and canonical(record.distribution) == provider.distribution
            ):
                fault = Fault(record.status, record.error, record.hint)
                return _unusable(
                    record, fault, f"the {what} comes with {record.owner}, which"
                )
        return None


def _key_of(name: str) -> str:
    """``name`` as ``_by_key`` has it: ``distribution/name`` with the distribution in
    canonical form, else unchanged.
    """
    distribution, slash, rest = name.partition("/")
    return f"{canonical(distribution)}/{rest}" if slash else name


def _backend_conflict(name: str, entries: Sequence[BackendEntry]) -> PluginConflict:
    """The error for a name that several backends have. The hint offers those that can
    be used, or all if none can.

    The message says of the others why they cannot be used.
    """
    usable = [
        e
        for e in entries
        if e.fault is None and e.record.status in (Status.OK, Status.CONFLICT)
    ]
    offered = {repr(e.full_name) for e in usable or entries}
    addresses = [
        f"{e.record.owner} ({e.spec.location or e.record.location})" for e in entries
    ]
    error = _conflict(
        f"a backend {name!r}", [e.record for e in entries], offered, addresses
    )
    text = error.message
    for entry in entries:
        if entry not in usable:
            why = entry.fault.error if entry.fault else entry.record.error
            text += f"; {entry.full_name} cannot be used: {why}"
    # what a plugin declares for an environment of the user's settings, the user can
    # change there
    hints = [error.hint, *(e.spec.install_hint for e in entries if e.spec.location)]
    return PluginConflict(error.code, text, hint="; or ".join(filter(None, hints)))


def _conflict(
    what: str,
    records: Sequence[PluginRecord],
    full_names: Iterable[str],
    addresses: Iterable[str] | None = None,
) -> PluginConflict:
    """The error for several plugins that offer ``what``; the hint suggests
    ``full_names`` instead.

    ``addresses``: who offers it, and where; None: the addresses of ``records``.
    """
    owners = " and ".join(sorted(addresses or (r.address for r in records)))
    hint = (
        f"ask for {' or '.join(sorted(full_names))}, or set {DENY} to one of them, such"
        f" as {records[0].distribution}"
    )
    return PluginConflict(
        "plugin-conflict", f"{len(records)} plugins offer {what}: {owners}", hint=hint
    )


_NOT_DECLARED: dict[type[Declaration], tuple[type[DelegraphError], str]] = {
    FormatSpec: (FormatNotFound, "format-not-found"),
    ReportSpec: (FormatNotFound, "format-not-found"),
}
"""Kind -> class and code of the error for a name that is not declared. UsageError for
all other kinds.
"""
_ERRORS: dict[Status, tuple[type[DelegraphError], str]] = {
    Status.INCOMPATIBLE: (PluginIncompatible, "plugin-incompatible"),
    Status.UNAVAILABLE: (PluginUnavailable, "plugin-unavailable"),
    Status.CONFLICT: (PluginConflict, "plugin-conflict"),
    Status.DISABLED: (BackendNotFound, "backend-not-found"),
    Status.BROKEN: (PluginBroken, "plugin-broken"),
}
"""Status of a plugin -> class and code of the error for an attempt to use it."""


def _unusable(record: PluginRecord, fault: Fault, what: str = "") -> DelegraphError:
    """The error for an attempt to use a plugin that has a fault.

    ``what``: the beginning of the message; "" for one that names the plugin.
    """
    kind, code = _ERRORS[fault.status]
    subject = what or f"plugin {record.name!r} of {record.owner}"
    error = kind(code, f"{subject} is {fault.status}: {fault.error}", hint=fault.hint)
    error.__cause__ = record.exception
    return error
