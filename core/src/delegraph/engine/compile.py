"""The step ``compile``: backends get their programs, and what they return is checked."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torch.export import ExportedProgram
from torch.fx import Node

from ..backend import BackendDetails, CompileSpec, PreprocessResult
from ..delegates.lowered_module import Argument
from ..discovery.attribution import AtWork
from ..errors import ContractViolation, DelegraphError, OptionError, Unsupported
from ..exported.subgraphs import all_nodes
from ..exported.tracing import TRACING
from ..exported.work import Form, canonical, write
from ..exported_program import MUTATIONS, output_values, user_inputs
from ..io.blob import is_blob
from ..named_data import check_output
from ..source import source_of
from .cache import Cache, key_of
from .extract import extract
from .partition import NotCompiled
from .snapshot import Snapshot

if TYPE_CHECKING:
    from ..discovery.registry import Registry
    from .partition import Work

LOG = logging.getLogger("delegraph.progress")
_MOMENT = 0.05
"""How many seconds an executor has to begin a call.

After that, if none of its calls runs, this thread makes the call.
"""


class _Call:
    """One call of a backend. A thread of the executor or the thread that lowers makes it: whichever begins it first."""

    def __init__(
        self,
        backend: type[BackendDetails],
        work: Sequence[Work],
        registry: Registry,
        may_refuse: bool,
        cache: Cache | None,
    ) -> None:
        self.backend, self._work, self._registry, self._may_refuse = backend, work, registry, may_refuse
        self._cache = cache
        self._first = threading.Lock()
        self.outcome: Future[None] = Future()
        self.place = ""

    @property
    def begun(self) -> bool:
        """Whether some thread has begun the call; the lock is taken then, and never given back."""
        return self._first.locked()

    def begin(self) -> None:
        """Make the call, unless another thread has begun it."""
        if not self._first.acquire(blocking=False):
            return
        LOG.info(self.place)
        try:
            if self._cache is None:
                _compile(self.backend, self._work, self._registry, self._may_refuse)
            else:
                _compile_cached(self.backend, self._work[0], self._registry, self._may_refuse, self._cache)
            self.outcome.set_result(None)
        except BaseException as e:  # the caller gets it with the outcome
            self.outcome.set_exception(e)

    def counted(self, first: int, total: int) -> tuple[str, int]:
        """What the call compiles, for who waits: ``partition 3 of 28, xnnpack``; and the number after its last."""
        after = first + len(self._work)
        name = self._registry.spec(self._work[0].partition.spec.backend_id).name
        numbers = f"partition {first}" if after == first + 1 else f"partitions {first} to {after - 1}"
        return f"{numbers} of {total}, {name}", after

    def drop(self) -> bool:
        """Keep every thread from beginning the call; False if one has begun it."""
        return self._first.acquire(blocking=False) and self.outcome.cancel()

    def submit(self, executor: Executor) -> None:
        """Let the executor make the call. Raises OptionError, here or as the outcome, if it cannot in this process."""
        try:
            executor.submit(self.begin).add_done_callback(partial(self._finished_by_executor, executor))
        except Exception as e:
            raise _no_threads(executor, e) from e

    def _finished_by_executor(self, executor: Executor, future: Future[None]) -> None:
        """The executor says that it is done with the call: fail if it has never begun it.

        A call that the executor cancelled is left to the thread that lowers.
        """
        if not future.cancelled() and self._first.acquire(blocking=False):
            self.outcome.set_exception(_no_threads(executor, future.exception()))

    def __reduce__(self) -> Any:
        """Refuse to be pickled, as an executor of processes would do to send the call to another one."""
        raise TypeError("partitions are compiled in this process and interpreter, and cannot be sent to another")


def compile_all(
    work: Sequence[Work],
    registry: Registry,
    executor: Executor | None = None,
    may_refuse: bool = False,
    cache: Cache | None = None,
) -> None:
    """Hand each program of ``work`` to its backend, and keep what the backend returns as the ``result`` of that work.

    Backends are called in the order in which they first appear: once if they compile all methods jointly, else once for
    each partition. Backends that say they are thread-safe are called in ``executor``, if there is one; all others on
    this thread, while no other thread lowers. If the executor cannot begin a call, because its threads all wait for
    this one, the call is made here.

    ``cache``: a partition whose result it has is not compiled; the others' results go into it.

    ``may_refuse``: if a backend raises Unsupported for a partition, that is noted as ``not_compiled`` of its work, and
    the other calls go on.
    """
    if not isinstance(executor, Executor | None):
        raise _no_threads(executor, None)
    wanted = dict.fromkeys(w.partition.spec.backend_id for w in work)
    calls = [call for backend_id in wanted for call in _calls(backend_id, work, registry, may_refuse, cache)]
    aside: list[_Call] = []
    first = 1
    for call in calls:
        call.place, first = call.counted(first, len(work))
    try:
        if executor is not None:
            aside = [c for c in calls if c.backend.thread_safe]
            for call in aside:
                call.submit(executor)
        for call in (c for c in calls if c not in aside):
            call.begin()
            call.outcome.result()
        for call in aside:
            _await(call, aside)
    finally:  # before the first error is raised, calls that run have to end, and the others must not begin
        wait([call.outcome for call in calls if not call.drop()])


def _no_threads(executor: Any, why: BaseException | None) -> OptionError:
    """The error for something that is no executor of threads."""
    reason = "" if why is None else f", which cannot run calls of this process: {type(why).__name__}: {why}"
    hint = "for example concurrent.futures.ThreadPoolExecutor(4)"
    text = f"executor is to run threads; it is a {type(executor).__name__}{reason}"
    return OptionError("option-invalid", text, hint=hint)


def _calls(
    backend_id: str, work: Sequence[Work], registry: Registry, may_refuse: bool, cache: Cache | None
) -> list[_Call]:
    """One call with all partitions of the backend if it compiles methods jointly, otherwise one for each partition."""
    backend = registry.get_backend(backend_id)
    mine = [w for w in work if w.partition.spec.backend_id == backend_id]
    for item in mine:
        item.module.belongs_to(backend.__name__)
    default: Any = BackendDetails.preprocess_multimethod
    joint = getattr(backend.preprocess_multimethod, "__func__", None) is not default.__func__
    if joint and cache is not None:
        cache.say(f"{backend.__name__} compiles its partitions jointly: nothing of it is cached")
    cache = None if joint else cache
    parts = [mine] if joint else [[item] for item in mine]
    return [_Call(backend, items, registry, may_refuse, cache) for items in parts]


def _await(call: _Call, others: Sequence[_Call]) -> None:
    """Wait for ``call``. If after a moment the executor runs none of ``others``, make the call on this thread.

    ``others`` are all calls that were given to the executor.
    """
    while not call.outcome.done():
        running = [c.outcome for c in others if c.begun and not c.outcome.done()]
        wait(running or [call.outcome], None if running else _MOMENT, FIRST_COMPLETED)
        if not running and not any(c.begun and not c.outcome.done() for c in others):
            call.begin()
    call.outcome.result()


def _compile(backend: type[BackendDetails], work: Sequence[Work], registry: Registry, may_refuse: bool) -> None:
    """Call the backend with the programs of ``work``, check what it did and returned, and note the results.

    If it raises Unsupported and ``may_refuse``, the reason is noted instead, and it is called again with the other
    programs.
    """
    by_method = {m: [w for w in work if w.method == m] for m in dict.fromkeys(w.method for w in work)}
    work = [item for items in by_method.values() for item in items]
    before = [(Snapshot(w.program, w.plan.snapshot), _handles(w.program)) for w in work]
    programs = {m: [w.program for w in items] for m, items in by_method.items()}
    specs: dict[str, Sequence[list[CompileSpec]]] = {
        m: [list(w.partition.spec.compile_specs) for w in items] for m, items in by_method.items()
    }
    places = ", ".join(f"partition {w.partition.tag} of method {w.method}" for w in work)
    nodes = [n for w in work for n in w.partition.nodes]
    try:
        with nullcontext() if backend.thread_safe else TRACING:
            start = time.perf_counter()
            with AtWork(backend, "preprocess", places, nodes, registry):
                returned = backend.preprocess_multimethod(programs, specs)
            # seconds for each partition; a joint call cannot be told apart
            share = (time.perf_counter() - start) / len(work)
    except Unsupported as refusal:
        if not may_refuse:
            raise
        for item, (snapshot, _) in zip(work, before, strict=True):
            _check_others(backend.__name__, item, snapshot)
        again = _note_refusal(work, refusal)
        if again:
            for item in again:  # the call that failed may have rewritten its programs
                item.program = extract(item.method, item.plan, item.partition)
                item.module.restore(item.program)
            _compile(backend, again, registry, may_refuse)
        return
    results = _flat_results(backend.__name__, programs, returned)
    for item, (snapshot, handles), result in zip(work, before, results, strict=True):
        _check_result(backend.__name__, item.partition.tag, handles, result)
        _check_untouched(backend.__name__, item, snapshot)
        item.result, item.seconds["compile"] = result, share


def _compile_cached(
    backend: type[BackendDetails], item: Work, registry: Registry, may_refuse: bool, cache: Cache
) -> None:
    """As ``_compile`` of one partition, whose result comes from the cache if that has it, and goes into it if not.

    A hit has to give what a compile would give. So what is compiled for the cache is the canonical program, which is
    the same for all that have the key, and only the handles of the debug map become this program's again. A backend
    that keeps names compiles the program as it is, and names are in its keys.
    """
    start, name, specs = time.perf_counter(), backend.__name__, list(item.partition.spec.compile_specs)
    place = f"partition {item.partition.tag} of method {item.method}"
    with AtWork(backend, "fingerprint", place, item.partition.nodes, registry):
        fingerprint = backend.fingerprint(list(specs))
    if fingerprint is None:
        cache.say(f"{name} gives no fingerprint for its compile specs: nothing that has them is cached")
        return _compile(backend, [item], registry, may_refuse)
    try:
        form = write(item.program)
    except Unsupported as e:
        cache.say(f"{place} is not cached: {e.message}")
        return _compile(backend, [item], registry, may_refuse)
    key = key_of(form, backend, specs, registry.producer(item.partition.spec.backend_id), fingerprint)
    own = form.handles
    behind = max(own, default=0) - len(own)  # those of calls that a backend made follow those of the program
    numbers = {k: own[k - 1] if k <= len(own) else k + behind for k in range(1, 2 * len(own) + 1)}
    result = cache.get(key, form)
    if result is None and backend.keeps_names:
        _compile(backend, [item], registry, may_refuse)
        if item.result is not None:
            handles = _other_handles(item.result.debug_handle_map, {handle: k for k, handle in numbers.items()})
            cache.put(key, form, replace(item.result, debug_handle_map=handles))
        return None
    if result is None:
        result = _compile_canonical(backend, item, form, numbers, registry)
        if result is None:
            return _compile(backend, [item], registry, may_refuse)
        cache.put(key, form, result)
    _check_result(name, item.partition.tag, numbers, result)
    item.result = replace(result, debug_handle_map=_other_handles(result.debug_handle_map, numbers))
    item.seconds["compile"] = time.perf_counter() - start
    return None


def _compile_canonical(
    backend: type[BackendDetails], item: Work, form: Form, numbers: Mapping[int, int], registry: Registry
) -> PreprocessResult | None:
    """What the backend makes of the canonical program; its handles are the keys of ``numbers``.

    None if it fails: the partition is then compiled as the user wrote it, so that the error has the user's names.
    """
    program, name, tag = canonical(form), backend.__name__, item.partition.tag
    given, before, inputs = replace(item, program=program), Snapshot(program), user_inputs(program)
    names = [node.name for node in inputs]
    place = f"partition {tag} of method {item.method}"
    try:
        with (
            nullcontext() if backend.thread_safe else TRACING,
            AtWork(backend, "preprocess", place, item.partition.nodes, registry),
        ):
            result = backend.preprocess(program, list(item.partition.spec.compile_specs))
    except DelegraphError:
        return None
    _check_result(name, tag, numbers, result)
    _check_others(name, given, before)
    if before.is_rewritten():
        _check_convention(name, given, names)
    return result


def _other_handles(handles: Any, numbers: Mapping[int, int]) -> Any:
    """A debug map with other numbers for handles."""
    return handles and {key: tuple(sorted(numbers[handle] for handle in listed)) for key, listed in handles.items()}


def _note_refusal(work: Sequence[Work], refusal: Unsupported) -> list[Work]:
    """Note in the work why a backend refused it; returns the work that the refusal is not about.

    It is about the program that contains ``refusal.node``, or about all of ``work`` if it names no node.
    """
    node: Any = refusal.node if isinstance(refusal.node, Node) else None
    about = [w for w in work if node is not None and any(n is node for n in all_nodes(w.program.graph_module))] or work
    for item in about:
        # not the error itself: its traceback would keep the program alive for as long as the report
        source = refusal.source or (node is not None and source_of(node)) or None
        item.not_compiled = NotCompiled(refusal.message, refusal.hint or "", source)
    return [w for w in work if w.not_compiled is None]


def _handles(program: ExportedProgram) -> set[int]:
    """The debug handles that a backend may name: those of the program's calls.

    A backend that lowers its program through another one meets calls of delegates as well; their handles follow.
    """
    own = {n.meta["debug_handle"] for n in all_nodes(program.graph_module) if "debug_handle" in n.meta}
    following = 1 + max(own, default=0)
    return own | set(range(following, following + len(own)))


def _flat_results(backend: str, programs: Mapping[str, Sequence[Any]], returned: Any) -> list[Any]:
    """What ``preprocess_multimethod`` returned, as one list in the order of ``programs``.

    Raises ContractViolation unless there are as many results for each method as there are programs.
    """
    wanted = {m: len(p) for m, p in programs.items()}
    given: Any = f"{returned!r:.80}"
    if isinstance(returned, Mapping):
        given = {m: len(r) if isinstance(r, (list, tuple)) else type(r).__name__ for m, r in returned.items()}
    if given != wanted:
        text = f"{backend}.preprocess_multimethod returned {given} results a method; it was given {wanted} programs"
        raise ContractViolation("contract-violation", text)
    return [result for method in programs for result in returned[method]]


def _check_result(backend: str, tag: str, handles: Collection[int], result: Any) -> None:
    """Raise ContractViolation unless ``result`` is a PreprocessResult with fields of the right types.

    Debug handles in it have to be among ``handles``.
    """
    data = getattr(result, "processed_bytes", None)
    what, wanted, hint = "", "a PreprocessResult with bytes (or a Blob) is wanted", None
    if not isinstance(result, PreprocessResult):
        what = f"{result!r:.80}"
    elif not isinstance(data, bytes) and not is_blob(data):
        what = type(data).__name__
    elif why := _why_not_debug_map(result.debug_handle_map, handles):
        what, wanted = f"a debug_handle_map {why}", "it maps identifiers, int or str, to tuples of handles"
    elif why := _why_not_told(result):
        what, wanted = (
            why,
            "facts have names; figures are numbers below 2**63 by name, for identifiers of debug_handle_map",
        )
    elif result.data_store_output is not None:
        try:
            check_output(result.data_store_output)
        except ContractViolation as e:
            what, wanted, hint = "unusable named data", e.message, e.hint
    if what:
        text = f"{backend}.preprocess returned {what} for partition {tag}; {wanted}"
        raise ContractViolation("contract-violation", text, hint=hint)


def _why_not_debug_map(given: Any, handles: Collection[int]) -> str | None:
    """What is wrong with a ``debug_handle_map``; None if nothing is."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        return f"that is a {type(given).__name__}"
    for identifier, listed in given.items():
        if isinstance(identifier, bool) or not isinstance(identifier, (int, str)):
            return f"with the identifier {identifier!r:.80}"
        if not isinstance(listed, (tuple, list)):
            return f"with {listed!r:.80} for {identifier!r:.80}"
        unknown = [handle for handle in listed if handle not in handles]
        if unknown:
            return f"with debug handle {unknown[0]!r:.80} for {identifier!r:.80}, which no node of the partition has"
    return None


