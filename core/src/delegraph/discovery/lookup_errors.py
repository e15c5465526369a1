"""The errors for names that are not declared, declared several times, or cannot be
used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import (
    BackendNotFound,
    DelegraphError,
    FormatNotFound,
    PluginBroken,
    PluginConflict,
    PluginIncompatible,
    PluginUnavailable,
    UsageError,
)
from ..plugin import BackendSpec, BySuffix, Declaration, RemoteBackendSpec
from .first_party import Provider, names_of_backends, provider_of
from .nearest_name import nearest, suggestion
from .records import (
    DENY,
    BackendEntry,
    BackendInfo,
    Declared,
    Fault,
    PluginRecord,
    Status,
    canonical,
    key_of,
)

_ERRORS: dict[Status, tuple[type[DelegraphError], str]] = {
    Status.INCOMPATIBLE: (PluginIncompatible, "plugin-incompatible"),
    Status.UNAVAILABLE: (PluginUnavailable, "plugin-unavailable"),
    Status.CONFLICT: (PluginConflict, "plugin-conflict"),
    Status.DISABLED: (BackendNotFound, "backend-not-found"),
    Status.BROKEN: (PluginBroken, "plugin-broken"),
}
"""Status of a plugin -> class and code of the error for an attempt to use it."""


def unusable(record: PluginRecord, fault: Fault, subject: str = "") -> DelegraphError:
    """Return the error for an attempt to use a plugin that has a fault.

    ``subject`` begins the message, before "is broken: ..." or another status. If it is
    "", the message begins with the plugin's name.
    """
    kind, code = _ERRORS[fault.status]
    subject = subject or f"plugin {record.name!r} of {record.owner}"
    error = kind(code, f"{subject} is {fault.status}: {fault.error}", hint=fault.hint)
    error.__cause__ = record.exception
    return error


def needs_modules(
    title: str, absent: Sequence[str], install_hint: str
) -> PluginUnavailable:
    """Return the error for a declaration that needs the ``absent`` modules. ``title``
    begins the message, such as ``the quantizer of backend 'tosa'``.
    """
    names = ", ".join(absent)
    return PluginUnavailable(
        "plugin-unavailable",
        f"{title} needs {names}, which is not installed",
        hint=install_hint or f"install what provides {names}",
    )


# --- several of one name --------------------------------------------------------------


def conflict(title: str, declared: Sequence[Declared[Any]]) -> PluginConflict:
    """Return the error for several plugins that declare the same name. ``title``: kind
    and name, such as ``the command 'doctor'``.
    """
    names = [f"{record.distribution}/{spec.key}" for spec, record in declared]
    addresses = [record.address for _, record in declared]
    return _conflict(title, names, addresses)


def backend_conflict(name: str, entries: Sequence[BackendEntry]) -> PluginConflict:
    """Return the error for a name that several backends have.

    The hint offers the usable backends, or all of them if none is usable. The message
    has the faults of the other backends.
    """
    usable = [entry for entry in entries if entry.fault is None]
    error = _conflict(
        f"a backend {name!r}",
        [repr(entry.full_name) for entry in usable or entries],
        [f"{entry.record.owner} ({entry.location})" for entry in entries],
    )
    for entry in entries:
        if entry.fault is not None:
            error.message += f"; {entry.full_name} cannot be used: {entry.fault.error}"
        # the backend of another environment: its hint names the setting to change
        if isinstance(entry.spec, RemoteBackendSpec):
            error.hint = f"{error.hint}; or {entry.spec.install_hint}"
    return error


def _conflict(
    title: str, full_names: Sequence[str], addresses: Sequence[str]
) -> PluginConflict:
    """Return the error for several plugins that all offer ``title``, such as "the
    backend 'x'". ``addresses``: the distribution and the file of each. The hint is to use
    one of ``full_names``, or to disable a distribution.
    """
    names = " or ".join(sorted({*full_names}))
    return PluginConflict(
        "plugin-conflict",
        f"{len(addresses)} plugins offer {title}: {' and '.join(sorted(addresses))}",
        hint=f"ask for {names}, or set {DENY} to one of the distributions",
    )


# --- names that are not declared ------------------------------------------------------


def not_declared(
    kind: type[Declaration],
    asked: str,
    known: Iterable[str],
    records: Sequence[PluginRecord],
) -> DelegraphError:
    """Return the error for a command, format, report, model or compiler ``asked`` that
    no usable plugin declares.

    If a distribution of this project declares that name, the error has the
    distribution's fault or, if it is not installed, the command that installs it.
    Otherwise the error suggests the closest name in ``known``.
    """
    error: type[DelegraphError]
    if issubclass(kind, BySuffix):  # ``asked`` is the name of a file
        title = f"{kind.noun} for {asked!r}"
        error = FormatNotFound
        code = "format-not-found"
    else:
        title = f"{kind.noun} {asked!r}"
        error = UsageError
        code = "usage-invalid"
    # the possible suffixes of a file's name, or ``asked`` itself
    for key in kind.meant_by(asked):
        provider = provider_of(kind, key)
        if provider is not None:
            return _unusable_provider(provider, title, records) or error(
                code, provider.not_installed(f"the {title}"), hint=provider.hint
            )
    names = sorted({*known})
    return error(
        code,
        f"there is no {title}{suggestion(asked, names)} ({kind.noun}s:"
        f" {', '.join(names) or 'none'})",
        hint="no plugin has it; `delegraph backends` lists broken plugins",
    )


def backend_not_found(name: str, records: Sequence[PluginRecord]) -> DelegraphError:
    """Return the error for a backend ``name`` that is not declared.

    The first case that applies decides the content of the error:

    - ``name`` is the class of a backend that is declared with another id: the
      declaration is wrong.
    - ``name`` is a plugin that cannot be used, or its distribution: the plugin's fault.
    - A distribution of this project has the backend: the distribution's fault or, if it
      is not installed, the command that installs it.
    - Otherwise: the closest name.
    """
    entries = [BackendEntry(s, r) for r in records for s in r.backends]
    for entry in entries:
        target = entry.spec.target  # "module:Class"
        if target.rpartition(":")[2] == name:
            owner = entry.record.owner
            return PluginBroken(
                "plugin-broken",
                f"backend {target!r} of {owner} {entry.spec.wrong_id(name)}",
                hint=f"for the authors of {owner}",
            )
    normalized = {key_of(name), canonical(name)}
    for record in records:
        names = {record.name, record.full_name, record.distribution}
        if record.fault is not None and normalized & names:
            return unusable(record, record.fault)
    owner, _, short_name = key_of(name).rpartition("/")
    provider = provider_of(BackendSpec, short_name)
    if provider is not None and owner in ("", provider.distribution):
        error = _unusable_provider(provider, f"backend {name!r}", records)
        if error is not None:
            return error
        # not installed
        if all(r.distribution != provider.distribution for r in records):
            return BackendNotFound(
                "backend-not-found",
                provider.not_installed(f"the backend {name!r}"),
                hint=provider.hint,
            )
    return _unknown_backend(name, entries, records)


def _unknown_backend(
    name: str, entries: Sequence[BackendEntry], records: Sequence[PluginRecord]
) -> BackendNotFound:
    """Return the error for a backend that no plugin and no distribution has.

    The message suggests the closest name of a usable backend. If no name is close, the
    hint suggests a backend of this project that is not installed.
    """
    usable = [entry for entry in entries if entry.fault is None]
    words = [word for e in usable for word in (*e.names, e.full_name)]
    guess = suggestion(name, words)
    installed = sorted({entry.spec.name for entry in entries})
    broken = [record.name for record in records if record.status is Status.BROKEN]
    text = (
        f"Backend {name} was not found{guess} (installed:"
        f" {', '.join(installed) or 'none'}"
    )
    if broken:
        text += f"; {', '.join(broken)} could not be loaded, see `delegraph backends`"
    ours = names_of_backends()
    near = None if guess else nearest(name, ours)
    hint = None
    if near is not None and near not in installed:
        hint = f"if you mean {near!r}: {ours[near].hint}"
    return BackendNotFound("backend-not-found", f"{text})", hint=hint)


def _unusable_provider(
    provider: Provider, title: str, records: Sequence[PluginRecord]
) -> DelegraphError | None:
    """Return the error with the fault of ``provider``, the distribution that declares
    ``title``. None if the distribution is not installed, or its plugins have no fault.
    """
    for record in records:
        if record.fault is not None and record.distribution == provider.distribution:
            subject = f"the {title} comes with {record.owner}, which"
            return unusable(record, record.fault, subject)
    return None


def none_usable(
    records: Sequence[PluginRecord], backends: Sequence[BackendInfo]
) -> BackendNotFound:
    """Return the error for an installation without a usable backend. It has the faults
    of the installed plugins and backends.
    """
    reasons = [
        f"{r.name} ({r.owner}) is {r.status}: {r.error}" for r in records if r.fault
    ]
    # a plugin's fault is also that of its backends, so these are not listed again
    named = {record.distribution for record in records if record.fault}
    reasons += [
        f"{b.name} is {b.status}: {b.error}"
        for b in backends
        if b.distribution not in named
    ]
    ours = sorted({provider.install for provider in names_of_backends().values()})
    return BackendNotFound(
        "backend-not-found",
        "; ".join(["no backend is installed that can be used", *reasons]),
        hint=f"pip install one of {', '.join(ours)}; backends=[] (--host-only) leaves"
        " everything to the host",
    )
