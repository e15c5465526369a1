"""The registry of installed and registered plugins: finds their backends, commands and
formats. Imports no torch.
"""

from __future__ import annotations

import inspect
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from importlib_metadata import EntryPoint

from ..errors import (
    DelegraphError,
    DelegraphWarning,
    NoRuntime,
    OptionError,
    PluginBroken,
    PluginConflict,
    PluginUnavailable,
)
from ..plugin import (
    IN_PROCESS,
    BackendSpec,
    CompilerSpec,
    Declaration,
    FormatSpec,
    OptionSpec,
    QuantizerSpec,
    RuntimeSpec,
)
from .attribution import AtWork
from .defaults import DefaultBackends, choose_default, none_usable
from .entry_points import Discovery, Key, discover, loadable
from .index import BackendInfo, D, Declared, Index
from .loading import missing
from .options import complete_options
from .own import provider_of
from .record import DENY, Fault, PluginRecord, Status
from .resolve import in_process, resolve
from .validate import read_declarations

if TYPE_CHECKING:
    from ..backend import BackendDetails
    from ..formats import ProgramFormat
    from ..partitioner import Partitioner
    from ..runtime import BackendRuntime

_reading = threading.local()
_warned: set[tuple[str, str]] = set()


class InstalledBackend(NamedTuple):
    """A backend that can be used: its class, its declaration, and the plugin's record.

    ``record`` has the distribution that declares the backend, with its version.
    """

    kind: type[BackendDetails]
    spec: BackendSpec
    record: PluginRecord

    @property
    def full_name(self) -> str:
        """``distribution/name``, which is never ambiguous between distributions."""
        return f"{self.record.distribution}/{self.spec.name}"

    @property
    def producer(self) -> tuple[str, str]:
        """(distribution, version) that have the backend."""
        return self.spec.origin or (self.record.distribution, self.record.version)

    def owner(self, kind: type) -> PluginRecord:
        """The record, for errors of the backend's class (``attribution.Owners``)."""
        return self.record


