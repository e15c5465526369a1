"""The backends of this process: those that are installed, and those that were registered here. Works without torch."""

from __future__ import annotations

import inspect
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from importlib_metadata import EntryPoint

from ..errors import DelegraphWarning, NoRuntime, OptionError, PluginBroken, PluginConflict, PluginUnavailable
from ..plugin import EVENTS, IN_PROCESS, BackendSpec, Declaration, FormatSpec, OptionSpec, QuantizerSpec, RuntimeSpec
from .attribution import AtWork, working
from .defaults import DefaultBackends, choose_default, none_usable
from .entry_points import Discovery, Key, discover, loadable
from .index import BackendInfo, D, Declared, Index
from .loading import missing
from .options import complete_options
from .record import Fault, PluginRecord, Status, describe, without
from .resolve import in_process, resolve
from .validate import read_declarations

if TYPE_CHECKING:
    from ..backend import BackendDetails
    from ..formats import ProgramFormat
    from ..partitioner import Partitioner
    from ..runtime import BackendRuntime
    from .doctor.report import DoctorReport

_reading = threading.local()
_warned: set[tuple[str, str]] = set()


class Registry:
    """Backends by name: short name, backend id, or ``distribution/name``.

    ``discover=False`` starts empty and reads nothing. ``entry_points`` are read in place of the installed ones. Plugins
    are read when the registry is first used. All methods may be called from any thread.
    """

    def __init__(self, discover: bool = True, entry_points: Iterable[EntryPoint] | None = None) -> None:
        self._entry_points = list(entry_points) if entry_points is not None else None
        self._discovers = discover or entry_points is not None
        self._found: Discovery | None = None if self._discovers else Discovery()
        self._registered: list[PluginRecord] = []
        self._current: Index | None = None
        self._resolved: dict[tuple[str, str, str], Any] = {}
        self._lock = threading.Lock()
        self._refused: dict[Key, Fault] = {}

    # --- what there is

    def backends(self) -> list[BackendInfo]:
        """All declared backends, usable or not, sorted by name."""
        index = self._index()
        return [index.info(entry) for entry in index.entries]

    def plugins(self) -> list[PluginRecord]:
        """One record for each plugin that is installed or registered."""
        return list(self._index().records)

    def notes(self) -> list[str]:
        """Remarks that belong to no plugin, such as unknown names in the environment variables."""
        return list(self._index().notes)

    def spec(self, name: str) -> BackendSpec:
        """What the backend declares. Raises BackendNotFound or PluginConflict."""
        return self._index().find(name).spec

    def full_name(self, name: str) -> str:
        """``distribution/name`` of the backend."""
        return self._index().find(name).full_name

    def producer(self, name: str) -> tuple[str, str]:
        """The distribution that provides the backend, and its version."""
        record = self._index().find(name).record
        return record.distribution, record.version

    def owner(self, kind: type) -> PluginRecord | None:
        """The plugin that declares the class; else the only one that declares something of the class's package."""
        return self._index().owner(kind)

    def preferring(self, names: Iterable[str]) -> Registry:
        """A view in which bare names and ids mean the backends that ``names`` gives as ``distribution/name``.

        Programs store bare backend ids, and two distributions may have the same. Raises PluginConflict if two of
        ``names`` do.
        """
        full = tuple(n for n in names if "/" in n)
        return _View(self, full) if full else self

    def doctor(self, seconds: float | None = None) -> DoctorReport:
        """Probe every plugin and all of its targets, each plugin in a process of its own for at most ``seconds``.

        A plugin that ends such a process is not loaded into this one either, if this registry has not been used before.
        """
        from .doctor import probe, report

        found = loadable(self._entry_points) if self._discovers else []
        probed = probe.probe(found, seconds or probe.SECONDS)
        if self._found is None:
            self._read({key: result.fatal for key, result in probed.items() if result.fatal is not None})
        return report.report(self.plugins(), self.notes(), probed)

    def refuse(self, ended: Mapping[Key, str]) -> None:
        """Do not load light modules that ended or held up another process; call this before the first use.

        ``ended`` says how each of them did.
        """
        for (distribution, name), how in ended.items():
            wayout = without(PluginRecord(name, distribution, "", ""))
            hint = f"`delegraph doctor` says at which line; upgrade {distribution} or tell its authors; {wayout}"
            self._refused[distribution, name] = Fault(Status.BROKEN, f"importing its light module {how}", hint)

    def usable_backends(self) -> list[BackendInfo]:
        """The backends that can be used. Raises BackendNotFound, with what is wrong, if there are none."""
        there = self.backends()
        usable = [b for b in there if b.usable]
        if not usable:
            raise none_usable(self.plugins(), there)
        return usable

    def default_backends(
        self, optioned: Iterable[str] = (), suits: Callable[[BackendInfo], bool] = lambda info: True
    ) -> DefaultBackends:
        """The backends of a call that names none.

        They are those that options (``optioned``) are given for; else the only usable backend; else the one that its
        plugin declares as ``default``, among those for which ``suits`` holds (whether they can do what else is wanted).
        Raises BackendNotFound if no backend can be used, OptionError if it is not clear which one is meant.
        """
        if chosen := list(optioned):
            return DefaultBackends(chosen, f"no backend was named; the options are for {', '.join(chosen)}")
        return choose_default(self.usable_backends(), suits)

    # --- what it resolves to

    def get_backend(self, name: str) -> type[BackendDetails]:
        """The backend's class.

        Raises BackendNotFound, PluginConflict, PluginIncompatible, PluginUnavailable or PluginBroken: a call that names
        a backend gets that one or an error.
        """
        entry = self._index().usable(name)
        backend: type[BackendDetails] = self.resolve(entry.spec, entry.record)
        return backend

    def get_partitioner(self, name: str, /, **options: Any) -> Partitioner:
        """The backend's default partitioner (or the partitioner called ``name``), constructed with its options.

        Raises OptionError, or what ``get_backend`` raises.
        """
        entry, spec, record = self._index().partitioner(name)
        values = complete_options(entry.spec.options, options, f"backend {entry.spec.name!r}")
        found = self.resolve(spec, record)
        if not isinstance(found, type):  # registered ready made
            ready: Partitioner = found
            return ready
        try:
            inspect.signature(found).bind(**values)
        except TypeError as e:
            text = f"partitioner {found.__name__} of {record.owner} does not take the options that are declared: {e}"
            raise PluginBroken("plugin-broken", text) from e
        with AtWork(found, "constructor", registry=self):
            made: Partitioner = found(**values)
        return made

    def runtime_for(self, name: str) -> type[BackendRuntime]:
        """The class that runs the backend's blobs on this host. Raises NoRuntime if there is none."""
        entry = self._index().usable(name)
        found = self._index().only(RuntimeSpec, entry)
        who = f"backend {entry.spec.name!r} of {entry.record.owner}"
        if found is None:
            hint = "on_missing_runtime='eager' runs the original operators instead, and the report says so"
            raise NoRuntime("no-runtime", f"{who} declares no runtime for this host", hint=hint)
        absent = missing(found[0].requires)
        if absent:
            text = f"the runtime of {who} needs {', '.join(absent)}, which is not installed"
            raise NoRuntime("no-runtime", text, hint=entry.spec.install_hint or None)
        runtime: type[BackendRuntime] = self.resolve(*found)
        return runtime

    def get_quantizer(self, name: str) -> Any:
        """The backend's quantizer class. OptionError if it declares none, PluginUnavailable without its modules."""
        entry = self._index().usable(name)
        found = self._index().only(QuantizerSpec, entry)
        if found is None:
            hint = "quantizer=... takes any of torchao's"
            raise OptionError("option-invalid", f"backend {entry.full_name} declares no quantizer", hint=hint)
        spec = found[0]
        if absent := missing(spec.requires):
            text = f"the quantizer of backend {entry.full_name} needs {', '.join(absent)}, which is not installed"
            raise PluginUnavailable("plugin-unavailable", text, hint=spec.install_hint or None)
        return self.resolve(*found)

    def get_format(self, path: str | os.PathLike[str]) -> type[ProgramFormat]:
        """The format that the suffix of ``path`` chooses.

        Raises FormatNotFound, PluginConflict, PluginUnavailable or PluginBroken.
        """
        kind: type[ProgramFormat] = self.get(FormatSpec, os.fspath(path))
        return kind

    def get(self, kind: type[Declaration], asked: str) -> Any:
        """The object that is declared as ``asked``: a command's class by its name, a format's by the name of a file.

        For everything that belongs to no backend: formats, reports, commands, models. Raises PluginConflict,
        PluginUnavailable, PluginBroken, and if nobody declares it FormatNotFound or UsageError, which say what to
        install.
        """
        return self.resolve(*self._index().get(kind, asked))

    def find(self, kind: type[D], asked: str) -> D:
        """The declaration that ``get`` would import. Raises the same errors, without PluginBroken."""
        return self._index().get(kind, asked)[0]

    def declared(self, kind: type[D]) -> list[Declared[D]]:
        """Every declaration of a kind by plugins, with the plugin's record, by name."""
        return self._index().all(kind)

    def suffix_for(self, runtime: str) -> str:
        """The suffix of the files that a runtime of a format executes. Raises NoRuntime."""
        return self._index().suffix_for(runtime)

    def resolve(self, spec: Declaration, record: PluginRecord) -> Any:
        """The object that a declaration names, imported once and checked. Raises PluginBroken with the cause."""
        if spec.target in record.objects:
            return record.objects[spec.target]
        key = (type(spec).__name__, record.distribution, spec.target)
        if key not in self._resolved:
            self._resolved[key] = resolve(spec, record)
        return self._resolved[key]

    def attributing(self, plugin: Any, doing: str) -> AtWork:
        """``with registry.attributing(quantizer, "annotation"):`` errors that are raised inside name the plugin."""
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
        """Add a backend to this process: its class, its BackendSpec, or an object with hook implementations.

        ``partitioner`` and ``runtime`` are classes (or ``"module:Name"``); a Partitioner instance will do for a backend
        without options. ``name`` is the class's name in lower case unless given. The result unregisters, as
        ``with register(...):`` or ``.unregister()``. Raises PluginConflict if the name is taken.
        """
        if isinstance(spec_or_class, (type, BackendSpec)):
            return self._add(in_process(spec_or_class, partitioner, runtime, name, tuple(options)))
        return self._add(
            read_declarations(spec_or_class, PluginRecord(name or "plugin", IN_PROCESS, "", repr(spec_or_class)))
        )

    def _add(self, record: PluginRecord) -> Registration:
        """Add a plugin that is registered in this process; PluginConflict if a name is taken."""
        self._index()
        with self._lock:
            for spec in record.backends:
                if taken := self._current_index().taken(spec):
                    text = f"backend {spec.name!r} ({spec.backend_id}) exists already in {taken.record.owner}"
                    raise PluginConflict("plugin-conflict", text, hint="register it under another name")
            self._registered.append(record)
            self._current = None
        return Registration(self, record)

    def _remove(self, record: PluginRecord) -> None:
        """Take a registered plugin out again."""
        with self._lock:
            self._registered = [r for r in self._registered if r is not record]
            self._current = None

    # --- events

    def notify(self, event: str, payload: Any) -> list[str]:
        """Tell all plugins about an event (``"after_partition"`` or ``"after_lower"``).

        Returns their errors as text.
        """
        hook = event if event in EVENTS else f"delegraph_{event}"
        if hook not in EVENTS:
            raise ValueError(f"no event {event!r}; there are {', '.join(EVENTS)}")
        argument = "report" if hook == "delegraph_after_partition" else "result"
        failed = []
        for record in self._index().records:
            try:
                if record.manager is not None:
                    with working(f"{hook} of {record.name} ({record.owner})"):
                        getattr(record.manager.hook, hook)(**{argument: payload})
            except KeyboardInterrupt:
                raise
            except BaseException as e:  # the user gets the result even if a listener fails
                failed.append(f"{record.name} of {record.owner}: {hook} failed: {describe(e, record.modules)}")
        return failed

    # --- reading the plugins

    def _index(self) -> Index:
        """The index of everything declared; reads the plugins if that has not been done."""
        if self._found is None:
            self._read()
        with self._lock:
            return self._current_index()

    def _current_index(self) -> Index:
        """The index, made anew if something was registered or removed. The caller holds the lock."""
        if self._current is None:
            found = self._found or Discovery()
            self._current = Index(found._replace(records=(*found.records, *self._registered)))
        return self._current

    def _read(self, refused: Mapping[Key, Fault] | None = None) -> None:
        """Read the plugins. This must not hold the lock.

        Importing a plugin may wait for a thread that waits for the lock.
        """
        if getattr(_reading, "busy", False):
            raise PluginBroken("plugin-broken", "a light module used the registry while plugins are being read")
        _reading.busy = True
        try:
            found = discover(self._entry_points, refused={**self._refused, **(refused or {})})
        finally:
            _reading.busy = False
        with self._lock:
            first, self._found = self._found is None, self._found or found
            self._current = None
        if first:
            _warn(found.records)