def _why_not_told(result: PreprocessResult) -> str | None:
    """What is wrong with facts and figures, which end up in files that are read by others."""
    tables = {"facts": result.facts, "figures": result.figures}
    for name, table in tables.items():
        if not isinstance(table, Mapping):
            return f"{name} that are a {type(table).__name__}"
    for identifier, amounts in result.figures.items():
        if identifier not in (result.debug_handle_map or {}):
            return f"figures for {identifier!r:.80}, which debug_handle_map does not have"
        if not isinstance(amounts, Mapping):
            return f"the figures {amounts!r:.80} for {identifier!r:.80}"
        for name, amount in amounts.items():
            is_number = isinstance(amount, (int, float)) and not isinstance(amount, bool)
            if not isinstance(name, str) or not is_number or not abs(amount) < 2**63:  # nan is not less
                return f"the figure {name!r:.80} of {identifier!r:.80}"
    return None


def _check_untouched(backend: str, item: Work, before: Snapshot) -> None:
    """Raise ContractViolation if a backend changed what is not its own, compared with ``before``.

    It may rewrite the graph that it was given; the module then gets a fresh one for the host. It may not change what
    others use (`_check_others`), nor the inputs and outputs with which the delegate is called.
    """
    _check_others(backend, item, before)
    if before.is_rewritten():
        own = extract(item.method, item.plan, item.partition)
        _check_convention(backend, item, [n.name for n in user_inputs(own)])
        item.module.restore(own)


