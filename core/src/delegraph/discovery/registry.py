"""The registry of installed and registered plugins: finds their backends, commands and
formats. Imports no torch.
"""

from __future__ import annotations

import copy
import inspect
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any, NamedTuple

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
    PartitionerSpec,
    QuantizerSpec,
    RuntimeSpec,
)
from .first_party import CORE_DECLARATIONS, provider_of
from .import_by_name import missing
from .import_target import import_target
from .installed import discover, find_plugins
from .lookup_errors import (
    backend_conflict,
    backend_not_found,
    conflict,
    needs_modules,
    none_usable,
    not_declared,
    unusable,
)
from .options import complete_options
from .plugin_call import PluginCall
from .read_declarations import plugin_manager, read_declarations
from .records import (
    DENY,
    BackendEntry,
    BackendInfo,
    D,
    Declared,
    Fault,
    InstalledBackend,
    PluginRecord,
    Status,
    key_of,
)
from .registered_backend import registered_backend

if TYPE_CHECKING:
    from ..backend import BackendDetails
    from ..formats import ProgramFormat
    from ..partitioner import Partitioner
    from ..runtime import BackendRuntime

_DELEGRAPH = PluginRecord("delegraph", "delegraph", "", "itself")
"""The plugin of the core's own declarations."""
_reading = threading.local()
"""``busy``: whether this thread is reading the plugins."""
_warned: set[str] = set()
"""Full names of plugins for which a warning was shown."""


class DefaultBackends(NamedTuple):
    """The backends that were chosen for a call without backends. ``why``: a sentence
    about the choice, for the report; "" if it needs none.
    """

    names: list[str]
    why: str


