"""``delegraph.lower``: one call from a model to a program whose parts run on backends."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from .backend import NamedDataStoreOutput
from .delegates import DelegateDebug, delegate_map, merged_named_data
from .errors import ContractViolation, InputError, NotFullyDelegated, OptionError
from .execution import Delegates, Executable, OnMissingRuntime
from .files import write_whole
from .lowered_module import Argument, LoweredBackendModule
from .lowering.bodies import all_nodes
from .lowering.decompose import Decomposition
from .lowering.normalise import normalise
from .lowering.plan import Plan
from .lowering.random_order import random_notes
from .lowering.stage import StageResult, collection_suspended, run_stage
from .lowering.state import shared_state_notes
from .lowering.trace import TRACING
from .partitioner import Partitioner
from .registry import Registry, default_registry
from .report import DelegateRow, Origin, Reasons, Report, count_operators, host_calls, reasons_of, refusal_rows
from .signature import user_inputs, written_targets
from .verification import Verification, compare

Program = torch.nn.Module | ExportedProgram
Transform = Callable[[ExportedProgram], ExportedProgram]


@dataclass(frozen=True)
class DelegateInfo:
    """One delegate of a lowered program: its place, its border, the calls that it stands for."""

    method: str
    name: str
    module: LoweredBackendModule
    nodes: tuple[Node, ...]
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def backend_id(self) -> str:
        return self.module.backend_id

    @property
    def processed_bytes(self) -> bytes:
        """The backend's blob."""
        return self.module.processed_bytes

    @property
    def inputs(self) -> tuple[Argument, ...]:
        """Run-time inputs in calling order."""
        return self.module.inputs

    @property
    def outputs(self) -> tuple[Argument, ...]:
        """Outputs in calling order."""
        return self.module.outputs

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the blob to ``path``, whole or not at all."""
        write_whole(path, self.module.blob)


class LoweredProgram:
    """What ``lower`` returns: runs on this host, reports, verifies and saves."""

    def __init__(
        self,
        programs: dict[str, ExportedProgram],
        eager: dict[str, Program],
        delegates: list[DelegateInfo],
        report: Report,
        registry: Registry,
        on_missing_runtime: OnMissingRuntime,
    ) -> None:
        self.report, self.delegates = report, delegates
        self._programs, self._eager, self._registry = programs, eager, registry
        loaded = Delegates(registry, on_missing_runtime)
        self._methods = {m: Executable(p, loaded) for m, p in programs.items()}

    @property
    def methods(self) -> list[str]:
        """Names of the methods, in the order in which they were given."""
        return list(self._programs)

    def exported_program(self, name: str = "forward") -> ExportedProgram:
        """The program of a method, with calls of its delegates."""
        return self._programs[self._known(name)]

    @property
    def named_data(self) -> NamedDataStoreOutput:
        """The named data of all delegates of all methods, equal contents once, as one program file holds it."""
        return merged_named_data(self._programs.values())

    @property
    def delegate_map(self) -> dict[str, dict[int, DelegateDebug]]:
        """Method -> debug handle of each call of a delegate -> whose it is, and its debug handle map."""
        return {m: delegate_map(p) for m, p in self._programs.items()}

    def method(self, name: str) -> Executable:
        """A method to call with the arguments of the module that it came from."""
        return self._methods[self._known(name)]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.method(self._only())(*args, **kwargs)

    def instance(self) -> LoweredProgram:
        """The same program with buffers of its own, in their initial state: one for each thread, stream or session.

        Weights, generated code and delegates that keep no state are shared.
        """
        return self._with({m: method.instance() for m, method in self._methods.items()})

    def __deepcopy__(self, memo: dict[int, Any]) -> LoweredProgram:
        """As ``instance``, with the buffers as they are now. Raises InputError if a delegate keeps state."""
        return self._with({m: copy.deepcopy(method, memo) for m, method in self._methods.items()})

    def _with(self, methods: dict[str, Executable]) -> LoweredProgram:
        made = copy.copy(self)
        made._methods = methods
        return made

    def verify(self, *args: Any, method: str | None = None, **kwargs: Any) -> Verification:
        """Run a method here and in eager PyTorch on the same inputs, each from the initial state; figures of both.

        The model is not called while another thread lowers, since torch puts tracers in the place of its weights.
        """
        name = self._known(method or self._only())
        got = self._methods[name].instance()(*copy.deepcopy(args), **copy.deepcopy(kwargs))
        with TRACING, torch.no_grad(), _state_kept(self._eager[name], self._written(name)) as eager:
            returned = eager(*copy.deepcopy(args), **copy.deepcopy(kwargs))
            wanted = copy.deepcopy(returned)  # it may be the state itself, which is now put back
        return compare(got, wanted)

    def _written(self, name: str) -> set[str]:
        """Buffers that a method writes, itself or in its delegates."""
        kept = {target for d in self.delegates if d.method == name for target in d.module.state}
        return kept | written_targets(self._programs[name])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the program in the format of the path's suffix; a backend's own format holds one whole delegate."""
        suffix = Path(path).suffix
        if suffix == ".pte":
            hint = "save a whole delegate in its backend's own format, such as .tosa"
            raise OptionError("option-invalid", "this version does not write .pte files yet", hint=hint)
        self._whole_delegate(suffix).save(path)

    def _whole_delegate(self, suffix: str) -> DelegateInfo:
        for info in self.delegates if len(self.delegates) == 1 and not self.report.host_operators else ():
            formats = self._registry.spec(info.backend_id).formats
            if suffix in formats:
                return info
            text = f"{info.backend_id} has no {suffix or 'suffixless'} format; it writes {', '.join(formats) or 'none'}"
            raise OptionError("option-invalid", text)
        count, host = len(self.delegates), self.report.host_operators
        text = f"a {suffix} file holds one delegate and no host operator; this program has {count} and {host}"
        hint = "save each with lowered.delegates[k].save(path); the report says what stayed on the host, and why"
        raise InputError("not-fully-delegated", text, hint=hint)

    def _known(self, name: str) -> str:
        if name not in self._programs:
            raise InputError("input-invalid", f"there is no method {name!r}; methods: {self.methods}")
        return name

    def _only(self) -> str:
        if len(self._programs) > 1 and "forward" not in self._programs:
            raise InputError("input-invalid", f"name the method: lowered.method(name)(...); methods: {self.methods}")
        return "forward" if "forward" in self._programs else self.methods[0]


