"""From a declaration to the object that it names, checked against what it claims to be."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from ..errors import PluginBroken
from ..plugin import (
    API_VERSION,
    BackendSpec,
    CommandSpec,
    Declaration,
    FormatSpec,
    OptionSpec,
    PartitionerSpec,
    QuantizerSpec,
    RuntimeSpec,
)
from .entry_points import IN_PROCESS
from .loading import exits_raise, load
from .record import PluginRecord, advice, describe, without
from .validate import fault_of


def resolve(spec: Declaration, record: PluginRecord) -> Any:
    """Import the target. Raises PluginBroken with the cause if that fails or the object is of the wrong kind."""
    what = f"{_KINDS[type(spec)]} {spec.target!r} of {record.owner}"
    try:
        with exits_raise():
            found = load(spec.target, installed=record.distribution != IN_PROCESS)
            reason = _why_not(spec, found)
    except KeyboardInterrupt:
        raise
    except BaseException as e:  # SystemExit included
        text = f"{what} cannot be loaded: {describe(e, record.modules)}"
        raise PluginBroken("plugin-broken", text, hint=advice(e, record)) from e
    if reason is not None:
        hint = f"for the authors of {record.distribution}: {_REMEDIES[type(spec)]}; {without(record)}"
        raise PluginBroken("plugin-broken", f"{what} {reason}", hint=hint)
    return found


_KINDS: dict[type, str] = {
    BackendSpec: "backend",
    PartitionerSpec: "partitioner",
    RuntimeSpec: "runtime",
    QuantizerSpec: "quantiser",
    FormatSpec: "file format",
    CommandSpec: "command",
}


_REMEDIES: dict[type, str] = {
    BackendSpec: "a backend is a subclass of delegraph.backend.BackendDetails, and backend_id is the class's name",
    PartitionerSpec: "a partitioner is a subclass of delegraph.partitioner.Partitioner",
    RuntimeSpec: "a runtime is a subclass of delegraph.runtime.BackendRuntime",
    QuantizerSpec: "a quantiser is a class, or something else that can be called",
    FormatSpec: "a format is a subclass of delegraph.formats.ProgramFormat",
    CommandSpec: "a command has what delegraph.cli.command.Command has",
}


def _why_not(spec: Declaration, found: Any) -> str | None:
    """Why the object is not what the declaration says, or None."""
    if isinstance(spec, BackendSpec):
        from ..backend import BackendDetails

        return _not_subclass(found, BackendDetails) or _other_id(found, spec)
    if isinstance(spec, PartitionerSpec):
        from ..partitioner import Partitioner

        return _not_subclass(found, Partitioner)
    if isinstance(spec, RuntimeSpec):
        from ..runtime import BackendRuntime

        return _not_subclass(found, BackendRuntime)
    if isinstance(spec, FormatSpec):
        from ..formats import ProgramFormat

        return _not_subclass(found, ProgramFormat)
    if isinstance(spec, CommandSpec):
        absent = [n for n in ("add_arguments", "run") if not callable(getattr(found, n, None))]
        return f"has no {' and no '.join(absent)}" if absent else None
    return None if callable(found) else "cannot be called"


def _not_subclass(found: Any, base: type) -> str | None:
    if isinstance(found, type) and issubclass(found, base):
        return None
    return f"is no subclass of {base.__module__}.{base.__name__} but {_shown(found)}"


def _shown(found: Any) -> str:
    """What the object is, and the file that has it if it is a class or a function."""
    module = sys.modules.get(getattr(found, "__module__", None) or "")
    file = getattr(module, "__file__", None) if isinstance(found, type) or callable(found) else None
    return f"{type(found).__name__} {found!r:.60}" + (f" of {file}" if file else "")


def _other_id(found: type, spec: BackendSpec) -> str | None:
    if found.__name__ == spec.backend_id:
        return None
    return f"is called {found.__name__}, and backend_id says {spec.backend_id!r}; the class's name is the backend id"


# --- registering objects ----------------------------------------------------------------------------------------------


def in_process(
    given: Any, partitioner: Any, runtime: Any, name: str | None, options: tuple[OptionSpec, ...]
) -> PluginRecord:
    """The record of a backend that is registered as its class or its declaration. Raises PluginBroken."""
    objects: dict[str, Any] = {}
    if isinstance(given, BackendSpec):
        spec = replace(given, name=name or given.name, options=options or given.options)
    else:
        backend_id = given.__name__
        spec = BackendSpec(
            name or backend_id.lower(), _target(given, objects), backend_id, API_VERSION, options=options
        )
    record = PluginRecord(spec.name, IN_PROCESS, "", spec.target)
    others: list[Declaration] = []
    if partitioner is not None:
        others.append(PartitionerSpec(spec.name, spec.name, _target(partitioner, objects), default=True))
    if runtime is not None:
        others.append(RuntimeSpec(spec.name, _target(runtime, objects)))
    for declaration in (spec, *others):
        _check_object(declaration, objects, record)
    if spec.options and partitioner is not None and not isinstance(partitioner, (type, str)):
        raise PluginBroken("plugin-broken", f"the partitioner of {spec.name!r} is ready made and can take no options")
    fault = fault_of(spec, record)
    faults = {} if fault is None else {spec.name: fault}
    record = record if fault is None else record.failed(fault)
    return replace(record, declarations=(spec, *others), objects=objects, faults=faults)


def _target(given: Any, objects: dict[str, Any]) -> str:
    """The name of an object, which is looked up under it; text is a target already."""
    if isinstance(given, str):
        return given
    named = given if isinstance(given, type) else type(given)
    target = f"{named.__module__}:{named.__qualname__}"
    objects[target] = given
    return target


def _check_object(spec: Declaration, objects: dict[str, Any], record: PluginRecord) -> None:
    if spec.target not in objects:
        return
    from ..partitioner import Partitioner

    found = objects[spec.target]
    instance = isinstance(spec, PartitionerSpec) and isinstance(found, Partitioner)
    reason = None if instance else _why_not(spec, found)
    if reason is not None:
        raise PluginBroken("plugin-broken", f"{_KINDS[type(spec)]} {spec.target!r} {reason}")