class Registry:
    """Finds what plugins declare, by name. A backend's name is its short name, its id,
    or ``distribution/name``.

    ``discover=False``: start without plugins. ``entry_points``: read these plugins and
    not the installed ones. Plugins are read at the first use. All methods may be called
    from any thread.
    """

    def __init__(
        self, discover: bool = True, entry_points: Iterable[EntryPoint] | None = None
    ) -> None:
        """Read no plugin yet; the class says what the parameters are."""
        self._entry_points = list(entry_points) if entry_points is not None else None
        self._discovers = discover or entry_points is not None
        # None until plugins are read
        self._found: Discovery | None = None if self._discovers else Discovery()
        self._registered: list[PluginRecord] = []
        # the index of all plugins; None if it is to be built (again)
        self._current: Index | None = None
        # (kind, distribution, target) -> the imported object
        self._resolved: dict[tuple[str, str, str], Any] = {}
        self._lock = threading.Lock()

    # --- what there is

    def backends(self) -> list[BackendInfo]:
        """All declared backends, usable or not, sorted by name."""
        index = self._index()
        return [index.info(entry) for entry in index.entries]

    def plugins(self) -> list[PluginRecord]:
        """One record for each installed or registered plugin, usable or not."""
        return list(self._index().records)

    def notes(self) -> list[str]:
        """Remarks that concern no single plugin, such as unknown names in the
        environment variables.
        """
        return list(self._index().notes)

    def spec(self, name: str) -> BackendSpec:
        """The declaration of the backend ``name``. Raises BackendNotFound or
        PluginConflict.
        """
        return self._index().find(name).spec

    def full_name(self, name: str) -> str:
        """``distribution/name`` of the backend ``name``. Raises what ``spec`` does."""
        return self._index().find(name).full_name

    def producer(self, name: str) -> tuple[str, str]:
        """(distribution, version) that have the backend ``name``. Raises what ``spec``
        does.
        """
        entry = self._index().find(name)
        return entry.spec.origin or (entry.record.distribution, entry.record.version)

    def owner(self, kind: type) -> PluginRecord | None:
        """The plugin that declares the class ``kind``, else the only one with a target
        in its top-level package.

        None if there is neither.
        """
        return self._index().owner(kind)

    def preferring(self, names: Iterable[str]) -> Registry:
        """A view in which the backends that ``names`` has as ``distribution/name`` win
        over others of the same name.

        Programs store bare backend ids, and two distributions may have backends of the
        same id: in the result, that id means the backend in ``names``. Bare names in
        ``names`` have no effect. Raises PluginConflict if two backends in ``names``
        have the same name or id.
        """
        full_names = tuple(n for n in names if "/" in n)
        return _View(self, full_names) if full_names else self

    def loadable(self) -> list[tuple[EntryPoint, PluginRecord]]:
        """The installed plugins that this registry loads when it is first used.
        Imports nothing.
        """
        return loadable(self._entry_points) if self._discovers else []

    def read(self, refused: Mapping[Key, Fault]) -> None:
        """Read the installed plugins, unless that is done already. Plugins in
        ``refused`` are not loaded, and their records get these faults.
        """
        if self._found is None:
            self._read(refused)

    def usable_backends(self) -> list[BackendInfo]:
        """The backends that can be used, by name. Raises BackendNotFound, with the
        reasons, if there are none.
        """
        declared = self.backends()
        usable = [b for b in declared if b.usable]
        if not usable:
            raise none_usable(self.plugins(), declared)
        return usable

    def default_backends(
        self,
        optioned: Iterable[str] = (),
        suits: Callable[[BackendInfo], bool] = lambda info: True,
    ) -> DefaultBackends:
        """Choose the backends of a call that names none.

        If the user gave options for backends (``optioned``), these are chosen.
        Otherwise one backend is chosen: the only usable one for which ``suits`` is true
        or, of several, the one that is declared as default; see ``choose_default``.
        Raises BackendNotFound if no backend can be used, OptionError if several could
        be chosen.
        """
        if chosen := list(optioned):
            return DefaultBackends(
                chosen, f"no backend was named; the options are for {', '.join(chosen)}"
            )
        return choose_default(self.usable_backends(), suits)

    # --- what it resolves to

    def get_backend(self, name: str) -> type[BackendDetails]:
        """The class of the backend ``name``, imported. Another backend is never chosen
        in its place.

        Raises BackendNotFound, PluginConflict, PluginIncompatible, PluginUnavailable or
        PluginBroken.
        """
        entry = self._index().usable(name)
        backend: type[BackendDetails] = self.resolve(entry.spec, entry.record)
        return backend

    def installed(self, name: str) -> InstalledBackend:
        """The backend ``name``: its imported class with its declaration. Raises what
        ``get_backend`` does.
        """
        entry = self._index().usable(name)
        return InstalledBackend(self.get_backend(name), entry.spec, entry.record)

    def default_compiler(self, what: str) -> Any:
        """A new compiler of the kind that a plugin declares as the default
        (``CompilerSpec``), without options.

        If no plugin of this registry does, one of ``default_registry()`` is taken.
        ``what``: the feature that needs it, for errors. Raises PluginUnavailable if
        none is installed, and PluginConflict if several are the default.
        """
        declared = [
            (spec, record)
            for spec, record in self.declared(CompilerSpec)
            if spec.default
        ]
        if not declared and self is not default_registry():
            return default_registry().default_compiler(what)
        if not declared:
            provider = provider_of(CompilerSpec, "workers")
            assert provider is not None, "our_distributions.json has it"
            text = f"{what} comes with {provider.distribution}, which is not installed"
            raise PluginUnavailable("plugin-unavailable", text, hint=provider.hint)
        if len(declared) > 1:
            owners = " and ".join(record.owner for _, record in declared)
            raise PluginConflict(
                "plugin-conflict",
                f"{owners} both declare a default compiler",
                hint=f"set {DENY} to one of them",
            )
        spec, record = declared[0]
        return self.get(CompilerSpec, f"{record.distribution}/{spec.name}")()

    def get_partitioner(self, name: str, /, **options: Any) -> Partitioner:
        """Construct the default partitioner of the backend ``name``, or the partitioner
        of that name, with ``options``.

        Options that are not passed get their declared defaults. A partitioner that was
        registered as an instance is returned as it is. Raises OptionError for wrong
        options, and what ``get_backend`` raises.
        """
        entry, spec, record = self._index().partitioner(name)
        values = complete_options(
            entry.spec.options, options, f"backend {entry.spec.name!r}"
        )
        target = self.resolve(spec, record)
        if not isinstance(target, type):  # an instance was registered
            instance: Partitioner = target
            return instance
        try:
            inspect.signature(target).bind(**values)
        except TypeError as e:
            text = (
                f"partitioner {target.__name__} of {record.owner} does not take the"
                f" options that are declared: {e}"
            )
            raise PluginBroken("plugin-broken", text) from e
        with AtWork(target, "constructor", registry=self):
            partitioner: Partitioner = target(**values)
        return partitioner

    def native_code(self, name: str) -> str:
        """Return the kind of native code that blobs of the backend ``name`` are, as its
        RuntimeSpec declares it.

        "" if they are none, or if no backend of this name is installed: then nothing
        here runs them.
        """
        try:
            declared = self._index().only(RuntimeSpec, self._index().find(name))
        except DelegraphError:
            return ""
        return "" if declared is None else declared[0].native

    def runtime_for(self, name: str) -> type[BackendRuntime]:
        """The class that runs blobs of the backend ``name`` on this host.

        Raises NoRuntime if none is declared or a module that it needs is missing, and
        what ``get_backend`` raises.
        """
        entry = self._index().usable(name)
        declared = self._index().only(RuntimeSpec, entry)
        who = f"backend {entry.spec.name!r} of {entry.record.owner}"
        if declared is None:
            hint = (
                "lowered.with_missing_runtime('eager') runs the original operators"
                " instead"
            )
            raise NoRuntime(
                "no-runtime", f"{who} declares no runtime for this host", hint=hint
            )
        absent = missing(declared[0].requires)
        if absent:
            text = (
                f"the runtime of {who} needs {', '.join(absent)}, which is not"
                " installed"
            )
            raise NoRuntime("no-runtime", text, hint=entry.spec.install_hint or None)
        runtime: type[BackendRuntime] = self.resolve(*declared)
        return runtime

    def get_quantizer(self, name: str) -> Any:
        """The quantizer class of the backend ``name``.

        Raises OptionError if none is declared, PluginUnavailable if a module that it
        needs is missing, and what ``get_backend`` raises.
        """
        entry = self._index().usable(name)
        declared = self._index().only(QuantizerSpec, entry)
        if declared is None:
            hint = "quantizer=... takes any of torchao's"
            raise OptionError(
                "option-invalid",
                f"backend {entry.full_name} declares no quantizer",
                hint=hint,
            )
        spec = declared[0]
        if absent := missing(spec.requires):
            text = (
                f"the quantizer of backend {entry.full_name} needs {', '.join(absent)},"
                " which is not installed"
            )
            raise PluginUnavailable(
                "plugin-unavailable", text, hint=spec.install_hint or None
            )
        return self.resolve(*declared)

    def get_format(self, path: str | os.PathLike[str]) -> type[ProgramFormat]:
        """The class of the file format that the suffix of ``path`` chooses.

        Raises FormatNotFound, PluginConflict, PluginUnavailable or PluginBroken.
        """
        kind: type[ProgramFormat] = self.get(FormatSpec, os.fspath(path))
        return kind

    def get(self, kind: type[Declaration], asked: str) -> Any:
        """Import and return the target of a declaration that belongs to no backend: a
        command, format, report or model.

        ``kind``: the declaration's class. ``asked``: its name, ``distribution/name``,
        or a file's name, of which the suffix counts. Raises PluginConflict,
        PluginUnavailable or PluginBroken; if no plugin declares it, FormatNotFound or
        UsageError, whose hint names what to install.
        """
        return self.resolve(*self._index().get(kind, asked))

    def find(self, kind: type[D], asked: str) -> D:
        """The declaration whose target ``get`` would import. Raises the same errors
        except PluginBroken.
        """
        return self._index().get(kind, asked)[0]

    def declared(self, kind: type[D]) -> list[Declared[D]]:
        """All declarations of a kind by plugins, each with the plugin's record, sorted
        by name.
        """
        return self._index().all(kind)

    def suffix_for(self, runtime: str) -> str:
        """The suffix of the files that the runtime ``runtime`` executes. Raises
        NoRuntime if no plugin declares it.
        """
        return self._index().suffix_for(runtime)

    def resolve(self, spec: Declaration, record: PluginRecord) -> Any:
        """The target of ``spec``, which the plugin ``record`` declares: imported at the
        first call, checked and cached.

        Raises PluginBroken if it cannot be imported or is of the wrong kind.
        """
        # an object that was registered in this process
        if spec.target in record.objects:
            return record.objects[spec.target]
        key = (type(spec).__name__, record.distribution, spec.target)
        if key not in self._resolved:
            self._resolved[key] = resolve(spec, record)
        return self._resolved[key]

    def attributing(self, plugin: Any, doing: str) -> AtWork:
        """A block that adds the plugin's name to errors: ``with
        registry.attributing(quantizer, "annotation"):``.
        """
        return AtWork(plugin, doing, registry=self)

    # --- what is registered in this process

    def register(
        self,
        spec_or_class: Any,
        *,
        partitioner: Any = None,
        runtime: Any = None,
        name: str | None = None,
        options: Sequence[OptionSpec] = (),
    ) -> Registration:
        """Add a backend to this registry: its class, its BackendSpec, or an object with
        hook implementations.

        ``partitioner`` and ``runtime``: classes, or ``"module:Name"``. For a backend
        without options, ``partitioner`` may also be an instance. ``name``: by default
        the class's name in lower case. The result removes the backend again, at the end
        of ``with register(...):`` or by ``.unregister()``. Raises PluginConflict if the
        name is taken, PluginBroken for an object of the wrong kind.
        """
        if isinstance(spec_or_class, (type, BackendSpec)):
            return self._add(
                in_process(spec_or_class, partitioner, runtime, name, tuple(options))
            )
        plugin = PluginRecord(name or "plugin", IN_PROCESS, "", repr(spec_or_class))
        record = read_declarations(spec_or_class, plugin)
        if record.manager is not None and not record.manager.get_hookcallers(
            spec_or_class
        ):
            hint = (
                "give the backend's class, its BackendSpec, or an object with hooks of"
                " delegraph.plugin"
            )
            raise PluginBroken(
                "plugin-broken", f"{spec_or_class!r} declares nothing", hint=hint
            )
        return self._add(record)

    def _add(self, record: PluginRecord) -> Registration:
        """Add the record of a registered plugin. Raises PluginConflict if the name of a
        backend is taken.
        """
        # reads the plugins, which must not be done while the lock is held
        self._index()
        with self._lock:
            for spec in record.backends:
                if taken := self._current_index().taken(spec):
                    text = (
                        f"backend {spec.name!r} ({spec.backend_id}) exists already in"
                        f" {taken.record.owner}"
                    )
                    raise PluginConflict(
                        "plugin-conflict", text, hint="register it under another name"
                    )
            self._registered.append(record)
            self._current = None
        return Registration(self, record)

    def _remove(self, record: PluginRecord) -> None:
        """Remove the record of a registered plugin; does nothing if it was removed
        before.
        """
        with self._lock:
            self._registered = [r for r in self._registered if r is not record]
            self._current = None

    # --- reading the plugins

    def _index(self) -> Index:
        """The current index. The first call reads the plugins."""
        if self._found is None:
            self._read()
        with self._lock:
            return self._current_index()

    def _current_index(self) -> Index:
        """The index, rebuilt if a plugin was registered or removed since. The caller
        must hold the lock.
        """
        if self._current is None:
            discovery = self._found or Discovery()
            self._current = Index(
                discovery._replace(records=(*discovery.records, *self._registered))
            )
        return self._current

    def _read(self, refused: Mapping[Key, Fault] | None = None) -> None:
        """Read the installed plugins, and warn of broken ones; those in ``refused`` are
        not loaded and get that fault.

        The caller must not hold the lock: importing a plugin may wait for a thread that
        waits for the lock. Raises PluginBroken if a plugin that is being imported by
        this thread uses the registry.
        """
        # ``_reading`` has a value of its own in each thread
        if getattr(_reading, "busy", False):
            raise PluginBroken(
                "plugin-broken",
                "a light module used the registry while plugins are being read",
            )
        _reading.busy = True
        try:
            discovery = discover(self._entry_points, refused=refused)
        finally:
            _reading.busy = False
        with self._lock:
            # another thread may have read the plugins meanwhile: its result stays
            is_first = self._found is None
            self._found = self._found or discovery
            self._current = None
        if is_first:
            _warn(discovery.records)


