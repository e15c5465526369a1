"""A partition whose compiled result comes from a cache if that has it, and goes into it if not."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..backend import BackendDetails, PreprocessResult
from ..discovery.attribution import AtWork
from ..errors import DelegraphError, Unsupported
from ..exported.work import Form, canonical, write
from ..exported_program import user_inputs
from .cache import Cache, key_of
from .partition import Work
from .preprocess import compile_work, preprocess
from .returned import check_convention, check_others, check_result, flat_results
from .snapshot import Snapshot

if TYPE_CHECKING:
    from ..discovery.registry import Registry


def compile_cached(
    backend: type[BackendDetails], item: Work, registry: Registry, may_refuse: bool, cache: Cache
) -> None:
    """As ``compile_work`` of one partition, whose result comes from the cache if that has it, and goes into it if not.

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
        return compile_work(backend, [item], registry, may_refuse)
    try:
        form = write(item.program)
    except Unsupported as e:
        cache.say(f"{place} is not cached: {e.message}")
        return compile_work(backend, [item], registry, may_refuse)
    key = key_of(form, backend, specs, registry.producer(item.partition.spec.backend_id), fingerprint)
    own = form.handles
    behind = max(own, default=0) - len(own)  # those of calls that a backend made follow those of the program
    numbers = {k: own[k - 1] if k <= len(own) else k + behind for k in range(1, 2 * len(own) + 1)}
    result = cache.get(key, form)
    if result is None and backend.keeps_names:
        compile_work(backend, [item], registry, may_refuse)
        if item.result is not None:
            handles = _other_handles(item.result.debug_handle_map, {handle: k for k, handle in numbers.items()})
            cache.put(key, form, replace(item.result, debug_handle_map=handles))
        return None
    if result is None:
        result = _compile_canonical(backend, item, form, numbers, registry)
        if result is None:
            return compile_work(backend, [item], registry, may_refuse)
        cache.put(key, form, result)
    check_result(name, item.partition.tag, numbers, result)
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
    programs, specs = {item.method: [program]}, {item.method: [list(item.partition.spec.compile_specs)]}
    try:
        returned, _ = preprocess(backend, programs, specs, [item], registry)
    except DelegraphError:
        return None
    result: PreprocessResult = flat_results(name, programs, returned)[0]
    check_result(name, tag, numbers, result)
    check_others(name, given, before)
    if before.is_rewritten():
        check_convention(name, given, names)
    return result


def _other_handles(handles: Any, numbers: Mapping[int, int]) -> Any:
    """A debug map with other numbers for handles."""
    return handles and {key: tuple(sorted(numbers[handle] for handle in listed)) for key, listed in handles.items()}
