"""Takes compiled results of partitions from a cache, and adds those that it does not have.

A result from the cache has to be the one that compiling would give. So the backend compiles the canonical program,
which is the same for all partitions with one key; only the debug handles are then translated to those of each program.
A backend that keeps names compiles the program itself, and the names are part of the key.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from ..backend import BackendDetails, PreprocessResult
from ..errors import DelegraphError, Unsupported
from ..exported.work import Form, canonical, write
from ..exported_program import user_inputs
from ..io.foreign_errors import StoreError, kind_and_status
from ..report.facts import pluralize
from ..work import read_result, write_result
from .cache import Cache, Store
from .cache_key import key_of_result
from .fingerprint import fingerprint_of
from .partition import Work
from .preprocess import compile_work, compiles_jointly, preprocess
from .returned import check_convention, check_others, check_result, flat_results
from .snapshot import Snapshot

if TYPE_CHECKING:
    from ..discovery.registry import Registry

T = TypeVar("T")


@dataclass
class _Kept:
    """A partition that can be cached: its form, its key, and the backend's distribution with its version."""

    backend: type[BackendDetails]
    item: Work
    form: Form
    key: str
    producer: str

    @cached_property
    def handles(self) -> dict[int, int]:
        """Debug handle of the canonical program -> that of the partition's own program.

        A backend that lowers its program through another one adds calls of delegates. In both programs, the handles of
        these follow those of the program's own calls.
        """
        own = self.form.handles
        behind = max(own, default=0) - len(own)
        # canonical handles: 1 to len(own) are the program's own; as many again may be of added calls
        return {k: own[k - 1] if k <= len(own) else k + behind for k in range(1, 2 * len(own) + 1)}

    def take(self, result: PreprocessResult, whence: str) -> None:
        """Make ``result``, which was checked, the result of the partition, with the handles of its own program.

        ``whence``: where the result comes from, for the report.
        """
        self.item.result = replace(result, debug_handle_map=_other_handles(result.debug_handle_map, self.handles))
        self.item.compiled = whence


