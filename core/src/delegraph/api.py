"""``delegraph.lower``, which lowers a model; ``delegraph.export``, which only exports
it; and ``delegraph.load``, which reads a saved program.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar

from delegraph_programs import TRACING
from delegraph_programs.type_aliases import ExampleInputs, Program, Transform
from torch.export import ExportedProgram

from .discovery.nearest_name import suggestion
from .discovery.registry import Registry, default_registry
from .engine.compiler_interface import Compiler
from .engine.export import export_method, sources_by_method
from .engine.pipeline import (
    Journal,
    Settings,
    Turn,
    export_programs,
    lower_exported,
)
from .engine.serial_compiler import CACHE_VARIABLES, Serial
from .errors import OptionError, PluginUnavailable
from .host.files import FileFormat, LoadedProgram
from .lowered_program import LoweredProgram
from .partitioner import Partitioner
from .plugin import ModelSpec

if TYPE_CHECKING:
    from .command.load_model import GivenModel


Given = ParamSpec("Given")
Returned = TypeVar("Returned")


def _suggesting_arguments(
    function: Callable[Given, Returned],
) -> Callable[Given, Returned]:
    """Return ``function`` with a check of its keyword arguments. For an unknown one,
    such as ``backend=``, a TypeError suggests the nearest name, ``backends``.
    """
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
        for name in kwargs:
            if name not in known:
                raise TypeError(
                    f"delegraph.{function.__name__} has no argument"
                    f" {name!r}{suggestion(name, known)}"
                )
        return function(*args, **kwargs)

    return call


class Choices(TypedDict, total=False):
    """The arguments of ``lower`` that do not depend on the program."""

    backends: Sequence[str | Partitioner] | None
    options: Mapping[str, Mapping[str, Any]] | None
    transforms: Sequence[Transform]
    require_full: bool
    registry: Registry | None
    compiler: Compiler | None


@_suggesting_arguments
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
    registry: Registry | None = None,
    compiler: Compiler | None = None,
) -> LoweredProgram:
    """Lower a model for backends. The result's ``report`` lists the operators of each
    backend, and the reasons for the operators on the host.

    ``program``: an nn.Module in eval mode with ``example_inputs`` (a tuple, or a single
    tensor); an ExportedProgram; or an object of a type that a plugin reads
    (``ModelSpec``). For several methods, a mapping from method names to modules or
    ExportedPrograms; then ``example_inputs``, ``example_kwargs`` and
    ``dynamic_shapes`` are mappings from method names, too.

    ``backends``: a list of names and Partitioners, in order of preference; [] leaves
    everything on the host. None: the backends for which ``options`` are given; without
    options, the only usable backend, or the one that is declared as the default. The
    report then names these backends. ``options``: {backend name: {option: value}}.

    ``transforms``: functions from program to program, called with the normalized
    program. ``require_full``: raise NotFullyDelegated, which lists the operators, if
    any is left to the host. ``registry``: the plugins; None: those that are installed.

    ``compiler``: compiles the partitions, such as
    ``delegraph_workers.Compiler(cache=..., isolation="process")``. None: the installed
    default compiler, if the environment variable ``DELEGRAPH_CACHE`` is set or a backend
    needs isolation. Otherwise partitions are compiled in this process, one after the
    other.

    If a backend refuses a call that has only constant operands, ``lower`` computes the
    call itself, unless the result has more than 16 MiB. A number that the model reads
    from a constant (``.item()``) becomes a literal.

    The model is not changed, and its weights are not copied. Errors are
    ``delegraph.errors.DelegraphError`` with stable codes.
    """
    registry = registry or default_registry()
    options = options or {}
    _expect_choices(options, transforms, compiler)
    why_these_backends = None
    if backends is None:
        backends, why_these_backends = registry.default_backends(options)
    backends = _expect_backends(backends)
    names = [b for b in backends if isinstance(b, str)]
    # A program stores only ids of backends. If several backends have the same id, this
    # registry finds the one that the user named, such as ``acme/npu``.
    registry_of_names = registry.preferring(names)
    why_not_cached = None
    if compiler is None:
        compiler, why_not_cached = _default_compiler(registry_of_names)
    with compiler.session(registry_of_names, names) as session:
        partitioners = _named_partitioners(backends, options, registry)
        model = None
        # objects that a plugin reads come with their own example inputs
        if example_inputs is None:
            model = _model_of_plugin(program, registry)
        if model is not None:
            program = model.programs
            transforms = (*model.transforms, *transforms)
            example_inputs = model.inputs
            example_kwargs = model.kwargs
            dynamic_shapes = model.dynamic_shapes
        # method -> program, with its inputs if it must be exported
        sources = sources_by_method(
            program, example_inputs, example_kwargs, dynamic_shapes
        )
        # The report may call a partitioner again only if it was made here, from a name.
        turns = [
            Turn(
                name,
                dict.fromkeys(sources, partitioner),
                may_repeat=isinstance(given, str),
            )
            for given, (name, partitioner) in zip(backends, partitioners, strict=True)
        ]
        settings = Settings(
            registry_of_names,
            session,
            turns,
            transforms=dict.fromkeys(sources, transforms),
            has_report=True,
        )
        journal = Journal()
        lowered = lower_exported(export_programs(sources, journal), settings, journal)
    report = lowered.report
    report.notes += filter(None, (why_not_cached, why_these_backends))
    if require_full:
        report.expect_full()
    # the programs before lowering
    eager = {method: source.program for method, source in sources.items()}
    return LoweredProgram(
        lowered.programs,
        eager,
        lowered.delegates,
        report,
        registry_of_names,
        lowered.changed,
    )


@_suggesting_arguments
def export(
    program: Program | Mapping[str, Program],
    example_inputs: ExampleInputs = None,
    *,
    example_kwargs: Any = None,
    dynamic_shapes: Any = None,
) -> dict[str, ExportedProgram]:
    """Export a model as ``lower`` does. Returns method -> ExportedProgram, with the key
    "forward" for a single model.

    The arguments are those of ``lower``; the result can be passed to ``lower``. Raises
    InputError for arguments that cannot be lowered, and DelegraphError if
    ``torch.export`` fails.
    """
    sources = sources_by_method(program, example_inputs, example_kwargs, dynamic_shapes)
    return {method: export_method(method, source) for method, source in sources.items()}


@_suggesting_arguments
def load(
    path: str | os.PathLike[str],
    registry: Registry | None = None,
    *,
    runtime: str | None = None,
    max_memory: int | None = None,
    max_iterations: int | None = None,
    allow_native: bool = True,
) -> LoadedProgram:
    """Read a saved program. Call the result, or its methods, like the program that was
    saved.

    The path's suffix chooses the format. The program of a file of a single delegate,
    such as ``.tosa``, is called with the tensors of ``forward``, one by one and in the
    same order. It returns a flat tuple.

    ``runtime``: a runtime that executes the whole file, such as ``"executorch"`` for
    ``.pte``. None: each delegate runs in its backend's runtime, which loads the blob at
    the first call. ``max_memory`` (in bytes) and ``max_iterations`` (of all loops of a
    call): limits for files that are not trusted; None: the limits of the format
    (``.pte``: 8 GiB and 100000). ``allow_native=False``: raise InputError if the blob of
    a delegate is native code, or is input of a compiler in this process (SECURITY.md).
    The result's ``native_blobs`` names the backends of such delegates.

    Raises FormatNotFound if no plugin declares the format, OptionError if the format
    cannot be read or has no such limit, FormatError for a damaged file, NoRuntime if a
    runtime is missing.
    """
    # a lock, because a format may trace with torch or call torch.export.load
    with TRACING:
        return FileFormat(path, registry or default_registry()).load(
            runtime,
            allow_native=allow_native,
            max_memory=max_memory,
            max_iterations=max_iterations,
        )


def _model_of_plugin(program: Any, registry: Registry) -> GivenModel | None:
    """Return the model that a plugin reads from ``program``; None if no plugin declares
    its type (``ModelSpec.types``).

    None also for an ExportedProgram or a mapping, which ``lower`` takes without a
    plugin.
    """
    if isinstance(program, (ExportedProgram, Mapping)):
        return None
    types = set()
    for kind in type(program).__mro__:
        types.add(f"{kind.__module__}:{kind.__qualname__}")
        # a plugin may name the top-level package, from which users import the class
        types.add(f"{kind.__module__.partition('.')[0]}:{kind.__qualname__}")
    for spec, _ in registry.declared(ModelSpec):
        if not types.isdisjoint(spec.types):
            from .command.load_model import read_by_plugin

            return read_by_plugin(spec, program, spec.title, registry)
    return None


def _default_compiler(registry: Registry) -> tuple[Compiler, str | None]:
    """Return the compiler for a call of ``lower`` without ``compiler``, and a note for
    the report or None.

    If an environment variable in ``CACHE_VARIABLES`` is set, the user wants a cache.
    Then return the installed default compiler, which has a cache. If no compiler is
    installed, or no cache is wanted, return ``Serial``, which has no cache. The note is
    the reason why a wanted cache is missing.
    """
    wanted = next((name for name in CACHE_VARIABLES if os.environ.get(name)), None)
    if wanted is None:
        return Serial(), None
    try:
        return registry.default_compiler(f"the cache of {wanted}"), None
    except PluginUnavailable as e:
        return Serial(), f"{e.message}: {e.hint}"


def _expect_choices(options: Any, transforms: Any, compiler: Any) -> None:
    """Raise OptionError for arguments of ``lower`` of a wrong type or value."""
    tables = [options]
    if isinstance(options, Mapping):
        tables += options.values()  # a mapping for each backend
    for table in tables:
        if not isinstance(table, Mapping) or not all(
            isinstance(key, str) for key in table
        ):
            raise OptionError(
                "option-invalid",
                f"options is {{backend name: {{option: value}}}}, not {options!r}",
            )
    if not isinstance(transforms, Sequence) or not all(map(callable, transforms)):
        raise OptionError(
            "option-invalid", f"transforms is a list of functions, not {transforms!r}"
        )
    has_sessions = callable(getattr(compiler, "session", None))
    # a class: the user forgot to make an object of it
    is_class = isinstance(compiler, type)
    if compiler is not None and (is_class or not has_sessions):
        text = (
            "compiler is an object with a method session, or None, not"
            f" {compiler!r:.80}"
        )
        hint = "for example delegraph_workers.Compiler(isolation='process')"
        raise OptionError("option-invalid", text, hint=hint)


def _expect_backends(backends: Any) -> list[str | Partitioner]:
    """Return ``backends`` as a list. Raises OptionError if one of them is neither a name
    nor a Partitioner, or if a name occurs twice.
    """
    if isinstance(backends, (str, bytes, Partitioner)) or not isinstance(
        backends, Iterable
    ):
        raise OptionError(
            "option-invalid", f"backends is a list of names: backends=[{backends!r}]"
        )
    listed = list(backends)
    for backend in listed:
        if not isinstance(backend, (str, Partitioner)):
            hint = None
            if isinstance(backend, type):
                hint = f"make an object of the class: {backend.__name__}(...)"
            raise OptionError(
                "option-invalid",
                f"a backend is a name or a Partitioner, not {backend!r}",
                hint=hint,
            )
    names = [backend for backend in listed if isinstance(backend, str)]
    for name in names:
        if names.count(name) > 1:
            hint = (
                "name it once; to use it again with other options, pass"
                " delegraph.get_partitioner(name, ...)"
            )
            raise OptionError(
                "option-invalid", f"backends names {name!r} twice", hint=hint
            )
    return listed


def _named_partitioners(
    backends: Sequence[str | Partitioner],
    options: Mapping[str, Mapping[str, Any]],
    registry: Registry,
) -> list[tuple[str, Partitioner]]:
    """Return (name, partitioner) for each of ``backends``, in their order. For a
    Partitioner that the user passed, the name is that of its class.

    Raises OptionError for options of a name that is not in ``backends``, and the errors
    of ``Registry.get_partitioner``.
    """
    for name in options:
        if name not in backends:
            raise OptionError(
                "option-invalid",
                f"options for {name!r}, which is not among the backends"
                f" {list(backends)}",
            )
    named: list[tuple[str, Partitioner]] = []
    for backend in backends:
        if isinstance(backend, str):
            named.append(
                (backend, registry.get_partitioner(backend, **options.get(backend, {})))
            )
        else:
            named.append((type(backend).__name__, backend))
    return named