class Registry:
    """Finds declarations of plugins by name. A backend's name is its short name, its id,
    or ``distribution/name``.

    ``discover=False``: start without plugins. Otherwise the installed plugins are read
    at the first use. All methods may be called from any thread.
    """

    def __init__(self, discover: bool = True) -> None:
        """Read no plugin yet."""
        self._discovers = discover
        self._is_read = not discover
        self._records: list[PluginRecord] = []
        # (kind, distribution, target) -> the imported object
        self._targets: dict[tuple[str, str, str], Any] = {}
        # the backends that ``preferring`` has chosen
        self._preferred: list[BackendEntry] = []
        self._lock = threading.Lock()

    # --- reading the plugins

    def read(self, refused: Mapping[str, Fault] | None = None) -> None:
        """Read the installed plugins, unless they were read before, and warn of broken
        ones.

        ``refused``: plugin (``distribution/name``) that is not loaded -> the fault that
        its record gets. Raises PluginBroken if a light module, which is the module of
        an entry point, calls this while it is imported.
        """
        if self._is_read:
            return
        # this thread is importing a light module
        if getattr(_reading, "busy", False):
            raise PluginBroken(
                "plugin-broken",
                "a light module used the registry while plugins are being read",
            )
        _reading.busy = True
        try:
            # The lock is not held here: an import may wait for another thread, and that
            # thread may wait for the lock.
            found = discover(refused)
        finally:
            _reading.busy = False
        with self._lock:
            # if another thread has read the plugins meanwhile, its result is kept
            if self._is_read:
                return
            self._records += found
            self._is_read = True
        _warn(found)

    def loadable(self) -> list[tuple[EntryPoint, PluginRecord]]:
        """Return the installed plugins that this registry loads; none for
        ``discover=False``. Imports nothing.
        """
        found = find_plugins() if self._discovers else ()
        # a plugin that must not or cannot be loaded has no entry point here
        return [(entry, record) for entry, record in found if entry is not None]

    def _plugins(self) -> list[PluginRecord]:
        """Read the plugins, if that was not done before, and return all records.
        Conflicts between plugins are not in these records.
        """
        self.read()
        return list(self._records)

    # --- lists of declarations

    def backends(self) -> list[BackendInfo]:
        """Return all declared backends, usable or not, sorted by name."""
        entries = self._entries()
        infos = [self._info(entry, entries) for entry in entries]
        return sorted(infos, key=lambda info: (info.name, info.distribution))

    def plugins(self) -> list[PluginRecord]:
        """Return one record for each installed or registered plugin, usable or not. If
        two backends have the same name, each of their plugins gets the conflict as its
        fault, unless the plugin already has one.
        """
        entries = self._entries()
        records = []
        for record in self._plugins():
            for spec in record.backends:
                fault = _conflict_fault(BackendEntry(spec, record), entries)
                if fault is not None and record.fault is None:
                    record = record.failed(fault)
            records.append(record)
        return records

    def declared(self, kind: type[D]) -> list[Declared[D]]:
        """Return all declarations of a kind, each with the record of its plugin, sorted
        by name. Declarations of the core are not included.
        """
        return sorted(
            self._of_kind(kind), key=lambda pair: (pair[0].key, pair[1].distribution)
        )

    def _of_kind(self, kind: type[D]) -> Iterator[Declared[D]]:
        """Yield all declarations of a kind, each with the record of its plugin."""
        for record in self._plugins():
            for spec in record.declarations:
                if isinstance(spec, kind):
                    yield spec, record

    def _entries(self) -> list[BackendEntry]:
        """Return all declared backends. A preferred backend (``preferring``) hides
        other backends with the same name or id.
        """
        entries = [BackendEntry(*declared) for declared in self._of_kind(BackendSpec)]
        taken = {name for entry in self._preferred for name in entry.names}
        return [
            entry
            for entry in entries
            if entry in self._preferred or taken.isdisjoint(entry.names)
        ]

    def _info(
        self, entry: BackendEntry, entries: Sequence[BackendEntry]
    ) -> BackendInfo:
        """Return the row of ``backends()`` for a backend. ``entries``: all backends."""
        formats = [
            spec.suffix
            for spec, record in self.declared(FormatSpec)
            if record.distribution == entry.record.distribution
        ]
        partitioners = self._of_backend(PartitionerSpec, entry)
        return BackendInfo(
            entry.spec,
            entry.record,
            conflict=_conflict_fault(entry, entries),
            formats=tuple(formats),
            partitioners=tuple(spec.name for spec, _ in partitioners),
            has_runtime=bool(self._of_backend(RuntimeSpec, entry)),
            has_quantizer=bool(self._of_backend(QuantizerSpec, entry)),
        )

    # --- backends by name

    def spec(self, name: str) -> BackendSpec:
        """Return the declaration of the backend ``name``. Raises the errors of
        ``entry``.
        """
        return self.entry(name).spec

    def installed(self, name: str) -> InstalledBackend:
        """Import the class of the backend ``name`` and return it with its declaration.
        Raises the errors of ``get_backend``.
        """
        entry = self._usable(name)
        kind: type[BackendDetails] = self._resolve(entry.spec, entry.record)
        return InstalledBackend(entry.spec, entry.record, kind)

    def get_backend(self, name: str) -> type[BackendDetails]:
        """Import and return the class of the backend ``name``.

        Raises BackendNotFound, PluginConflict, PluginIncompatible, PluginUnavailable or
        PluginBroken.
        """
        return self.installed(name).kind

    def get_partitioner(self, name: str, /, **options: Any) -> Partitioner:
        """Construct the default partitioner of the backend ``name``, with ``options``.
        ``name`` may also be the name of a partitioner.

        Options that are not passed get their declared defaults. A partitioner that was
        registered as an instance is returned as it is. Raises OptionError for wrong
        options, PluginFailed if the constructor fails, and the errors of
        ``get_backend``.
        """
        entry, (spec, record) = self._find_partitioner(name)
        values = complete_options(
            entry.spec.options, options, f"backend {entry.spec.name!r}"
        )
        target = self._resolve(spec, record)
        if not isinstance(target, type):  # an instance was registered
            instance: Partitioner = target
            return instance
        try:
            inspect.signature(target).bind(**values)
        except TypeError as e:
            raise PluginBroken(
                "plugin-broken",
                f"partitioner {target.__name__} of {record.owner} does not take the"
                f" options that are declared: {e}",
            ) from e
        with PluginCall(target, "constructor", registry=self):
            partitioner: Partitioner = target(**values)
        return partitioner

    def _find_partitioner(
        self, name: str
    ) -> tuple[BackendEntry, Declared[PartitionerSpec]]:
        """Return the backend ``name`` and its default partitioner. If no backend has
        that name, return the partitioner called ``name``, and its backend.

        A single partitioner is the default even if it is not declared as such. Raises
        the errors of ``_usable``, and PluginBroken if the backend has no partitioner, or
        several without exactly one default.
        """
        entries = self._entries()
        if not any(key_of(name) in entry.keys for entry in entries):
            for entry in entries:
                for declared in self._of_backend(PartitionerSpec, entry):
                    if declared[0].name == name:
                        # raises the reason if the backend cannot be used
                        return self._usable(entry.full_name), declared
        entry = self._usable(name)
        all_declared = self._of_backend(PartitionerSpec, entry)
        candidates = [pair for pair in all_declared if pair[0].default] or all_declared
        if not candidates:
            raise PluginBroken(
                "plugin-broken", f"backend {entry.full_name} declares no partitioner"
            )
        if len(candidates) > 1:
            names = ", ".join(spec.name for spec, _ in candidates)
            raise PluginBroken(
                "plugin-broken",
                f"backend {entry.full_name} has several partitioners and not one"
                f" default: {names}",
                hint="ask for one of them by its own name",
            )
        return entry, candidates[0]

    def runtime_for(self, name: str) -> type[BackendRuntime]:
        """Return the class that runs blobs of the backend ``name`` on this host.

        Raises NoRuntime if no runtime is declared, or if a module that the runtime needs
        is missing; PluginConflict if several are declared; and the errors of
        ``get_backend``.
        """
        entry = self._usable(name)
        declared = self._only(RuntimeSpec, entry)
        title = f"backend {entry.spec.name!r} of {entry.record.owner}"
        if declared is None:
            raise NoRuntime(
                "no-runtime",
                f"{title} declares no runtime for this host",
                hint="lowered.with_missing_runtime('eager') runs the original operators"
                " instead",
            )
        absent = missing(declared[0].requires)
        if absent:
            raise NoRuntime(
                "no-runtime",
                f"the runtime of {title} needs {', '.join(absent)}, which is not"
                " installed",
                hint=entry.spec.install_hint or None,
            )
        runtime: type[BackendRuntime] = self._resolve(*declared)
        return runtime

    def native_code(self, name: str) -> str:
        """Return the kind of native code in blobs of the backend ``name``, such as
        "machine code". The RuntimeSpec of the backend declares it.

        Return "" if blobs are not native code. Also return "" if the backend or its
        runtime cannot be found, because nothing on this host then runs the blobs.
        """
        try:
            declared = self._only(RuntimeSpec, self.entry(name))
        except DelegraphError:
            return ""
        return "" if declared is None else declared[0].native

    def get_quantizer(self, name: str) -> Any:
        """Return the quantizer class of the backend ``name``.

        Raises OptionError if no quantizer is declared, PluginUnavailable if a module
        that the quantizer needs is missing, PluginConflict if several are declared, and
        the errors of ``get_backend``.
        """
        entry = self._usable(name)
        declared = self._only(QuantizerSpec, entry)
        if declared is None:
            raise OptionError(
                "option-invalid",
                f"backend {entry.full_name} declares no quantizer",
                hint="quantizer=... takes any of torchao's",
            )
        spec = declared[0]
        absent = missing(spec.requires)
        if absent:
            title = f"the quantizer of backend {entry.full_name}"
            raise needs_modules(title, absent, spec.install_hint)
        return self._resolve(*declared)

    def usable_backends(self) -> list[BackendInfo]:
        """Return the backends that can be used, sorted by name. If there are none,
        raises BackendNotFound with the reasons.
        """
        declared = self.backends()
        usable = [info for info in declared if info.usable]
        if not usable:
            raise none_usable(self.plugins(), declared)
        return usable

    def default_backends(
        self,
        optioned: Iterable[str] = (),
        suits: Callable[[BackendInfo], bool] = lambda info: True,
    ) -> DefaultBackends:
        """Choose the backends of a call that names none.

        If the user gave options for some backends, these are chosen: ``optioned``.
        Otherwise the candidates are the usable backends for which ``suits`` is true.
        It checks other demands of the call, such as a file format. If no backend suits,
        all usable ones are candidates: the call then fails later, with the reason. Of
        several candidates, the one that is declared as default is chosen. Raises
        BackendNotFound if no backend can be used, and OptionError if there are several
        candidates without exactly one default.
        """
        names = list(optioned)
        if names:
            return DefaultBackends(
                names, f"no backend was named; the options are for {', '.join(names)}"
            )
        usable = self.usable_backends()
        suitable = [info for info in usable if suits(info)] or usable
        candidates = suitable
        if len(suitable) > 1:
            candidates = [info for info in suitable if info.spec.default]
        if len(candidates) != 1:
            several = ", ".join(info.name for info in candidates or suitable)
            raise OptionError(
                "option-invalid",
                f"no backend is named, and there are several: {several}",
                hint="backends=[NAME, ...] in order of preference; on the command line"
                " --backend NAME",
            )
        chosen = candidates[0]
        others = ", ".join(info.name for info in suitable if info is not chosen)
        if others:
            why = f"is the default (others: {others})"
        elif len(usable) > 1:
            why = "is the only one that suits"
        else:
            why = "is the only one"
        return DefaultBackends(
            [chosen.name], f"no backend was named; {chosen.name} {why}"
        )

    def preferring(self, names: Iterable[str]) -> Registry:
        """Return a registry of the same plugins that prefers some backends: they hide
        other backends with the same name or id.

        Programs store bare backend ids, and two distributions may have backends with
        the same id. In the result, that id means the preferred backend. Each of
        ``names`` with the form ``distribution/name`` prefers a backend; other names
        have no effect. If there are only other names, the result is this registry.
        Raises PluginConflict if two preferred backends have the same name or id, and
        the errors of ``entry``.
        """
        preferred = [self.entry(name) for name in names if "/" in name]
        if not preferred:
            return self
        by_key: dict[str, BackendEntry] = {}
        for entry in preferred:
            for key in entry.names:
                other = by_key.setdefault(key, entry)
                if other != entry:
                    raise PluginConflict(
                        "plugin-conflict",
                        f"{other.full_name} and {entry.full_name} are both {key!r},"
                        " and a program stores only that name",
                        hint="lower for one of them at a time",
                    )
        # shallow: both registries share the list of records and the imported objects
        view = copy.copy(self)
        view._preferred = preferred
        return view

    def entry(self, name: str) -> BackendEntry:
        """Return the backend called ``name``, whether it can be used or not.

        Raises PluginConflict if several backends have that name. If no backend has it,
        raises BackendNotFound, or another error if a plugin that cannot be used has the
        name (``backend_not_found``).
        """
        key = key_of(name)
        entries = [entry for entry in self._entries() if key in entry.keys]
        if len(entries) > 1:
            raise backend_conflict(name, entries)
        if not entries:
            raise backend_not_found(name, self._plugins())
        return entries[0]

    def _usable(self, name: str) -> BackendEntry:
        """Return the backend called ``name``. Raises the errors of ``entry``, and
        PluginIncompatible or PluginUnavailable if the backend cannot be used.
        """
        entry = self.entry(name)
        if entry.fault is not None:
            raise unusable(entry.record, entry.fault)
        return entry

    def _of_backend(self, kind: type[D], entry: BackendEntry) -> list[Declared[D]]:
        """Return the declarations of a kind for a backend, such as its partitioners.

        If the backend's distribution has any, only these are returned. Otherwise the
        result has those of other plugins. A plugin with a backend of the same name is
        left out: its declarations are for its own backend.
        """
        declared = [
            (spec, record)
            for spec, record in self._of_kind(kind)
            if key_of(spec.key) in entry.keys
        ]
        own = [
            (spec, record)
            for spec, record in declared
            if record.distribution == entry.record.distribution
        ]
        return own or [
            (spec, record)
            for spec, record in declared
            if all(spec.key not in (b.name, b.backend_id) for b in record.backends)
        ]

    def _only(self, kind: type[D], entry: BackendEntry) -> Declared[D] | None:
        """Return the only declaration of a kind for a backend; None if there is none.

        This is for runtimes and quantizers: a backend may have one of each. Raises
        PluginConflict for several.
        """
        declared = self._of_backend(kind, entry)
        if len(declared) > 1:
            owners = " and ".join(record.owner for _, record in declared)
            raise PluginConflict(
                "plugin-conflict",
                f"backend {entry.full_name} has {len(declared)} {kind.noun}s: {owners}",
                hint=f"set {DENY} to all of them but one",
            )
        return declared[0] if declared else None

    # --- commands, formats, reports, models, compilers

    def get(self, kind: type[Declaration], asked: str) -> Any:
        """Import and return the target of a declaration that belongs to no backend: a
        command, format, report, model or compiler.

        ``kind``: the declaration's class. ``asked``: its name or ``distribution/name``;
        for formats and reports, the name of a file with the suffix.

        Raises PluginConflict, PluginUnavailable or PluginBroken. If no plugin has such a
        declaration, raises FormatNotFound or UsageError; the hint names the
        distribution to install, if this project has one.
        """
        return self._resolve(*self._find_with_plugin(kind, asked))

    def find(self, kind: type[D], asked: str) -> D:
        """Return the declaration that ``get`` finds, without importing its target.
        Raises the errors of ``get`` except PluginBroken.
        """
        return self._find_with_plugin(kind, asked)[0]

    def get_format(self, path: str | os.PathLike[str]) -> type[ProgramFormat]:
        """Return the class of the file format that the suffix of ``path`` chooses.

        Raises FormatNotFound, PluginConflict, PluginUnavailable or PluginBroken.
        """
        kind: type[ProgramFormat] = self.get(FormatSpec, os.fspath(path))
        return kind

    def _find_with_plugin(self, kind: type[D], asked: str) -> Declared[D]:
        """Return the declaration that ``get`` finds, with the record of its plugin.
        Raises the errors of ``get`` except PluginBroken.
        """
        available = [
            (spec, _DELEGRAPH) for spec in CORE_DECLARATIONS if isinstance(spec, kind)
        ]
        available += self._of_kind(kind)
        # for a file, the keys are its suffixes, the longest first
        for key in (asked, *kind.meant_by(asked)):
            same_name = [
                (spec, record)
                for spec, record in available
                if key_of(key) in (spec.key, f"{record.distribution}/{spec.key}")
            ]
            # A bare name prefers the core. A plugin's declaration of the same name is
            # found only as distribution/name.
            of_core = [pair for pair in same_name if pair[1] is _DELEGRAPH]
            declared = of_core or same_name
            # If a distribution that is not installed declares ``.nodes.json``, the search
            # ends without a result: ``.json`` would be another format.
            if declared or provider_of(kind, key):
                break
        if not declared:
            known = [spec.key for spec, _ in available]
            raise not_declared(kind, asked, known, self._plugins())
        if len(declared) > 1:
            raise conflict(f"the {declared[0][0].title}", declared)
        spec, record = declared[0]
        absent = missing(spec.requires)
        if absent:
            title = f"the {spec.title} of {record.owner}"
            raise needs_modules(title, absent, spec.install_hint)
        return spec, record

    def suffix_for(self, runtime: str) -> str:
        """Return the suffix of the files that the runtime ``runtime`` executes. Of
        several suffixes, return the first in alphabetical order. Raises NoRuntime if no
        plugin declares a format for that runtime.
        """
        specs = [spec for spec, _ in self.declared(FormatSpec)]
        for spec in specs:
            if runtime in spec.runtimes:
                return spec.suffix
        provider = provider_of("runtimes", runtime)
        if provider is not None:
            raise NoRuntime(
                "no-runtime",
                provider.not_installed(f"the runtime {runtime!r}"),
                hint=provider.hint,
            )
        known = sorted({name for spec in specs for name in spec.runtimes})
        raise NoRuntime(
            "no-runtime",
            f"no installed plugin executes files in the runtime {runtime!r}"
            f" ({', '.join(known) or 'none'})",
        )

    def default_compiler(self, feature: str) -> Any:
        """Return a new compiler of the kind that a plugin declares as the default
        (``CompilerSpec``), without options.

        If no plugin of this registry declares a default, ``default_registry()`` is
        searched. ``feature``: the feature that needs the compiler, for errors. Raises
        PluginUnavailable if no default is installed, PluginConflict if there are
        several, and PluginBroken if the compiler cannot be imported.
        """
        declared = [pair for pair in self.declared(CompilerSpec) if pair[0].default]
        if not declared and self is not default_registry():
            return default_registry().default_compiler(feature)
        if not declared:
            # of our distributions, only delegraph-workers declares a default
            provider = provider_of(CompilerSpec, "workers")
            assert provider is not None, "our_distributions.json has it"
            raise PluginUnavailable(
                "plugin-unavailable",
                provider.not_installed(feature),
                hint=provider.hint,
            )
        if len(declared) > 1:
            owners = " and ".join(record.owner for _, record in declared)
            raise PluginConflict(
                "plugin-conflict",
                f"{owners} both declare a default compiler",
                hint=f"set {DENY} to one of them",
            )
        compiler = self._resolve(*declared[0])
        return compiler()

    # --- objects and their owners

    def _resolve(self, spec: Declaration, record: PluginRecord) -> Any:
        """Return the target of ``spec``, which the plugin ``record`` declares. The first
        call imports and checks the target and keeps it for later calls.

        Raises PluginBroken if the target cannot be imported or is of the wrong kind.
        """
        # an object that was registered in this process needs no import
        if spec.target in record.objects:
            return record.objects[spec.target]
        key = (type(spec).__name__, record.distribution, spec.target)
        if key not in self._targets:
            self._targets[key] = import_target(spec, record)
        return self._targets[key]

    def owner(self, kind: type) -> PluginRecord | None:
        """Return the plugin that declares the class ``kind``. If no plugin declares it,
        return the one with targets in the same top-level package.

        None if no distribution has such a plugin, or if several have one.
        """
        package = kind.__module__.partition(".")[0]
        target = f"{kind.__module__}:{kind.__qualname__}"
        declaring = []
        same_package = []
        for record in self._plugins():
            targets = [declaration.target for declaration in record.declarations]
            if target in targets:
                declaring.append(record)
            # a target is "package.module:Class" or "package:Class"
            if any(re.split("[.:]", other)[0] == package for other in targets):
                same_package.append(record)
        for owners in (declaring, same_package):
            if len({record.distribution for record in owners}) == 1:
                return owners[0]
        return None

    def attributing(self, plugin: Any, doing: str) -> PluginCall:
        """Return a block that adds the name of ``plugin`` to errors: ``with
        registry.attributing(quantizer, "annotation"):``. ``doing``: the plugin's task.
        """
        return PluginCall(plugin, doing, registry=self)

    # --- plugins that are registered in this process

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

        An object with hooks takes only ``name``, the name of the plugin.
        ``partitioner`` and ``runtime``: classes, or ``"module:Name"``. For a backend
        without options, ``partitioner`` may also be an instance. ``name``: by default
        the class's name in lower case. The result removes the backend again, at the end
        of ``with register(...):`` or by ``.unregister()``. Raises PluginConflict if
        another backend has the name or id, PluginBroken for an object of the wrong kind,
        or for arguments that do not go with the object.
        """
        self.read()
        if isinstance(spec_or_class, (type, BackendSpec)):
            record = registered_backend(
                spec_or_class, partitioner, runtime, name, tuple(options)
            )
        else:
            given = {"partitioner": partitioner, "runtime": runtime, "options": options}
            for argument, value in given.items():
                if value:
                    raise PluginBroken(
                        "plugin-broken",
                        f"an object with hooks declares its own {argument}, and"
                        f" {argument}= is given as well",
                        hint=f"leave {argument}= out, or register the backend's class",
                    )
            record = self._read_object(spec_or_class, name or "plugin")
        with self._lock:
            for spec in record.backends:
                for entry in self._entries():
                    if {spec.name, spec.backend_id} & {*entry.names}:
                        raise PluginConflict(
                            "plugin-conflict",
                            f"backend {spec.name!r} ({spec.backend_id}) exists already"
                            f" in {entry.record.owner}",
                            hint="register it under another name",
                        )
            self._records.append(record)
        registration = Registration()
        registration.callback(self._remove, record)
        return registration

    def _read_object(self, plugin: Any, name: str) -> PluginRecord:
        """Return the record of ``plugin``, an object with hooks. Raises PluginBroken if
        the object has no hooks or they declare nothing, and the errors of
        ``read_declarations``.
        """
        record = PluginRecord(name, IN_PROCESS, "", repr(plugin))
        # each object gets a manager of its own, because objects that are registered
        # without a name all have the same one
        record = read_declarations(plugin_manager(), plugin, record)
        if not record.declarations:
            raise PluginBroken(
                "plugin-broken",
                f"{plugin!r} declares nothing",
                hint="give the backend's class, its BackendSpec, or an object with"
                " hooks of delegraph.plugin",
            )
        return record

    def _remove(self, record: PluginRecord) -> None:
        """Remove a registered plugin; do nothing if it was removed before."""
        with self._lock:
            # the list itself is changed, because registries of ``preferring`` share it
            self._records[:] = [r for r in self._records if r is not record]


class Registration(ExitStack):
    """The result of ``register``. Removes the backend at the end of a ``with`` block or
    by ``unregister()``.
    """

    def unregister(self) -> None:
        """Remove the backend again; a second call does nothing."""
        self.close()


def _conflict_fault(
    entry: BackendEntry, entries: Sequence[BackendEntry]
) -> Fault | None:
    """Return the fault of a backend with the same name or id as another backend in
    ``entries``, usable or not; None if there is no other.
    """
    for name in entry.names:
        same = [other for other in entries if name in other.names]
        if len(same) > 1:
            error = backend_conflict(name, same)
            return Fault(Status.CONFLICT, error.message, error.hint or "")
    return None


def _warn(records: Iterable[PluginRecord]) -> None:
    """Show one warning about all plugins in ``records`` that are broken or incompatible,
    except those for which this process has shown a warning before.
    """
    new = [
        record
        for record in records
        if record.status in (Status.BROKEN, Status.INCOMPATIBLE)
        and record.full_name not in _warned
    ]
    _warned.update(record.full_name for record in new)
    if new:
        rows = "; ".join(f"{r.name} of {r.owner} is {r.status}: {r.error}" for r in new)
        # 5 frames up is usually the line that called a method of the registry
        warnings.warn(
            f"{rows}. `delegraph backends` lists them.",
            DelegraphWarning,
            stacklevel=5,
        )


# --- the registry of this process -----------------------------------------------------

_default = Registry()


def default_registry() -> Registry:
    """Return the registry of this process, which ``delegraph.lower`` and others use by
    default.
    """
    return _default


def backends() -> list[BackendInfo]:
    """Return all backends that are installed or registered, sorted by name."""
    return _default.backends()


def get_backend(name: str) -> type[BackendDetails]:
    """Return the class of the backend ``name``; see ``Registry.get_backend``."""
    return _default.get_backend(name)


def get_partitioner(name: str, /, **options: Any) -> Partitioner:
    """Make the default partitioner of a backend; see ``Registry.get_partitioner``."""
    return _default.get_partitioner(name, **options)


def get_runtime(name: str) -> type[BackendRuntime]:
    """Return the class that runs blobs of a backend; see ``Registry.runtime_for``."""
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
