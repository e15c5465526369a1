"""Check the data that a backend passes to its runtime.

It consists of compile specs, named data and debug handle maps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..backend_under_test import BackendUnderTest
from ..check import check
from ..check_result import Figures
from ..delegate_calls import intercepted_calls
from ..failures import CheckFailed, CheckSkipped
from ..lowering_attempt import LoweringAttempt, handed_over, quiet
from ..reproduce import observing
from ..tolerance import tolerance_of
from ..trial import is_comparable

if TYPE_CHECKING:
    from delegraph.delegates import DelegateInfo


@check
def settings_and_data_delivered(backend: BackendUnderTest) -> Figures:
    """Compile specs and named data reach the runtime unchanged, and loading changes
    neither.
    """
    delegates = 0
    named_data = 0
    for attempt in backend.lowered:
        why = _changed_data(attempt, backend)
        if why is not None:
            advice = (
                "make a new NamedDataStore in every preprocess; copy data in the"
                " runtime before changing it"
            )
            raise CheckFailed(why, attempt.program, advice)
        delegates += len(attempt.handed_over)
        named_data += sum(len(data) for _, _, data in attempt.handed_over)
    return {"delegates": delegates, "named_data": named_data}


def _changed_data(attempt: LoweringAttempt, backend: BackendUnderTest) -> str | None:
    """Return an error if data of a delegate is not the data that the backend made."""
    if attempt.lowered is None:
        return None
    for info in attempt.lowered.delegates:
        why = _other_settings(info, attempt) or _changed_by_loading(info, backend)
        if why is not None:
            return why
    if handed_over(attempt.lowered) != attempt.handed_over:
        return (
            "lowering other programs changed the named data or the blob of this one,"
            " after preprocess had returned"
        )
    return None


def _other_settings(info: DelegateInfo, attempt: LoweringAttempt) -> str | None:
    tags = attempt.partitioned.partition_tags if attempt.partitioned else {}
    declared = [list(spec.compile_specs) for spec in tags.values()]
    if list(info.module.compile_specs) in declared:
        return None
    return (
        f"{info.name} has the compile specs {info.module.compile_specs}; the"
        " partitioner returned them for no partition"
    )


def _changed_by_loading(info: DelegateInfo, backend: BackendUnderTest) -> str | None:
    if backend.runtime is None:
        return None
    module = info.module
    blob = module.processed_bytes
    specs = list(module.compile_specs)
    data = module.named_data()
    given_specs = list(specs)
    given_data = dict(data)
    try:
        backend.runtime.load(blob, given_specs, given_data)
    except (Exception, SystemExit) as e:
        return f"the runtime's load of a fresh blob raised {type(e).__name__}: {e}"
    if given_specs != specs:
        return "the runtime's load changed the list of compile specs"
    return None if given_data == data else "the runtime's load changed the named data"


@check
def debug_handles(backend: BackendUnderTest) -> Figures:
    """The debug handle map is {int or str: handles}, and its handles are those of nodes
    of the partition.
    """
    maps = 0
    for attempt in backend.lowered:
        for info in attempt.lowered.delegates if attempt.lowered else ():
            why = _wrong_map(info)
            if info.module.meta["debug_handle_map"] is not None:
                maps += 1
            if why is not None:
                advice = (
                    "take handles from node.meta['debug_handle'], as"
                    " DelegateMappingBuilder does"
                )
                raise CheckFailed(f"{info.name}: {why}", attempt.program, advice)
    return {"maps": maps}


def _wrong_map(info: DelegateInfo) -> str | None:
    given = info.module.meta["debug_handle_map"]
    if given is None:
        return None
    if not isinstance(given, Mapping):
        return f"debug_handle_map is {type(given).__name__}, not a mapping"
    own = {n.meta.get("debug_handle") for n in info.nodes}
    own |= {n.meta.get("debug_handle") for n in info.module.original_module.graph.nodes}
    for key, handles in given.items():
        if not isinstance(key, (int, str)) or not isinstance(handles, tuple):
            return (
                f"the entry {key!r}: {handles!r} must be an int or a str with a tuple"
                " of handles"
            )
        foreign = [h for h in handles if h not in own or h is None]
        if foreign:
            return (
                f"the entry {key!r} has the debug handle {foreign[0]!r}; no node of"
                " the partition has it"
            )
    return None


@check
def observed_values(backend: BackendUnderTest) -> Figures:
    """Observed delegates compute the same outputs as loaded ones, and return values of
    the debug handle map.
    """
    if not backend.needs_runtime().observes():
        raise CheckSkipped("the runtime has no observe, which is optional")
    programs = 0
    observed = 0
    for attempt in backend.lowered:
        if not is_comparable(attempt, backend):
            continue
        identifiers: list[Any] = []
        why = _wrong_outputs(attempt, backend, identifiers) or _unknown(
            attempt, identifiers
        )
        if why is not None:
            advice = (
                "return (outputs, {identifier: [tensors]}), with identifiers of the"
                " debug handle map that preprocess returned"
            )
            raise CheckFailed(why, attempt.program, advice, ending=observing(backend))
        programs += 1
        observed += len(identifiers)
    return {"programs": programs, "identifiers": observed}


def _wrong_outputs(
    attempt: LoweringAttempt, backend: BackendUnderTest, identifiers: list[Any]
) -> str | None:
    """Run observed delegates, and add to ``identifiers``; return an error or None."""

    def call(delegate: Any, inputs: tuple[Any, ...]) -> Any:
        returned = delegate(*inputs)
        # verify raises for any other form
        if isinstance(returned, tuple) and isinstance(returned[-1], Mapping):
            identifiers.extend(returned[-1])
        return returned

    assert attempt.lowered is not None
    try:
        with quiet(), intercepted_calls(backend, call, "observe"):
            found = attempt.lowered.verify(*attempt.inputs, per_operator=True)
        with quiet():
            loaded = attempt.lowered.verify(*attempt.inputs)
    except (Exception, SystemExit) as e:
        return f"observing raised {type(e).__name__}: {e}"
    limit = tolerance_of(attempt.exported, backend.tolerance)
    # the check numerics reports errors of loaded delegates
    if found.relative_error <= limit or loaded.relative_error > limit:
        return None
    return f"outputs of observe differ from outputs of load; {found}"


def _unknown(attempt: LoweringAttempt, identifiers: list[Any]) -> str | None:
    """Return an error if the debug handle map contains none of the identifiers.

    It need not contain all: the backend's own operators, such as casts, have no node.
    """
    assert attempt.lowered is not None
    known: set[Any] = set()
    for delegate in attempt.lowered.delegates:
        known.update(delegate.module.meta["debug_handle_map"] or ())
    if not identifiers or any(i in known for i in identifiers):
        return None
    return (
        f"observe returned values for {identifiers[0]!r}, but for no key of a debug"
        " handle map"
    )
