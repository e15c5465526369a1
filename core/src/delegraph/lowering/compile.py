"""Step 5: partitions to backends, and what they return checked."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from ..backend import BackendDetails, Blob, CompileSpec, PreprocessResult
from ..errors import ContractViolation, OptionError
from ..signature import MUTATIONS, constant_tensor, output_values
from .extract import extract
from .plan import fingerprint, unchanged

if TYPE_CHECKING:
    from ..registry import Registry
    from .stage import Work

Results = dict[int, PreprocessResult]
"""id of a Work -> its result."""
Task = tuple[type[BackendDetails], "list[Work]"]


def compile_all(work: Sequence[Work], registry: Registry, executor: Executor | None = None) -> list[PreprocessResult]:
    """The results of ``work``, in its order; backends in the order in which they first appear.

    A backend that compiles all methods jointly is called once; any other once a partition. Those that say they are
    thread-safe are called in ``executor``, if there is one, all others on this thread.
    """
    _check_executor(executor)
    wanted = dict.fromkeys(w.partition.spec.backend_id for w in work)
    tasks = [task for backend_id in wanted for task in _tasks(backend_id, work, registry)]
    found: Results = {}
    for made in _run(tasks, executor):
        found.update(made)
    return [found[id(w)] for w in work]


def _check_executor(executor: Any) -> None:
    if executor is not None and (not isinstance(executor, Executor) or isinstance(executor, ProcessPoolExecutor)):
        hint = "for example concurrent.futures.ThreadPoolExecutor(4)"
        raise OptionError("option-invalid", f"executor is to run threads; it is a {type(executor).__name__}", hint=hint)


def _tasks(backend_id: str, work: Sequence[Work], registry: Registry) -> list[Task]:
    """What to call a backend with: all that is its at once if it has a joint step, otherwise one by one."""
    backend = registry.get_backend(backend_id)
    mine = [w for w in work if w.partition.spec.backend_id == backend_id]
    for item in mine:
        item.module.backend_id = backend.__name__
    default: Any = BackendDetails.preprocess_multimethod
    joint = getattr(backend.preprocess_multimethod, "__func__", None) is not default.__func__
    return [(backend, mine)] if joint else [(backend, [item]) for item in mine]


def _run(tasks: Sequence[Task], executor: Executor | None) -> list[Results]:
    """The first error, in the order of ``tasks``, is raised once nothing runs any more."""
    side = {k: executor.submit(_compile, *t) for k, t in enumerate(tasks) if t[0].thread_safe} if executor else {}
    try:
        here = {k: _compile(*task) for k, task in enumerate(tasks) if k not in side}
        return [side[k].result() if k in side else here[k] for k in range(len(tasks))]
    finally:
        _quiet(side.values())


def _quiet(futures: Iterable[Future[Results]]) -> None:
    """Cancel what has not begun, and wait for the rest."""
    wait([future for future in futures if not future.cancel()])


def _compile(backend: type[BackendDetails], work: Sequence[Work]) -> Results:
    methods = dict.fromkeys(w.method for w in work)
    listed = [w for m in methods for w in work if w.method == m]
    before = [(fingerprint(w.program), _versions(w.program)) for w in listed]
    start = time.perf_counter()
    results = _checked(backend, methods, listed)
    share = (time.perf_counter() - start) / len(work)
    for item in work:
        item.seconds["preprocess"] = share
    _check_untouched(backend.__name__, listed, before)
    return {id(w): r for w, r in zip(listed, results, strict=True)}


def _checked(backend: type[BackendDetails], methods: Iterable[str], work: Sequence[Work]) -> list[PreprocessResult]:
    programs = {m: [w.program for w in work if w.method == m] for m in methods}
    specs: dict[str, Sequence[list[CompileSpec]]] = {
        m: [list(w.partition.spec.compile_specs) for w in work if w.method == m] for m in methods
    }
    results = backend.preprocess_multimethod(programs, specs)
    _check_results(backend.__name__, programs, results)
    return [r for m in methods for r in results[m]]


def _versions(program: ExportedProgram) -> list[int]:
    specs = program.graph_signature.input_specs
    return [constant_tensor(program, s)._version for s in specs if s.target is not None]


def _check_results(backend: str, programs: Mapping[str, Sequence[Any]], results: Any) -> None:
    """The contract of ``preprocess_multimethod``: the same methods, as many results, each a PreprocessResult."""
    given = {m: len(r) for m, r in results.items()} if isinstance(results, Mapping) else results
    wanted = {m: len(p) for m, p in programs.items()}
    if given != wanted:
        text = f"{backend}.preprocess_multimethod returned {given} results a method; it was given {wanted} programs"
        raise ContractViolation("contract-violation", text)
    for result in (r for listed in results.values() for r in listed):
        if not isinstance(result, PreprocessResult) or not isinstance(result.processed_bytes, (bytes, Blob)):
            text = f"{backend}.preprocess returned {result!r:.80}; a PreprocessResult with bytes (or a Blob) is wanted"
            raise ContractViolation("contract-violation", text)


def _check_untouched(backend: str, work: Sequence[Work], before: Sequence[tuple[Any, list[int]]]) -> None:
    """A backend may rewrite the graph that it was given (the host then gets its own), but not what others rely on.

    That is the caller's weights, and the inputs and outputs that the delegate is called with.
    """
    for item, (graph, versions) in zip(work, before, strict=True):
        if _versions(item.program) != versions:
            text = f"{backend}.preprocess changed weights of partition {item.partition.tag}, which are the caller's"
            raise ContractViolation("contract-violation", text)
        if not unchanged(item.program, graph):
            _check_convention(backend, item)
            item.module.original_module = extract(item.plan, item.partition)


def _check_convention(backend: str, item: Work) -> None:
    """A program that lost, swapped or gained inputs or outputs was compiled to something that is called differently."""
    inputs = [a.name for a in item.module.inputs]
    kept = [n.name for n in item.program.graph.nodes if n.op == "placeholder" and n.name in inputs]
    outputs = [_described(a.dtype, a.shape) for a in item.module.outputs]
    specs = item.program.graph_signature.output_specs
    values = [v for s, v in zip(specs, output_values(item.program), strict=False) if s.kind not in MUTATIONS]
    known = [*outputs, *["?"] * len(values)]
    made = [_type_of(v) or w for v, w in zip(values, known, strict=False)]
    for what, wanted, found in (("inputs", inputs, kept), ("outputs", outputs, made)):
        if wanted != found:
            text = (
                f"{backend}.preprocess changed how partition {item.partition.tag} is called: its {what} are {wanted}, "
            )
            hint = "an input that the compiled part does not need is still passed; ignore it there"
            raise ContractViolation("contract-violation", text + f"and {found} in the program that it left", hint=hint)


def _type_of(value: Any) -> str | None:
    """None for a value without a type, which a backend's own pass may have made."""
    val = value.meta.get("val", value) if isinstance(value, Node) else value
    if isinstance(val, Node):
        return None
    return _described(val.dtype, tuple(val.shape)) if isinstance(val, torch.Tensor) else _described(None, None)


def _described(dtype: torch.dtype | None, shape: Any) -> str:
    return "number" if dtype is None else f"{str(dtype).removeprefix('torch.')}{list(shape)}"
