"""From a declaration to the object that it names, which is checked to be what the declaration says."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from ..errors import PluginBroken
from ..plugin import API_VERSION, IN_PROCESS, BackendSpec, Declaration, OptionSpec, PartitionerSpec, RuntimeSpec
from .attribution import working
from .loading import exits_raise, load
from .record import PluginRecord, advice, describe, without
from .validate import fault_of


def resolve(spec: Declaration, record: PluginRecord) -> Any:
    """Import the target. Raises PluginBroken, with the cause, if that fails or the object is of the wrong kind."""
    what = f"{spec.noun} {spec.target!r} of {record.owner}"
    try:
        with exits_raise(), working(f"importing {what}"):
            found = load(spec.target, installed=record.distribution != IN_PROCESS)
            reason = _why_not(spec, found)
    except KeyboardInterrupt:
        raise
    except BaseException as e:  # also SystemExit
        text = f"{what} cannot be loaded: {describe(e, record.modules)}"
        raise PluginBroken("plugin-broken", text, hint=advice(e, record)) from e
    if reason is not None:
        base = f"a {spec.noun} is a subclass of {spec.base.replace(':', '.')}" if spec.base else ""
        rules = ", and ".join(filter(None, (base, spec.rule)))
        hint = f"for the authors of {record.distribution}: {rules}; {without(record)}"
        raise PluginBroken("plugin-broken", f"{what} {reason}", hint=hint)
    return found


def _why_not(spec: Declaration, found: Any) -> str | None:
    """Why the object is not what the declaration says; None if it is."""
    if spec.base and not (isinstance(found, type) and issubclass(found, load(spec.base, installed=False))):
        module = sys.modules.get(getattr(found, "__module__", None) or "")
        file = getattr(module, "__file__", None) if isinstance(found, type) or callable(found) else None
        shown = f"{type(found).__name__} {found!r:.60}" + (f" of {file}" if file else "")
        return f"is no subclass of {spec.base.replace(':', '.')} but {shown}"
    return spec.why_not(found)


# --- registering objects ----------------------------------------------------------------------------------------------


def in_process(
    given: Any, partitioner: Any, runtime: Any, name: str | None, options: tuple[OptionSpec, ...]
) -> PluginRecord:
    """The record of a backend that is registered as its class or its declaration. Raises PluginBroken."""
    objects: dict[str, Any] = {}
    spec = _spec_of(given, name, options, objects)
    # ``objects`` keeps the given objects under the target by which they are looked up
    declarations: list[Declaration] = [spec]
    if partitioner is not None:
        declarations.append(PartitionerSpec(spec.name, spec.name, _target(partitioner, objects), default=True))
    if runtime is not None:
        declarations.append(RuntimeSpec(spec.name, _target(runtime, objects)))
    for declaration in declarations:
        if declaration.target in objects:
            _expect_fitting(declaration, objects[declaration.target])
    if spec.options and partitioner is not None and not isinstance(partitioner, (type, str)):
        raise PluginBroken("plugin-broken", f"the partitioner of {spec.name!r} is ready made and can take no options")
    record = PluginRecord(spec.name, IN_PROCESS, "", spec.target)
    fault = fault_of(spec, record)
    faults = {} if fault is None else {spec.name: fault}
    record = record if fault is None else record.failed(fault)
    return replace(record, declarations=tuple(declarations), objects=objects, faults=faults)


def _spec_of(given: Any, name: str | None, options: tuple[OptionSpec, ...], objects: dict[str, Any]) -> BackendSpec:
    """The declaration of a backend that is given as a declaration or as a class."""
    if isinstance(given, BackendSpec):
        return replace(given, name=name or given.name, options=options or given.options)
    backend_id = given.__name__
    return BackendSpec(name or backend_id.lower(), _target(given, objects), backend_id, API_VERSION, options=options)


def _expect_fitting(declaration: Declaration, given: Any) -> None:
    """Raise PluginBroken unless ``given`` is of the declared kind; a partitioner may also be an instance."""
    ready_made = isinstance(declaration, PartitionerSpec) and not isinstance(given, type)
    reason = _why_not(declaration, type(given) if ready_made else given)
    if reason is not None and ready_made and callable(given):
        text = f"a partitioner is a class or an instance of one, and {declaration.target!r} is a function"
        hint = "call it and give what it returns, or derive a class from the Partitioner, which options are given to"
        raise PluginBroken("plugin-broken", text, hint=hint)
    if reason is not None:
        raise PluginBroken("plugin-broken", f"{declaration.noun} {declaration.target!r} {reason}")


def _target(given: Any, objects: dict[str, Any]) -> str:
    """The target of a given object, under which it is put into ``objects``; a text is a target already."""
    if isinstance(given, str):
        return given
    named = given if isinstance(given, type) else type(given)
    target = f"{named.__module__}:{named.__qualname__}"
    objects[target] = given
    return target