@contextmanager
def _state_kept(eager: Program, written: Collection[str]) -> Iterator[Callable[..., Any]]:
    """``eager`` as a callable; buffers that a call writes get their values back, also those of delegates in it."""
    module = eager.module(check_guards=False) if isinstance(eager, ExportedProgram) else eager
    kept = {k: v.detach().clone() for k, v in _named_tensors(module) if k in written}
    inside = [t for m in module.modules() if isinstance(m, LoweredBackendModule) for t in m.state_tensors()]
    before = [t.detach().clone() for t in inside]
    try:
        yield module
    finally:
        for name, tensor in _named_tensors(module):  # the model may have put another tensor in a buffer's place
            if name in kept:
                tensor.data.copy_(kept[name])
        for tensor, value in zip(inside, before, strict=True):
            tensor.data.copy_(value)


def _named_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def lower(
    program: Program | Mapping[str, Program],
    example_inputs: Any = None,
    *,
    example_kwargs: Any = None,
    dynamic_shapes: Any = None,
    backends: Sequence[str | Partitioner] = ("tosa",),
    options: Mapping[str, Mapping[str, Any]] | None = None,
    transforms: Sequence[Transform] = (),
    require_full: bool = False,
    on_missing_runtime: OnMissingRuntime = "error",
    registry: Registry | None = None,
    executor: Executor | None = None,
) -> LoweredProgram:
    """Lower a model, and say what went where and why not elsewhere.

    ``program``: an nn.Module in eval mode with ``example_inputs`` (a tuple), an ExportedProgram, or {method: either}
    (then ``example_inputs``, ``example_kwargs`` and ``dynamic_shapes`` are by method too). ``backends``: names in order
    of preference, Partitioners, or both; [] leaves everything on the host. ``options``: {backend name: {option:
    value}}. ``transforms``: functions from program to program, run on the normalised program. ``require_full`` makes
    an operator left to the host an error that lists all of them. The model is never changed, its weights never copied.
    ``executor`` (a ``concurrent.futures`` executor of threads) compiles the partitions of backends that say they are
    thread-safe side by side, to the same bytes.

    Raises a ``delegraph.errors.DelegraphError`` with a stable code.
    """
    registry = registry or default_registry()
    named = _partitioners(backends, dict(options or {}), registry)
    chosen = registry.preferring(b for b in backends if isinstance(b, str))
    seconds: dict[str, float] = {}
    sources = _by_method(program, example_inputs, example_kwargs, dynamic_shapes)
    with _timed(seconds, "export"):
        exported = {m: _export(m, *given) for m, given in sources.items()}
    with collection_suspended():
        lowering = _Lowering(exported, chosen, seconds, executor)
        lowering.normalise(transforms)
        for k, (name, partitioner) in enumerate(named):
            lowering.stage(name, partitioner, [later for _, later in named[k + 1 :]])
        lowering.finish()
        report = lowering.report(on_missing_runtime)
    if require_full and report.host_operators:
        raise _not_full(report)
    eager = {m: given[0] for m, given in sources.items()}
    result = LoweredProgram(lowering.programs, eager, lowering.delegates, report, chosen, on_missing_runtime)
    report.notes += chosen.notify("delegraph_after_lower", result)
    return result


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[phase] = seconds.get(phase, 0.0) + time.perf_counter() - start