def _check_others(backend: str, item: Work, before: Snapshot) -> None:
    """Raise ContractViolation if a backend changed what it shares with others.

    That is the caller's weights, and the subgraphs of branches and loops, which the host's graph contains too.
    """
    written, edited, tag = before.written_tensors(), before.edited_subgraphs(), item.partition.tag
    if written:
        text = f"{backend}.preprocess changed weights of partition {tag}, which are the caller's: {written[0]}"
        raise ContractViolation("contract-violation", text, hint="compute with copies: tensor.clone()")
    if edited:
        text = f"{backend}.preprocess changed the subgraph {edited[0]} in partition {tag}, which the host shares"
        hint = "rewrite a copy: copy.deepcopy(edge_program.graph_module)"
        raise ContractViolation("contract-violation", text, hint=hint)


def _check_convention(backend: str, item: Work, inputs: Sequence[str]) -> None:
    """Raise ContractViolation if a backend removed, reordered or added inputs or outputs of its program.

    What it compiled would then be called differently than the host calls it.
    """
    inputs_left = [n.name for n in item.program.graph.nodes if n.op == "placeholder" and n.name in inputs]
    outputs = [a.type for a in item.module.outputs]
    specs = zip(item.program.graph_signature.output_specs, output_values(item.program), strict=False)
    values = [value for spec, value in specs if spec.kind not in MUTATIONS]
    known = [*outputs, *["?"] * len(values)]  # a node of a backend's pass may have no recorded type: it is not compared
    outputs_left = [_type_of(v) or was for v, was in zip(values, known, strict=False)]
    for what, wanted, left in (("inputs", inputs, inputs_left), ("outputs", outputs, outputs_left)):
        if wanted != left:
            text = f"{backend}.preprocess changed how partition {item.partition.tag} is called: its {what} are {wanted}"
            hint = "an input that the compiled part does not need is still passed; ignore it there"
            text += f", and {left} in the program that it left"
            raise ContractViolation("contract-violation", text, hint=hint)


def _type_of(value: Any) -> str | None:
    """The type of an output, as ``Argument`` writes it; None for a node without a recorded value."""
    val = value.meta.get("val", value) if isinstance(value, Node) else value
    return None if isinstance(val, Node) else Argument.of("", val).type