class Lookups:
    """A cache during one lowering.

    ``found`` and ``stored``: the keys of results that were found in it or added to it. ``notes``: lines for the report.
    """

    def __init__(self, cache: Cache) -> None:
        """Begin a lowering with ``cache``, in which nothing was looked up yet."""
        self.cache, self._remote = cache, cache.remote
        self._said: dict[str, None] = {}  # notes, each once
        self.found, self.stored = [list[str]() for _ in range(2)]  # keys: lists, as threads append to them
        self._kept: dict[int, _Kept] = {}  # id of work that is compiled -> its partition here
        self._waiting: list[tuple[_Kept, _Kept]] = []  # partitions, and those that they equal
        self._wrote = False

    def say(self, text: str) -> None:
        """Add a note, unless it is there already."""
        self._said.setdefault(text)

    @property
    def notes(self) -> list[str]:
        """The notes for the report: how many results were found and stored, and what went wrong."""
        counts = f"{pluralize(len(self.found), 'partition')} found, {len(self.stored)} stored"
        return [f"cache {self.cache.folder}: {counts}", *self._said]

    def look_up(self, work: Sequence[Work], registry: Registry) -> list[Work]:
        """Take the results of ``work`` that the cache has; returns the work that is to be compiled.

        Of several equal partitions only the first is returned; ``share`` gives its result to the others.
        """
        self._kept, self._waiting = {}, []
        first: dict[str, _Kept] = {}
        left = []
        for item in work:
            start = time.perf_counter()
            kept = self._keep(item, registry)
            if kept is not None and kept.key in first:  # equal to an earlier one, found or still to be compiled
                self._waiting.append((kept, first[kept.key]))
            elif kept is not None and (result := self._get(kept)) is not None:
                first[kept.key] = kept
                kept.take(result, "from the cache")
            else:
                left.append(item)
                item.compiled = "compiled"
                if kept is not None:
                    first[kept.key] = self._kept[id(item)] = kept
            item.seconds["compile"] = time.perf_counter() - start
        return left

    def compile(self, item: Work, registry: Registry, may_refuse: bool) -> None:
        """Compile a partition that the cache does not have, and add the result to the cache if it can be cached.

        Compiles the canonical program. The partition's own program is compiled instead if the partition cannot be
        cached, if the backend keeps names, or if the canonical program fails, so that the error has the user's names.
        ``may_refuse``: see ``compile_all``.
        """
        kept, start = self._kept.get(id(item)), time.perf_counter()
        backend = registry.get_backend(item.partition.spec.backend_id)
        if kept is None:
            return compile_work(backend, [item], registry, may_refuse)
        result = None if backend.keeps_names else _compile_canonical(kept, registry)
        if result is not None:
            self._put(kept, result)
            kept.take(result, "compiled")
            item.seconds["compile"] = time.perf_counter() - start
            return None
        compile_work(backend, [item], registry, may_refuse)
        if item.result is not None and backend.keeps_names:
            canonical_of = {handle: k for k, handle in kept.handles.items()}
            handles = _other_handles(item.result.debug_handle_map, canonical_of)
            self._put(kept, replace(item.result, debug_handle_map=handles))
        return None

    def share(self, registry: Registry, may_refuse: bool) -> None:
        """Give the results of compiled partitions to those that equal them, which ``look_up`` held back.

        A partition is compiled by itself if the backend refused the one that it equals: ``first`` has no result then.
        Removes old entries afterwards if the cache has grown beyond its limit.
        """
        for kept, first in self._waiting:
            result = first.item.result
            if result is None:
                compile_work(kept.backend, [kept.item], registry, may_refuse)
                kept.item.compiled = "compiled"
                continue
            # from the handles of the first partition to canonical ones, and by ``take`` to those of this partition
            canonical_of = {handle: k for k, handle in first.handles.items()}
            handles = _other_handles(result.debug_handle_map, canonical_of)
            kept.take(replace(result, debug_handle_map=handles), "equal")
            kept.item.equal_to = first.item
        if self._wrote:
            try:
                self.cache.make_room()
            except OSError as e:
                self.say(f"the limit of the cache could not be kept: {e.strerror or e}")

    def _keep(self, item: Work, registry: Registry) -> _Kept | None:
        """The form and the key of a partition; None, with a note, if it cannot be cached."""
        backend, specs = registry.get_backend(item.partition.spec.backend_id), list(item.partition.spec.compile_specs)
        name, place = backend.__name__, f"partition {item.partition.tag} of method {item.method}"
        if compiles_jointly(backend):
            self.say(f"{name} compiles its partitions jointly: nothing of it is cached")
            return None
        fingerprint = fingerprint_of(item, registry)
        if fingerprint is None:
            self.say(f"{name} gives no fingerprint for its compile specs: nothing that has them is cached")
            return None
        try:
            form = write(item.program)
        except Unsupported as e:
            self.say(f"{place} is not cached: {e.message}")
            return None
        asked = item.partition.spec.backend_id
        producer = registry.producer(asked)
        key = key_of_result(form, backend, specs, registry.spec(asked), producer, fingerprint)
        return _Kept(backend, item, form, key, " ".join(filter(None, producer)))

    def fetch(self, key: str, decode: Callable[[bytes], T]) -> T | None:
        """An entry as ``decode`` returns it, from the local folder or else from the remote one; None if none has it.

        A remote entry is copied to the local folder. A damaged entry, or one for which ``decode`` raises, becomes a
        note.
        """
        stores: list[Store] = [self.cache] if self._remote is None else [self.cache, self._remote]
        for store in stores:
            unused, data = f"{'remote ' * (store is not self.cache)}cache entry {key}.entry is not used", None
            with self._noting(store, unused):
                data = store.read(key)
                data = None if data is None else bytes(data)  # a store of somebody else's may return anything
            if data is None:
                continue
            with self._noting(self.cache, unused):  # a damaged entry is no reason to give the remote folder up
                found = decode(data)
                if store is not self.cache:
                    self._store(key, data)
                return found
        return None

    def keep(self, key: str, data: bytes) -> bool:
        """Store an entry in both folders; False if that failed for the local one. A failure becomes a note."""
        stored, remote = self._store(key, data), self._remote
        if remote is not None:
            with self._noting(remote):
                remote.write(key, data)
        return stored

    def _get(self, kept: _Kept) -> PreprocessResult | None:
        """The result of a partition, if the cache has it."""

        def decode(data: bytes) -> PreprocessResult:
            """The result in an entry, checked as a backend's result is."""
            result = read_result(kept.key, data, kept.form)
            check_result(kept.backend.__name__, kept.item.partition.tag, kept.handles, result)
            return result

        result = self.fetch(kept.key, decode)
        if result is not None:
            self.found.append(kept.key)
        return result

    def _put(self, kept: _Kept, result: PreprocessResult) -> None:
        """Store a result in both folders. A failure becomes a note."""
        about = {"backend": kept.backend.__name__, "producer": kept.producer, "torch": torch.__version__}
        try:
            data = write_result(kept.key, about, result, kept.form)
        except DelegraphError as e:
            return self.say(f"a partition could not be stored in the cache: {e}")
        if self.keep(kept.key, data):
            self.stored.append(kept.key)
        return None

    def _store(self, key: str, data: bytes) -> bool:
        """Store an entry in the local folder. Returns False, with a note, if that failed."""
        with self._noting(self.cache, "a partition could not be stored in the cache"):
            self.cache.write(key, data)
            self._wrote = True
            return True
        return False

    @contextmanager
    def _noting(self, store: Store, failure: str = "") -> Iterator[None]:
        """A block that uses ``store``. An error in it becomes a note, which begins with ``failure`` for the cache.

        The remote folder is not used again in this lowering after an error, whatever its kind.
        """
        try:
            yield
        except Exception as e:
            if store is not self.cache:
                # other errors are those of the store's libraries: their texts may hold a password
                why = str(e) if isinstance(e, (StoreError, DelegraphError)) else kind_and_status(e)
                self.say(f"the remote cache {getattr(store, 'name', type(store).__name__)} is not used: {why}")
                self._remote = None
            elif isinstance(e, (OSError, DelegraphError)):
                self.say(f"{failure}: {e.message if isinstance(e, DelegraphError) else e.strerror or e}")
            else:
                raise


