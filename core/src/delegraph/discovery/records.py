"""The records of discovery: a plugin with its status and faults, and its backends."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from ..plugin import BackendSpec, Declaration, RemoteBackendSpec

if TYPE_CHECKING:
    from ..backend import BackendDetails

ALLOW = "DELEGRAPH_PLUGINS"
"""Environment variable with the only plugins to load."""
DENY = "DELEGRAPH_DISABLE_PLUGINS"
"""Environment variable with plugins that are not loaded."""


class Status(StrEnum):
    """The result of loading a plugin, or the state of one of its backends."""

    OK = "ok"
    DISABLED = "disabled"  # by ALLOW or DENY
    BROKEN = "broken"  # its code raised an error, or its declarations are wrong
    INCOMPATIBLE = "incompatible"  # written for another plugin API
    CONFLICT = "conflict"  # another backend has the same name or id
    UNAVAILABLE = "unavailable"  # a module that it needs is not installed


@dataclass(frozen=True)
class Fault:
    """An ``error`` of a backend or a whole plugin, and a ``hint`` how to correct it.

    ``status``: the status of a plugin with this fault; ``ok`` for a warning, which does
    not prevent the use of the plugin.
    """

    status: Status
    error: str
    hint: str = ""


@dataclass(frozen=True)
class PluginRecord:
    """One plugin, which is one entry point of a distribution, and the result of loading
    it.

    ``name``: name of the entry point. ``distribution``: normalized name of the
    distribution. ``location``: file of the light module, to which the entry point
    refers; the distribution's folder if the file is not known. ``fault``: why the whole plugin cannot be used; None if it
    can. ``exception``: the error that the fault describes. ``faults``: short name of a
    backend that cannot be used -> why. ``warnings``: problems that do not prevent the
    use of the plugin.
    """

    name: str
    distribution: str
    version: str
    location: str
    fault: Fault | None = None
    exception: BaseException | None = field(default=None, repr=False, compare=False)
    declarations: tuple[Declaration, ...] = ()
    faults: Mapping[str, Fault] = field(default_factory=dict)
    warnings: tuple[Fault, ...] = ()
    objects: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """Target -> object, for objects that were registered in this process and need no
    import.
    """

    @property
    def status(self) -> Status:
        return Status.OK if self.fault is None else self.fault.status

    @property
    def error(self) -> str:
        """Return the error of the plugin's fault; "" without a fault."""
        return "" if self.fault is None else self.fault.error

    @property
    def hint(self) -> str:
        """Return the hint of the plugin's fault; "" without a fault."""
        return "" if self.fault is None else self.fault.hint

    @property
    def full_name(self) -> str:
        """Return ``distribution/name``, which is also the plugin's name for pluggy."""
        return f"{self.distribution}/{self.name}"

    @property
    def owner(self) -> str:
        """Return distribution and version, for messages."""
        return f"{self.distribution} {self.version}".strip()

    @property
    def address(self) -> str:
        """Return distribution, version and file, for messages about several plugins."""
        return f"{self.owner} ({self.location})"

    @property
    def modules(self) -> list[str]:
        """Return the module of each target, which is ``"module:Class"``."""
        return [d.target.partition(":")[0] for d in self.declarations]

    @property
    def backends(self) -> list[BackendSpec]:
        """Return the backends that the plugin declares."""
        return [d for d in self.declarations if isinstance(d, BackendSpec)]

    def failed(
        self, fault: Fault, exception: BaseException | None = None
    ) -> PluginRecord:
        """Return a copy of the record with ``fault`` as the fault of the whole plugin."""
        return replace(self, fault=fault, exception=exception)


D = TypeVar("D", bound=Declaration)
Declared = tuple[D, PluginRecord]
"""A declaration, and the record of its plugin."""


@dataclass(frozen=True)
class BackendEntry:
    """A declared backend and the record of its plugin."""

    spec: BackendSpec
    record: PluginRecord

    @property
    def fault(self) -> Fault | None:
        """Return why the backend cannot be used; None if it can. A conflict with another
        backend of the same name is not considered here.
        """
        return self.record.faults.get(self.spec.name)

    @property
    def full_name(self) -> str:
        """Return ``distribution/name``, which no backend of another distribution has."""
        return f"{self.record.distribution}/{self.spec.name}"

    @property
    def names(self) -> tuple[str, str]:
        """Return short name and backend id."""
        return self.spec.name, self.spec.backend_id

    @property
    def keys(self) -> set[str]:
        """Return all names by which the backend is found: short name and backend id,
        each with and without distribution.
        """
        return {*self.names, *(f"{self.record.distribution}/{n}" for n in self.names)}

    @property
    def producer(self) -> tuple[str, str]:
        """Return (distribution, version) of the plugin that has the backend. Another
        environment states these two for its backends (``origin``).
        """
        if isinstance(self.spec, RemoteBackendSpec) and self.spec.origin:
            return self.spec.origin
        return self.record.distribution, self.record.version

    @property
    def location(self) -> str:
        """Return the file of the backend's plugin, or the other environment that has
        the backend, for listings and errors.
        """
        if isinstance(self.spec, RemoteBackendSpec):
            return self.spec.location
        return self.record.location


@dataclass(frozen=True)
class InstalledBackend(BackendEntry):
    """A backend that can be used: its declaration, its plugin, and its imported class."""

    kind: type[BackendDetails]

    def owner(self, kind: type) -> PluginRecord:
        """Return the backend's plugin. ``kind`` is not used: errors of all classes of a
        backend name its plugin (``plugin_call.Owners``).
        """
        return self.record


@dataclass(frozen=True)
class BackendInfo(BackendEntry):
    """One row of ``delegraph.backends()``.

    ``conflict``: the fault if another backend has the same name or id; None otherwise.
    ``formats``: suffixes of files. ``partitioners``: names.
    """

    conflict: Fault | None
    formats: tuple[str, ...]
    partitioners: tuple[str, ...]
    has_runtime: bool
    has_quantizer: bool

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def backend_id(self) -> str:
        return self.spec.backend_id

    @property
    def distribution(self) -> str:
        return self.record.distribution

    @property
    def version(self) -> str:
        return self.record.version

    @property
    def status(self) -> Status:
        return self._reason.status

    @property
    def error(self) -> str:
        """Return why the backend cannot be used; "" if it can."""
        return self._reason.error

    @property
    def hint(self) -> str:
        """Return how to correct the error; "" without an error."""
        return self._reason.hint

    @property
    def usable(self) -> bool:
        return self.status is Status.OK

    @property
    def _reason(self) -> Fault:
        return self.conflict or self.fault or Fault(Status.OK, "")


def canonical(distribution: str) -> str:
    """Return the normalized name of a distribution: ``delegraph-tosa`` for
    ``Delegraph_TOSA``.
    """
    return re.sub(r"[-_.]+", "-", distribution).lower()


def key_of(name: str) -> str:
    """Return ``name`` in the form in which names are compared: in
    ``distribution/name``, the distribution is normalized.
    """
    distribution, slash, rest = name.partition("/")
    return f"{canonical(distribution)}/{rest}" if slash else name