class _View(Registry):
    """A registry with preferences (``Registry.preferring``). Everything else is that of the registry ``base``."""

    def __init__(self, base: Registry, preferred: tuple[str, ...]) -> None:
        super().__init__(discover=False)
        self._base, self._preferred = base, preferred
        self._resolved = base._resolved
        self._index()

    def _index(self) -> Index:
        return self._base._index().preferring(self._preferred)

    def _add(self, record: PluginRecord) -> Registration:
        return self._base._add(record)


class Registration:
    """What ``register`` returns. It unregisters the backend once, as a ``with`` block or by ``unregister()``."""

    def __init__(self, registry: Registry, record: PluginRecord) -> None:
        self._registry, self._record = registry, record

    def unregister(self) -> None:
        """Remove the backend again; a second call does nothing."""
        self._registry._remove(self._record)

    def __enter__(self) -> Registration:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, traceback: TracebackType | None) -> None:
        self.unregister()


def _warn(records: Iterable[PluginRecord]) -> None:
    """Warn about installed plugins that cannot be used, once in a process.

    Asking for one by name raises an error anyway.
    """
    bad = [r for r in records if r.status in (Status.BROKEN, Status.INCOMPATIBLE)]
    new = [r for r in bad if (r.distribution, r.name) not in _warned]
    _warned.update((r.distribution, r.name) for r in new)
    if new:
        rows = "; ".join(f"{r.name} of {r.owner} is {r.status}: {r.error}" for r in new)
        warnings.warn(f"{rows}. Run `delegraph doctor` for details.", DelegraphWarning, stacklevel=5)


# --- the registry of this process -------------------------------------------------------------------------------------

_default = Registry()


def default_registry() -> Registry:
    """The registry that ``delegraph.lower`` uses unless it is given another."""
    return _default


def backends() -> list[BackendInfo]:
    """All backends that are installed or registered, usable or not, sorted by name."""
    return _default.backends()


def get_backend(name: str) -> type[BackendDetails]:
    """The class of the backend of that short name, id or ``distribution/name``; see ``Registry.get_backend``."""
    return _default.get_backend(name)


def get_partitioner(name: str, /, **options: Any) -> Partitioner:
    """The backend's default partitioner, made with its options; see ``Registry.get_partitioner``."""
    return _default.get_partitioner(name, **options)


def get_runtime(name: str) -> type[BackendRuntime]:
    """The class that runs the backend's blobs on this host; see ``Registry.runtime_for``."""
    return _default.runtime_for(name)


def register(
    spec_or_class: Any,
    *,
    partitioner: Any = None,
    runtime: Any = None,
    name: str | None = None,
    options: Sequence[OptionSpec] = (),
) -> Registration:
    """Add a backend to this process; see ``Registry.register``."""
    return _default.register(spec_or_class, partitioner=partitioner, runtime=runtime, name=name, options=options)