def _partitioners(
    backends: Sequence[str | Partitioner], options: dict[str, Mapping[str, Any]], registry: Registry
) -> list[tuple[str, Partitioner]]:
    """Resolved before any work, so that a wrong name or option costs nothing."""
    if isinstance(backends, str):
        raise OptionError("option-invalid", f"backends is a list of names: backends=[{backends!r}]")
    stray = [name for name in options if name not in backends]
    if stray:
        raise OptionError(
            "option-invalid", f"options for {stray[0]!r}, which is not among the backends {list(backends)}"
        )
    return [
        (b, registry.get_partitioner(b, **options.get(b, {}))) if isinstance(b, str) else (type(b).__name__, b)
        for b in backends
    ]


def _by_method(program: Any, inputs: Any, kwargs: Any, shapes: Any) -> dict[str, tuple[Any, Any, Any, Any]]:
    """{method: (program, example inputs, example keyword arguments, dynamic shapes)}."""
    if not isinstance(program, Mapping):
        return {"forward": (program, inputs, kwargs, shapes)}
    if not program:
        raise InputError("input-invalid", "there is no method to lower")
    tables = [dict(t or {}) for t in (inputs, kwargs, shapes)]
    return {m: (p, *(t.get(m) for t in tables)) for m, p in program.items()}


def _export(method: str, program: Any, inputs: Any, kwargs: Any, shapes: Any) -> ExportedProgram:
    if isinstance(program, torch.nn.Module):
        program = _export_module(program, inputs, kwargs, shapes)
    if not isinstance(program, ExportedProgram):
        text = f"method {method}: an nn.Module or an ExportedProgram is wanted, not {type(program).__name__}"
        raise InputError("input-invalid", text)
    if not user_inputs(program):
        text = f"method {method} takes no inputs: there is nothing to compute at run time"
        raise InputError("input-invalid", text, hint="give the module an input, or compute its constant result once")
    return program


def _export_module(module: torch.nn.Module, inputs: Any, kwargs: Any, shapes: Any) -> ExportedProgram:
    training = next((name or type(module).__name__ for name, m in module.named_modules() if m.training), None)
    if training is not None:
        raise InputError(
            "training-mode", f"module {training} is in training mode", hint="call .eval() on the model first"
        )
    if inputs is None and not kwargs:
        hint = "delegraph.lower(module, (x, ...)): a tuple of tensors of the right shapes and dtypes"
        raise InputError("input-invalid", f"{type(module).__name__} is a module: example_inputs are needed", hint=hint)
    if not isinstance(inputs, tuple | None):
        raise InputError("input-invalid", f"example_inputs is a tuple of arguments, not {type(inputs).__name__}")
    try:
        with TRACING:
            return torch.export.export(module, inputs or (), kwargs, dynamic_shapes=shapes)
    except Exception as e:
        text = f"torch.export could not export {type(module).__name__}: {_first_line(e)}"
        raise InputError("export-failed", text) from e


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


def _not_full(report: Report) -> NotFullyDelegated:
    rows = "\n".join(f"  {row}" for row in report.refusals)
    count = "1 operator is" if report.host_operators == 1 else f"{report.host_operators} operators are"
    text = f"{count} left to the host:\n{rows}"
    return NotFullyDelegated("not-fully-delegated", text, hint="without require_full the host runs them")