class _View(Registry):
    """The view that ``Registry.preferring`` returns: the registry ``base``, but
    ``preferred`` decides bare names.
    """

    def __init__(self, base: Registry, preferred: tuple[str, ...]) -> None:
        """``preferred``: full names of backends. Raises PluginConflict if two of these
        have the same name or id.
        """
        super().__init__(discover=False)
        self._base = base
        self._preferred = preferred
        self._resolved = base._resolved  # both share what is imported already
        self._index()  # raises PluginConflict now, and not at the first use

    def _index(self) -> Index:
        return self._base._index().preferring(self._preferred)

    def _add(self, record: PluginRecord) -> Registration:
        return self._base._add(record)


class Registration:
    """The result of ``register``. Removes the backend at the end of a ``with`` block or
    by ``unregister()``.
    """

    def __init__(self, registry: Registry, record: PluginRecord) -> None:
        self._registry = registry
        self._record = record

    def unregister(self) -> None:
        """Remove the backend again; a second call does nothing."""
        self._registry._remove(self._record)

    def __enter__(self) -> Registration:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: object,
        traceback: TracebackType | None,
    ) -> None:
        self.unregister()


def _warn(records: Iterable[PluginRecord]) -> None:
    """Warn about installed plugins that are broken or incompatible, about each only
    once in this process.
    """
    bad = [r for r in records if r.status in (Status.BROKEN, Status.INCOMPATIBLE)]
    new = [r for r in bad if (r.distribution, r.name) not in _warned]
    _warned.update((r.distribution, r.name) for r in new)
    if new:
        rows = "; ".join(f"{r.name} of {r.owner} is {r.status}: {r.error}" for r in new)
        # the fifth frame from here is the line that called the registry
        warnings.warn(
            f"{rows}. Run `delegraph doctor` for details.",
            DelegraphWarning,
            stacklevel=5,
        )


