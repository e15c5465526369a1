"""What a backend hands over arrives: settings, named data, and the map back to the program."""

from __future__ import annotations

from collections.abc import Mapping

from delegraph.backend import Blob, NamedDataStoreOutput
from delegraph.program.delegates import DelegateInfo

from ..backend_under_test import Subject
from ..check import Figures, check
from ..lowering_attempt import Attempt, handed_over
from ..outcomes import CheckFailed


@check
def settings_and_data_delivered(subject: Subject) -> Figures:
    """Compile specs and named data reach the runtime as they were given, and stay as they are."""
    for one in subject.lowered:
        for info in one.lowered.delegates if one.lowered else ():
            _raise(_wrong_data(info) or _other_settings(info, one) or _changed_by_loading(info, subject), one)
        if one.lowered and handed_over(one.lowered) != one.handed_over:
            _raise("named data or blob changed after preprocess returned, when other programs were lowered", one)
    made = [delegate for one in subject.lowered for delegate in one.handed_over]
    return {"delegates": len(made), "named_data": sum(len(data) for _, _, data in made)}


def _raise(why: str | None, one: Attempt) -> None:
    if why is not None:
        advice = "make a new NamedDataStore for every preprocess, and let the runtime copy what it changes"
        raise CheckFailed(why, one.program, advice)


def _wrong_data(info: DelegateInfo) -> str | None:
    """What is not as ``NamedDataStore`` makes it."""
    store = info.module.named_data_store_output or NamedDataStoreOutput()
    for table in (store.pte_data, *store.external_data.values()):
        for key, entry in table.items():
            if not 0 <= entry.buffer_index < len(store.buffers):
                return f"named data {key!r} has buffer {entry.buffer_index} of {len(store.buffers)}"
            if not isinstance(store.buffers[entry.buffer_index], (bytes, Blob)):
                return f"named data {key!r} is {type(store.buffers[entry.buffer_index]).__name__}, not bytes"
            if entry.alignment < 1:
                return f"named data {key!r} has the alignment {entry.alignment}"
    return None


def _other_settings(info: DelegateInfo, one: Attempt) -> str | None:
    result = one.recording.result
    declared = [list(spec.compile_specs) for spec in result.partition_tags.values()] if result else []
    if list(info.module.compile_specs) in declared:
        return None
    return f"{info.name} has compile specs {info.module.compile_specs}, which the partitioner gave to no partition"


def _changed_by_loading(info: DelegateInfo, subject: Subject) -> str | None:
    if subject.runtime is None:
        return None
    module = info.module
    blob, specs, data = module.processed_bytes, list(module.compile_specs), module.named_data()
    given_specs, given_data = list(specs), dict(data)
    try:
        subject.runtime.load(blob, given_specs, given_data)
    except (Exception, SystemExit) as e:
        return f"the runtime does not load what preprocess made: {type(e).__name__}: {e}"
    if given_specs != specs:
        return "the runtime's load changed the list of compile specs"
    return None if given_data == data else "the runtime's load changed the named data"


@check
def debug_handles(subject: Subject) -> Figures:
    """The debug handle map is {int or str: handles}, and names only handles of the partition's own nodes."""
    maps = 0
    for one in subject.lowered:
        for info in one.lowered.delegates if one.lowered else ():
            why = _wrong_map(info)
            maps += info.module.meta["debug_handle_map"] is not None
            if why is not None:
                advice = "take handles from node.meta['debug_handle'], as DelegateMappingBuilder does"
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
            return f"the entry {key!r}: {handles!r} is not of the form int or str: tuple of handles"
        foreign = [h for h in handles if h not in own or h is None]
        if foreign:
            return f"the entry {key!r} names the debug handle {foreign[0]!r}, which no node of the partition has"
    return None