class _Lowering:
    """The programs on their way through the stages, and what is remembered for the report."""

    def __init__(
        self,
        exported: dict[str, ExportedProgram],
        registry: Registry,
        seconds: dict[str, float],
        executor: Executor | None = None,
    ) -> None:
        self.programs, self.registry, self.seconds, self.executor = exported, registry, seconds, executor
        self.notes: list[str] = []
        self.backends: list[str] = []
        self.reasons: dict[str, Reasons] = {m: {} for m in exported}
        self.decomposition = Decomposition()
        self.delegates: list[DelegateInfo] = []

    def normalise(self, transforms: Sequence[Transform]) -> None:
        with _timed(self.seconds, "normalise"):
            for method, program in self.programs.items():
                self.programs[method] = self._normalised(method, program)
                for transform in transforms:
                    changed = _transformed(transform, self.programs[method])
                    self.programs[method] = self._normalised(method, changed)
        self.notes += shared_state_notes(self.programs)

    def _normalised(self, method: str, program: ExportedProgram) -> ExportedProgram:
        normal, notes = normalise(program)
        self.notes += [f"{method} was {text}" for text in notes]
        return normal

    def stage(self, name: str, partitioner: Partitioner, later: Sequence[Partitioner] = ()) -> None:
        def planner(method: str, program: ExportedProgram, who: Partitioner) -> Plan:
            return self.decomposition.plan(program, who, later)

        before = self.decomposition.seconds
        who = dict.fromkeys(self.programs, partitioner)
        result = run_stage(self.programs, who, self.registry, planner, self.executor)
        result.seconds["partition"] -= self.decomposition.seconds - before
        for phase, s in result.seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + s
        self.programs = result.programs
        self.backends.append(name)
        for method, plan in result.plans:
            self.reasons[method].update(reasons_of(name, plan.refusals))
        self._remember(result)
        self.notes += self.registry.notify("delegraph_after_partition", self.report("error"))

    def finish(self) -> None:
        """What no backend took reaches core ATen."""
        self.programs = {m: self.decomposition.finish(p) for m, p in self.programs.items()}
        self.seconds["decompose"] = self.decomposition.seconds
        self.notes += self.decomposition.notes
        self.notes += random_notes(self.programs, ((d.method, d.name, d.nodes) for d in self.delegates))

    def _remember(self, result: StageResult) -> None:
        places = {child: name for p in result.programs.values() for name, child in p.graph_module.named_modules()}
        for work in result.work:
            nodes = tuple(work.partition.nodes)
            self.delegates.append(DelegateInfo(work.method, places[work.module], work.module, nodes, work.seconds))

    def report(self, on_missing_runtime: OnMissingRuntime) -> Report:
        origin = Origin(self.programs, self.delegates, self.reasons, self.backends)
        report = Report(notes=list(self.notes), seconds=self.seconds, origin=origin)
        report.delegates = [self._row(d) for d in self.delegates]
        for method, program in self.programs.items():
            left = host_calls(all_nodes(program.graph_module))
            report.host[method] = count_operators(left)
            report.refusals += refusal_rows(method, left, self.reasons[method], self.backends)
        if on_missing_runtime == "eager":
            report.notes.append("delegates of backends without a runtime run in eager PyTorch on this host")
        return report

    def _row(self, info: DelegateInfo) -> DelegateRow:
        module = info.module
        facts = module.meta.get("_delegate_info_meta")
        return DelegateRow(
            method=info.method,
            name=info.name,
            backend=self.registry.spec(module.backend_id).name,
            producer=" ".join(filter(None, self.registry.producer(module.backend_id))),
            operators=count_operators(info.nodes),
            inputs=module.inputs,
            outputs=module.outputs,
            bytes=len(module.blob),
            facts={str(k): str(v) for k, v in facts.items()} if isinstance(facts, Mapping) else {},
            seconds=dict(info.seconds),
        )


def _transformed(transform: Transform, program: ExportedProgram) -> ExportedProgram:
    changed = transform(program)
    if not isinstance(changed, ExportedProgram):
        name = getattr(transform, "__name__", type(transform).__name__)
        text = f"transform {name} returned {type(changed).__name__}, not an ExportedProgram"
        raise ContractViolation("contract-violation", text)
    return changed
