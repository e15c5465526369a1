"""Makes the record of a backend that is registered in this process, without an entry
point.
"""

from __future__ import annotations

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
from .import_target import wrong_kind
from .read_declarations import fault_of
from .records import PluginRecord


def registered_backend(
    backend: Any,
    partitioner: Any,
    runtime: Any,
    name: str | None,
    options: tuple[OptionSpec, ...],
) -> PluginRecord:
    """Return the record of a backend that ``Registry.register`` adds; the arguments are
    those of ``register``.

    ``backend``: its class or BackendSpec. If the backend cannot be used here, the record
    has the fault. Raises PluginBroken for an object of the wrong kind, and if there are
    options but ``partitioner`` is an instance, which can take none.
    """
    # target -> the object, which needs no import; ``_target`` adds to it
    objects: dict[str, Any] = {}
    if isinstance(backend, BackendSpec):
        spec = replace(
            backend, name=name or backend.name, options=options or backend.options
        )
    else:
        backend_id = backend.__name__
        spec = BackendSpec(
            name or backend_id.lower(),
            _target(backend, objects),
            backend_id,
            API_VERSION,
            options=options,
        )
    declarations: list[Declaration] = [spec]
    if partitioner is not None:
        target = _target(partitioner, objects)
        declarations.append(PartitionerSpec(spec.name, spec.name, target, default=True))
    if runtime is not None:
        declarations.append(RuntimeSpec(spec.name, _target(runtime, objects)))
    for declaration in declarations:
        # a target that was given as text is checked after its import
        if declaration.target in objects:
            _check_kind(declaration, objects[declaration.target])
    is_instance = partitioner is not None and not isinstance(partitioner, (type, str))
    if spec.options and is_instance:
        raise PluginBroken(
            "plugin-broken",
            f"the partitioner of {spec.name!r} is ready made and can take no options",
        )
    record = PluginRecord(
        spec.name,
        IN_PROCESS,
        "",
        spec.target,
        declarations=tuple(declarations),
        objects=objects,
    )
    fault = fault_of(spec, record)
    if fault is None:
        return record
    return replace(record, faults={spec.name: fault}).failed(fault)


def _check_kind(declaration: Declaration, value: Any) -> None:
    """Raise PluginBroken unless ``value`` is a class of the declared kind. For a
    partitioner, it may also be an instance of such a class.
    """
    is_instance = isinstance(declaration, PartitionerSpec) and not isinstance(
        value, type
    )
    kind = type(value) if is_instance else value
    reason = wrong_kind(declaration, kind)
    if reason is None:
        return
    if is_instance and callable(value):
        raise PluginBroken(
            "plugin-broken",
            "a partitioner is a class or an instance of one, and"
            f" {declaration.target!r} is a function",
            hint="call it and register its result, or derive a class from Partitioner,"
            " which gets the options",
        )
    raise PluginBroken(
        "plugin-broken", f"{declaration.noun} {declaration.target!r} {reason}"
    )


def _target(value: Any, objects: dict[str, Any]) -> str:
    """Return the target of ``value``. A str is the target itself. Any other object is
    stored in ``objects``, and its key there is the target.
    """
    if isinstance(value, str):
        return value
    kind = value if isinstance(value, type) else type(value)
    target = f"{kind.__module__}:{kind.__qualname__}"
    objects[target] = value
    return target
