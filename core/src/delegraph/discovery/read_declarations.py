"""Calls the hooks of a plugin, and checks the declarations that they return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pluggy

from ..plugin import (
    API_VERSION,
    DECLARATION_OF,
    PROJECT,
    BackendSpec,
    Declaration,
    Hooks,
    PartitionerSpec,
    RemoteBackendSpec,
)
from .explain_exception import PluginDefect
from .import_by_name import missing
from .nearest_name import suggestion
from .records import Fault, PluginRecord, Status

_BACKENDS = "delegraph_backends"


def plugin_manager() -> pluggy.PluginManager:
    """Return a new pluggy manager that knows the hooks of ``delegraph.plugin``."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(Hooks)
    return manager


def read_declarations(
    manager: pluggy.PluginManager, plugin: Any, record: PluginRecord
) -> PluginRecord:
    """Register ``plugin`` (a module or an object) in ``manager`` and call its hooks;
    return ``record`` with its declarations.

    Raises PluginDefect for hooks or declarations that violate ``delegraph.plugin``, and
    any error of the hooks. Each backend that cannot be used here gets a fault in
    ``faults`` of the result. The first of them becomes the fault of the whole plugin if
    its backend was written for another plugin API, or if nothing in the plugin can be
    used.
    """
    try:
        manager.register(plugin, record.full_name)
    except pluggy.PluginValidationError as e:
        raise PluginDefect(
            " ".join(str(e).split()),
            "give the hook the arguments that it has in delegraph.plugin.Hooks",
        ) from e
    backends = _call_hook(manager, plugin, _BACKENDS)
    faults = {}
    for spec in backends:
        fault = fault_of(spec, record)
        if fault is not None:
            faults[spec.name] = fault
    first = next(iter(faults.values()), None)
    # The other hooks may be written for the same wrong API version. So they are not
    # called.
    if first is not None and first.status is Status.INCOMPATIBLE:
        read = replace(record, declarations=tuple(backends), faults=faults)
        return read.failed(first)
    _check_hooks(manager, plugin)
    others: list[Declaration] = []
    for hook in DECLARATION_OF:
        if hook != _BACKENDS:
            others += _call_hook(manager, plugin, hook)
    _check_names([*backends, *others])
    checked = replace(record, declarations=(*backends, *others), faults=faults)
    # A backend may need an extra that is not installed. That does not disable the rest
    # of the plugin.
    has_backend = len(faults) < len(backends)
    # ``alone``: of use without a backend, such as a command
    has_other = any(d.alone and not missing(d.requires) for d in others)
    if first is None or has_backend or has_other:
        return checked
    return checked.failed(first)


def _call_hook(manager: pluggy.PluginManager, plugin: Any, hook: str) -> Sequence[Any]:
    """Call the hook of ``plugin`` and return its declarations; none if the plugin does
    not implement the hook.

    Raises PluginDefect unless the result is a list or tuple of ``DECLARATION_OF[hook]``.
    The function is called directly: pluggy would call the hook of all plugins, and end
    at the first exception.
    """
    wanted = DECLARATION_OF[hook].__name__
    implementations = getattr(manager.hook, hook).get_hookimpls()
    declared = next((i.function for i in implementations if i.plugin is plugin), None)
    if declared is None:
        return []
    answer = declared()
    if not isinstance(answer, (list, tuple)):
        raise PluginDefect(
            f"{hook} returned {_shown(answer)}; it returns a list of {wanted}",
            f"return [{wanted}(...)], a list even for one",
        )
    for item in answer:
        if not isinstance(item, DECLARATION_OF[hook]):
            raise PluginDefect(
                f"{hook} returned a list with {_shown(item)}; each item is a {wanted}",
                f"declare it with delegraph.plugin.{wanted}, which names the object by"
                " its target",
            )
    return answer


def _shown(value: Any) -> str:
    """Return the ``repr`` of a value, cut after 60 characters, and the name of its
    type.
    """
    return f"{value!r:.60} ({type(value).__name__})"


def _check_hooks(manager: pluggy.PluginManager, plugin: Any) -> None:
    """Raise PluginDefect for a hook with an unknown name, and for a function with the
    name of a hook but without the decorator. pluggy ignores both.
    """
    implemented = manager.get_hookcallers(plugin) or []
    for caller in implemented:
        # an author who marks a hook as optional wants it to be ignored if it does not
        # exist
        is_optional = all(i.optionalhook for i in caller.get_hookimpls())
        if not caller.has_spec() and not is_optional:
            raise PluginDefect(
                f"there is no hook {caller.name!r}"
                f"{suggestion(caller.name, DECLARATION_OF)}",
                f"rename it; the hooks are {', '.join(DECLARATION_OF)}",
            )
    names = {caller.name for caller in implemented}
    for name in DECLARATION_OF:
        if name not in names and callable(getattr(plugin, name, None)):
            raise PluginDefect(
                f"{name} lacks the decorator @hookimpl",
                "put delegraph.plugin.hookimpl on it",
            )


def _check_names(declarations: Sequence[Declaration]) -> None:
    """Raise PluginDefect if two declarations of one kind have the same key.

    Partitioners are exempt: their key is the backend, which may have several.
    """
    seen: set[tuple[type, str]] = set()
    for declared in declarations:
        kind_and_key = (type(declared), declared.key)
        if kind_and_key in seen and not isinstance(declared, PartitionerSpec):
            raise PluginDefect(
                f"it declares {declared.title} twice",
                f"give each {declared.noun} a name of its own",
            )
        seen.add(kind_and_key)


def fault_of(spec: BackendSpec, record: PluginRecord) -> Fault | None:
    """Return why a backend that the plugin ``record`` declares cannot be used here;
    None if it can. Imports nothing.
    """
    if spec.api != API_VERSION:
        outdated = record.distribution if spec.api < API_VERSION else "delegraph"
        return Fault(
            Status.INCOMPATIBLE,
            f"backend {spec.name!r} was written for plugin API {spec.api}; this"
            f" delegraph has plugin API {API_VERSION}",
            f"upgrade {outdated}",
        )
    if isinstance(spec, RemoteBackendSpec) and spec.unusable:
        return Fault(Status.UNAVAILABLE, spec.unusable, spec.install_hint)
    absent = missing(spec.requires)
    if absent:
        return Fault(
            Status.UNAVAILABLE,
            f"backend {spec.name!r} needs {' and '.join(map(repr, absent))}, which is"
            " not installed",
            spec.install_hint or f"install what provides {', '.join(absent)}",
        )
    return None
