"""``delegraph.lower``, from a model to a program whose parts run on backends.

``delegraph.load``, from a file to one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, TypedDict, get_args

from torch.export import ExportedProgram

from .discovery.registry import Registry, default_registry
from .engine.cache import Cache, asked_cache
from .engine.compile_cached import Lookups
from .engine.export import export_method, sources_by_method
from .engine.pipeline import Lowering, Round, run
from .errors import OptionError
from .exported.gc_pause import pause_collection
from .exported.tracing import TRACING
from .exported.types import ExampleInputs, Program, Transform
from .host.executor import OnMissingRuntime
from .host.files import FileFormat, LoadedProgram
from .lowered_program import LoweredProgram
from .partitioner import Partitioner
from .plugin import ModelSpec

if TYPE_CHECKING:
    from .command.model import GivenModel


class Choices(TypedDict, total=False):
    """The arguments of ``lower`` that do not depend on the program."""

    backends: Sequence[str | Partitioner] | None
    options: Mapping[str, Mapping[str, Any]] | None
    transforms: Sequence[Transform]
    require_full: bool
    fold_constants: bool
    on_missing_runtime: OnMissingRuntime
    registry: Registry | None
    executor: Executor | None
    cache: bool | str | os.PathLike[str] | Cache | None


def lower(
    program: Program | Mapping[str, Program],
    example_inputs: ExampleInputs = None,
    *,
    example_kwargs: Any = None,
    dynamic_shapes: Any = None,
    backends: Sequence[str | Partitioner] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    transforms: Sequence[Transform] = (),
    require_full: bool = False,
    fold_constants: bool = True,
    on_missing_runtime: OnMissingRuntime = "error",
    registry: Registry | None = None,
    executor: Executor | None = None,
    cache: bool | str | os.PathLike[str] | Cache | None = None,
) -> LoweredProgram:
    """Lower a model; the result's report says what went where, and why not elsewhere.

    ``program`` is an nn.Module in eval mode with ``example_inputs`` (its arguments; a tensor alone is one), an
    ExportedProgram, {method: either} (then ``example_inputs``, ``example_kwargs`` and ``dynamic_shapes`` are by method,
    too), or an object of a type that a plugin reads (``ModelSpec``). ``backends`` are names in order of preference,
    Partitioners, or both; [] leaves everything on the host. Without it, ``lower`` takes the backends that ``options``
    are for, else the only one or the default one that is installed, and the report says which. ``options`` is {backend
    name: {option: value}}. ``transforms`` are functions from program to program, run on the normalized program. With
    ``require_full``, operators that are left to the host are an error, which lists all of them. Calls on constants
    alone that a backend refuses are computed now, values up to 16 MiB each, unless ``fold_constants`` is False. The
    model is never changed, its weights never copied. ``executor`` (a ``concurrent.futures`` executor of threads)
    compiles partitions of thread-safe backends side by side, to the same bytes.
    ``cache`` is a folder of compiled partitions, True for the user's, or a ``Cache``: what is there is not compiled
    again, nor what is equal, the rest is stored, and the report says whence each delegate is. Without it, the
    environment's ``DELEGRAPH_CACHE`` is that folder, if it is set.

    Raises a ``delegraph.errors.DelegraphError`` with a stable code.
    """
    registry, options, why = registry or default_registry(), options or {}, None
    kept = asked_cache(cache)
    _expect_choices(options, transforms, on_missing_runtime)
    if backends is None:
        backends, why = registry.default_backends(options)
    backends = _expect_backends(backends)
    with pause_collection():  # also while plugins are imported: one collection would take longer than that
        named = _named_partitioners(backends, options, registry)
        chosen = registry.preferring(b for b in backends if isinstance(b, str))
        if example_inputs is None and (given := _model_of_plugin(program, registry)) is not None:
            program, transforms = given.programs, (*given.transforms, *transforms)
            example_inputs, example_kwargs, dynamic_shapes = given.inputs, given.kwargs, given.dynamic_shapes
        sources = sources_by_method(program, example_inputs, example_kwargs, dynamic_shapes)
        lowering = Lowering(
            chosen,
            sources=sources,
            transforms=dict.fromkeys(sources, transforms),
            rounds=[
                Round(name, dict.fromkeys(sources, partitioner), isinstance(given, str))
                for given, (name, partitioner) in zip(backends, named, strict=True)
            ],
            folds_constants=fold_constants,
            executor=executor,
            cache=Lookups(kept) if kept else None,
            gives_back=True,
            notifies=True,
        )
        report = run(lowering).report()
    report.notes += [why] if why else []
    if on_missing_runtime == "eager":
        report.notes.append("delegates of backends without a runtime run in eager PyTorch on this host")
    if require_full:
        report.expect_full()
    eager = {method: source.program for method, source in sources.items()}
    made = lowering.programs, eager, lowering.delegates, report
    result = LoweredProgram(*made, chosen, on_missing_runtime, lowering.changed)
    report.notes += chosen.notify("delegraph_after_lower", result)
    return result


def export(
    program: Program | Mapping[str, Program],
    example_inputs: ExampleInputs = None,
    *,
    example_kwargs: Any = None,
    dynamic_shapes: Any = None,
) -> dict[str, ExportedProgram]:
    """Method -> its program, as ``lower`` would export it; for a single model ``{"forward": ...}``.

    The arguments are those of ``lower``, which also takes what this returns. Raises InputError for what cannot be
    lowered.
    """
    sources = sources_by_method(program, example_inputs, example_kwargs, dynamic_shapes)
    return {method: export_method(method, source) for method, source in sources.items()}


def load(
    path: str | os.PathLike[str],
    registry: Registry | None = None,
    *,
    runtime: str | None = None,
    max_memory: int | None = None,
    max_iterations: int | None = None,
) -> LoadedProgram:
    """Read a program that was saved; call it, or one of its methods, as it was called before.

    The path's suffix chooses the format. A file of one delegate, such as ``.tosa``, takes its inputs in the order that
    its ``summary`` shows: of first use. Delegates run in the runtimes of their backends, which load them in the first
    call. ``runtime`` names a runtime that executes the whole file instead, such as ``"executorch"`` for ``.pte``.
    ``max_memory`` (in bytes) and ``max_iterations`` (of all loops of a call) limit what a file that is not trusted may
    ask for; their defaults are the format's (``.pte``: 8 GiB and 100000).

    Raises FormatNotFound if no plugin offers the format, OptionError if the format cannot be read or has no such limit,
    FormatError for a damaged file, NoRuntime if a runtime is not there.
    """
    with TRACING:  # a format may trace, or read programs by torch.export.load
        return FileFormat(path, registry or default_registry()).load(
            runtime, max_memory=max_memory, max_iterations=max_iterations
        )


def _model_of_plugin(program: Any, registry: Registry) -> GivenModel | None:
    """The model that a plugin makes of an object of a type that it declares; None if no plugin declares the type."""
    if isinstance(program, (ExportedProgram, Mapping)):
        return None
    types = {f"{k.__module__}:{k.__qualname__}" for k in type(program).__mro__}
    # the type also by its top-level package, from which users import it
    types |= {f"{t.partition(':')[0].partition('.')[0]}:{t.partition(':')[2]}" for t in types}
    for spec, _ in registry.declared(ModelSpec):
        if not types.isdisjoint(spec.types):
            from .command.model import from_elsewhere

            return from_elsewhere(spec, program, spec.title, registry)
    return None


def _expect_choices(options: Any, transforms: Any, on_missing_runtime: Any) -> None:
    """Raise OptionError for arguments that do not have the form that ``lower`` says."""
    tables = [options, *(options.values() if isinstance(options, Mapping) else ())]
    if not all(isinstance(table, Mapping) and all(isinstance(key, str) for key in table) for table in tables):
        raise OptionError("option-invalid", f"options is {{backend name: {{option: value}}}}, not {options!r}")
    if not isinstance(transforms, Sequence) or not all(map(callable, transforms)):
        raise OptionError("option-invalid", f"transforms is a list of functions, not {transforms!r}")
    if on_missing_runtime not in get_args(OnMissingRuntime):
        text = f"on_missing_runtime is one of {', '.join(map(repr, get_args(OnMissingRuntime)))}, not "
        raise OptionError("option-invalid", f"{text}{on_missing_runtime!r}")


def _expect_backends(backends: Any) -> list[str | Partitioner]:
    """``backends`` as a list; OptionError unless each is a name or a partitioner, and no name is there twice."""
    if isinstance(backends, (str, bytes, Partitioner)) or not isinstance(backends, Iterable):
        raise OptionError("option-invalid", f"backends is a list of names: backends=[{backends!r}]")
    listed = list(backends)
    for backend in listed:
        if not isinstance(backend, (str, Partitioner)):
            hint = f"make one of it: {backend.__name__}(...)" if isinstance(backend, type) else None
            text = f"a backend is a name or a Partitioner, not {backend!r}"
            raise OptionError("option-invalid", text, hint=hint)
    names = [backend for backend in listed if isinstance(backend, str)]
    if len(set(names)) < len(names):
        text = f"backends names {next(n for n in names if names.count(n) > 1)!r} twice"
        hint = "name it once; to ask it again with other options, pass delegraph.get_partitioner(name, ...)"
        raise OptionError("option-invalid", text, hint=hint)
    return listed


def _named_partitioners(
    backends: Sequence[str | Partitioner], options: Mapping[str, Mapping[str, Any]], registry: Registry
) -> list[tuple[str, Partitioner]]:
    """Name and partitioner of each backend. A wrong name or option raises an error here, before any work begins."""
    for name in options:
        if name not in backends:
            text = f"options for {name!r}, which is not among the backends {list(backends)}"
            raise OptionError("option-invalid", text)
    return [
        (b, registry.get_partitioner(b, **options.get(b, {}))) if isinstance(b, str) else (type(b).__name__, b)
        for b in backends
    ]
