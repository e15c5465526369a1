"""Imports the object that a declaration names, and checks that it is of the declared
kind.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from ..errors import PluginBroken
from ..plugin import (
    API_VERSION,
    IN_PROCESS,
    BackendSpec,
    Declaration,
    OptionSpec,
    PartitionerSpec,
    RuntimeSpec,
)
from .attribution import working
from .loading import exits_raise, load
from .record import PluginRecord, advice, describe, without
from .validate import fault_of


def resolve(spec: Declaration, record: PluginRecord) -> Any:
    """Import and return the target of ``spec``, which the plugin ``record`` declares.

    Raises PluginBroken if the import fails (its error is the cause) or the object is
    not of the declared kind.
    """
    what = f"{spec.noun} {spec.target!r} of {record.owner}"
    try:
        with exits_raise(), working(f"importing {what}"):
            target = load(spec.target, installed=record.distribution != IN_PROCESS)
            reason = _why_not(spec, target)
    except KeyboardInterrupt:
        raise
    except BaseException as e:  # also SystemExit
        text = f"{what} cannot be loaded: {describe(e, record.modules)}"
        raise PluginBroken("plugin-broken", text, hint=advice(e, record)) from e
    if reason is not None:
        base = (
            f"a {spec.noun} is a subclass of {spec.base.replace(':', '.')}"
            if spec.base
            else ""
        )
        rules = ", and ".join(filter(None, (base, spec.rule)))
        hint = f"for the authors of {record.distribution}: {rules}; {without(record)}"
        raise PluginBroken("plugin-broken", f"{what} {reason}", hint=hint)
    return target


def _why_not(spec: Declaration, target: Any) -> str | None:
    """Why the object ``target`` is not of the kind that ``spec`` declares; None if it
    is.
    """
    if spec.base and not (
        isinstance(target, type)
        and issubclass(target, load(spec.base, installed=False))
    ):
        # the file is named for classes and functions; ``__module__`` of another object
        # is that of its class
        module = sys.modules.get(getattr(target, "__module__", None) or "")
        file = (
            getattr(module, "__file__", None)
            if isinstance(target, type) or callable(target)
            else None
        )
        shown = f"{type(target).__name__} {target!r:.60}" + (
            f" of {file}" if file else ""
        )
        return f"is no subclass of {spec.base.replace(':', '.')} but {shown}"
    return spec.why_not(target)


# --- registering objects --------------------------------------------------------------


def in_process(
    backend: Any,
    partitioner: Any,
    runtime: Any,
    name: str | None,
    options: tuple[OptionSpec, ...],
) -> PluginRecord:
    """The record of a backend that ``Registry.register`` adds; the arguments are those
    of ``register``.

    ``backend``: its class or BackendSpec. Raises PluginBroken for an object of the
    wrong kind, and for options with a partitioner instance.
    """
    objects: dict[str, Any] = {}  # target -> object, see ``_target``
    spec = _spec_of(backend, name, options, objects)
    declarations: list[Declaration] = [spec]
    if partitioner is not None:
        declarations.append(
            PartitionerSpec(
                spec.name, spec.name, _target(partitioner, objects), default=True
            )
        )
    if runtime is not None:
        declarations.append(RuntimeSpec(spec.name, _target(runtime, objects)))
    for declaration in declarations:
        if declaration.target in objects:
            _expect_fitting(declaration, objects[declaration.target])
    if (
        spec.options
        and partitioner is not None
        and not isinstance(partitioner, (type, str))
    ):
        raise PluginBroken(
            "plugin-broken",
            f"the partitioner of {spec.name!r} is ready made and can take no options",
        )
    record = PluginRecord(spec.name, IN_PROCESS, "", spec.target)
    fault = fault_of(spec, record)
    faults = {} if fault is None else {spec.name: fault}
    record = record if fault is None else record.failed(fault)
    return replace(
        record, declarations=tuple(declarations), objects=objects, faults=faults
    )


def _spec_of(
    backend: Any,
    name: str | None,
    options: tuple[OptionSpec, ...],
    objects: dict[str, Any],
) -> BackendSpec:
    """The declaration of ``backend``, a class or BackendSpec; ``name`` and ``options``
    apply unless empty.

    A class is added to ``objects`` under the declaration's target (see ``_target``).
    """
    if isinstance(backend, BackendSpec):
        return replace(
            backend, name=name or backend.name, options=options or backend.options
        )
    backend_id = backend.__name__
    return BackendSpec(
        name or backend_id.lower(),
        _target(backend, objects),
        backend_id,
        API_VERSION,
        options=options,
    )


def _expect_fitting(declaration: Declaration, value: Any) -> None:
    """Raise PluginBroken unless ``value`` is of the declared kind; a partitioner may
    also be an instance.
    """
    ready_made = isinstance(declaration, PartitionerSpec) and not isinstance(
        value, type
    )
    reason = _why_not(declaration, type(value) if ready_made else value)
    if reason is not None and ready_made and callable(value):
        text = (
            "a partitioner is a class or an instance of one, and"
            f" {declaration.target!r} is a function"
        )
        hint = (
            "call it and give what it returns, or derive a class from the Partitioner,"
            " which options are given to"
        )
        raise PluginBroken("plugin-broken", text, hint=hint)
    if reason is not None:
        raise PluginBroken(
            "plugin-broken", f"{declaration.noun} {declaration.target!r} {reason}"
        )


def _target(value: Any, objects: dict[str, Any]) -> str:
    """The target that stands for ``value``: itself if it is a str, else a new key of
    ``objects``, which keeps it.
    """
    if isinstance(value, str):
        return value
    kind = value if isinstance(value, type) else type(value)
    target = f"{kind.__module__}:{kind.__qualname__}"
    objects[target] = value
    return target
