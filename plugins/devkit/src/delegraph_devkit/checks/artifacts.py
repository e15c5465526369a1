"""Check the data from a backend to its runtime: compile specs, named data, handle maps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..backend_under_test import BackendUnderTest
from ..check import check
from ..check_result import Figures
from ..delegate_calls import calling
from ..failures import CheckFailed, CheckSkipped
from ..lowering_attempt import LoweringAttempt, handed_over, quiet
from ..reproduce import observing
from ..tolerance import tolerance_of
from ..trial import is_comparable

if TYPE_CHECKING:
    from delegraph.delegates import DelegateInfo


@check
def settings_and_data_delivered(backend: BackendUnderTest) -> Figures:
    """Compile specs and named data reach the runtime as they were given, and stay as
    they are.
    """
    for one in backend.lowered:
        for info in one.lowered.delegates if one.lowered else ():
            _raise(
                _other_settings(info, one) or _changed_by_loading(info, backend), one
            )
        if one.lowered and handed_over(one.lowered) != one.handed_over:
            _raise(
                "named data or blob changed after preprocess returned, when other"
                " programs were lowered",
                one,
            )
    made = [delegate for one in backend.lowered for delegate in one.handed_over]
    return {"delegates": len(made), "named_data": sum(len(data) for _, _, data in made)}


def _raise(why: str | None, one: LoweringAttempt) -> None:
    if why is not None:
        advice = (
            "make a new NamedDataStore for every preprocess, and let the runtime copy"
            " what it changes"
        )
        raise CheckFailed(why, one.program, advice)


def _other_settings(info: DelegateInfo, one: LoweringAttempt) -> str | None:
    tags = one.partitioned.partition_tags if one.partitioned else {}
    declared = [list(spec.compile_specs) for spec in tags.values()]
    if list(info.module.compile_specs) in declared:
        return None
    return (
        f"{info.name} has compile specs {info.module.compile_specs}, which the"
        " partitioner gave to no partition"
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
        return (
            f"the runtime does not load what preprocess made: {type(e).__name__}: {e}"
        )
    if given_specs != specs:
        return "the runtime's load changed the list of compile specs"
    return None if given_data == data else "the runtime's load changed the named data"


@check
def debug_handles(backend: BackendUnderTest) -> Figures:
    """The debug handle map is {int or str: handles}, and names only handles of the
    partition's own nodes.
    """
    maps = 0
    for one in backend.lowered:
        for info in one.lowered.delegates if one.lowered else ():
            why = _wrong_map(info)
            maps += info.module.meta["debug_handle_map"] is not None
            if why is not None:
                advice = (
                    "take handles from node.meta['debug_handle'], as"
                    " DelegateMappingBuilder does"
                )
                raise CheckFailed(f"{info.name}: {why}", one.program, advice)
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
                f"the entry {key!r}: {handles!r} is not of the form int or str: tuple"
                " of handles"
            )
        foreign = [h for h in handles if h not in own or h is None]
        if foreign:
            return (
                f"the entry {key!r} names the debug handle {foreign[0]!r}, which no"
                " node of the partition has"
            )
    return None


@check
def observed_values(backend: BackendUnderTest) -> Figures:
    """What ``observe`` makes returns the outputs as ``load`` does, and values by
    identifiers of the handle map.
    """
    if not backend.needs_runtime().observes():
        raise CheckSkipped("the runtime has no observe, which is optional")
    programs = 0
    told = 0
    for one in (one for one in backend.lowered if is_comparable(one, backend)):
        identifiers: list[Any] = []
        why = _wrong_outputs(one, backend, identifiers) or _unknown(one, identifiers)
        if why is not None:
            advice = (
                "return (outputs, {identifier: [tensors]}), by identifiers of the map"
                " that preprocess returned"
            )
            raise CheckFailed(why, one.program, advice, ending=observing(backend))
        programs = programs + 1
        told = told + len(identifiers)
    return {"programs": programs, "identifiers": told}


def _wrong_outputs(
    one: LoweringAttempt, backend: BackendUnderTest, identifiers: list[Any]
) -> str | None:
    """Run observed delegates; return an error or None. Adds to ``identifiers``."""

    def call(delegate: Any, inputs: tuple[Any, ...]) -> Any:
        returned = delegate(*inputs)
        # otherwise verify raises
        if isinstance(returned, tuple) and isinstance(returned[-1], Mapping):
            identifiers.extend(returned[-1])
        return returned

    assert one.lowered is not None
    try:
        with quiet(), calling(backend, call, "observe"):
            found = one.lowered.verify(*one.inputs, per_operator=True)
        with quiet():
            loaded = one.lowered.verify(*one.inputs)
    except (Exception, SystemExit) as e:
        return f"observing raised {type(e).__name__}: {e}"
    limit = tolerance_of(one.exported, backend.tolerance)
    # the latter is what numerics is about
    if found.relative_error <= limit or loaded.relative_error > limit:
        return None
    return f"observed delegates compute something else than loaded ones; {found}"


def _unknown(one: LoweringAttempt, identifiers: list[Any]) -> str | None:
    """Return an error if the debug handle map contains none of the identifiers.

    It need not contain all: the backend's own operators, such as casts, have no node.
    """
    assert one.lowered is not None
    known = {
        k
        for d in one.lowered.delegates
        for k in d.module.meta["debug_handle_map"] or ()
    }
    if not identifiers or any(i in known for i in identifiers):
        return None
    return (
        f"observe tells values under {identifiers[0]!r}, and under nothing that a debug"
        " handle map has"
    )