def _compile_canonical(kept: _Kept, registry: Registry) -> PreprocessResult | None:
    """The result of compiling the canonical program, with the handles of that program.

    None if the backend raises an error: the partition's own program is then compiled, so that the error has the user's
    names. Raises ContractViolation for a wrong result.
    """
    item, program, name = kept.item, canonical(kept.form), kept.backend.__name__
    canonical_item, before, inputs = replace(item, program=program), Snapshot(program), user_inputs(program)
    names = [node.name for node in inputs]
    # for progress: the program's own meta says nothing of where it is from, since its blob may not depend on that
    program.graph_module.meta["local:place"] = f"{item.partition.tag} of {item.method}"
    programs, specs = {item.method: [program]}, {item.method: [list(item.partition.spec.compile_specs)]}
    try:
        returned, _ = preprocess(kept.backend, programs, specs, [item], registry)
    except DelegraphError:
        return None
    result: PreprocessResult = flat_results(name, programs, returned)[0]
    check_result(name, item.partition.tag, kept.handles, result)
    check_others(name, canonical_item, before)
    if before.is_rewritten():
        check_convention(name, canonical_item, names)
    return result


def _other_handles(handles: Any, numbers: Mapping[int, int]) -> Any:
    """A debug map in which ``numbers`` replaces each handle; None and {} stay as they are."""
    return handles and {key: tuple(sorted(numbers[handle] for handle in listed)) for key, listed in handles.items()}