# --- the registry of this process -----------------------------------------------------

_default = Registry()


def default_registry() -> Registry:
    """The registry of this process, which ``delegraph.lower`` and others use by
    default.
    """
    return _default


def backends() -> list[BackendInfo]:
    """All backends that are installed or registered, usable or not, sorted by name."""
    return _default.backends()


def get_backend(name: str) -> type[BackendDetails]:
    """The class of the backend ``name`` (short name, id or ``distribution/name``); see
    ``Registry.get_backend``.
    """
    return _default.get_backend(name)


def get_partitioner(name: str, /, **options: Any) -> Partitioner:
    """Construct the default partitioner of the backend ``name`` with ``options``; see
    ``Registry.get_partitioner``.
    """
    return _default.get_partitioner(name, **options)


def get_runtime(name: str) -> type[BackendRuntime]:
    """The class that runs blobs of the backend ``name`` on this host; see
    ``Registry.runtime_for``.
    """
    return _default.runtime_for(name)


def register(
    spec_or_class: Any,
    *,
    partitioner: Any = None,
    runtime: Any = None,
    name: str | None = None,
    options: Sequence[OptionSpec] = (),
) -> Registration:
    """Add a backend to the registry of this process; see ``Registry.register``."""
    return _default.register(
        spec_or_class,
        partitioner=partitioner,
        runtime=runtime,
        name=name,
        options=options,
    )
