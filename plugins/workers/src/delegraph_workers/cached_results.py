"""Take compiled results of partitions from a cache, and add missing ones.

A result from the cache must equal the result of compiling. So the backend compiles the
canonical program (``forms.canonical``), which is the same for all partitions with one
key. Then only the debug handles are translated to those of each program. A backend that
keeps names compiles the program itself, and the names are part of the key. An *entry*
of a cache is a result as bytes (``entry_bytes``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from delegraph.backend import PreprocessResult
from delegraph.compiler import (
    Compiled,
    Refused,
    Request,
    check_result,
    compile_here,
    compiles_jointly,
    fingerprint_of,
)
from delegraph.errors import ContractViolation, DelegraphError, Unsupported
from delegraph.plugin import RemoteBackendSpec
from delegraph.report import pluralize
from torch.export import ExportedProgram

from .cache import Cache, Store
from .entry_bytes import key_of, read_result, write_result
from .forms import Form, canonical, write
from .installed import code_of
from .store_errors import StoreError, kind_and_status

T = TypeVar("T")


class Entries:
    """The entries of a cache during one lowering, and those of its remote store.

    ``found`` and ``stored``: the keys of results that were found or added. Threads
    append to them.
    """

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.found: list[str] = []
        self.stored: list[str] = []
        self._remote = cache.remote
        self._notes: dict[str, None] = {}  # notes, each once
        self._has_written = False

    def add_note(self, text: str) -> None:
        """Add a note, unless it is there already."""
        self._notes.setdefault(text)

    @property
    def notes(self) -> list[str]:
        """Return the numbers of found and stored results, then all other notes."""
        found = pluralize(len(self.found), "partition")
        counts = f"{found} found, {len(self.stored)} stored"
        return [f"cache {self.cache.folder}: {counts}", *self._notes]

    def fetch(self, key: str, decode: Callable[[bytes], T]) -> T | None:
        """Return an entry, decoded by ``decode``; None if there is none.

        The local folder comes first, then the remote store. A remote entry is copied to
        the local folder. If ``decode`` raises DelegraphError or OSError, that becomes a
        note.
        """
        stores: list[Store] = [self.cache]
        if self._remote is not None:
            stores.append(self._remote)
        for store in stores:
            kind = "cache" if store is self.cache else "remote cache"
            unused = f"{kind} entry {key}.entry is not used"
            data = None
            with self._errors_to_notes(store, unused):
                data = store.read(key)
                # a foreign store may return any type
                data = None if data is None else bytes(data)
            if data is None:
                continue
            # after a damaged entry, the remote store is still used
            with self._errors_to_notes(self.cache, unused):
                found = decode(data)
                if store is not self.cache:
                    self._store_locally(key, data)
                return found
        return None

    def store(self, key: str, data: bytes) -> bool:
        """Store an entry in the local folder, and in the remote store if there is one.

        A failure becomes a note. Returns whether the local folder has the entry.
        """
        stored = self._store_locally(key, data)
        remote = self._remote
        if remote is not None:
            with self._errors_to_notes(remote):
                remote.write(key, data)
        return stored

    def make_room(self) -> None:
        """Remove old entries if this lowering made the cache exceed its limit."""
        if not self._has_written:
            return
        try:
            self.cache.make_room()
        except OSError as e:
            self.add_note(
                f"the limit of the cache could not be kept: {e.strerror or e}"
            )

    def _store_locally(self, key: str, data: bytes) -> bool:
        """Store an entry in the local folder. Returns False, with a note, if it fails."""
        with self._errors_to_notes(
            self.cache, "a partition could not be stored in the cache"
        ):
            self.cache.write(key, data)
            self._has_written = True
            return True
        return False

    @contextmanager
    def _errors_to_notes(self, store: Store, failure: str = "") -> Iterator[None]:
        """Turn errors of a block that uses ``store`` into notes.

        Any error of the remote store ends its use in this lowering. For the local
        folder, only DelegraphError and OSError become notes; they begin with
        ``failure``.
        """
        try:
            yield
        except Exception as e:
            if store is not self.cache:
                # the texts of other errors may contain a password
                known = isinstance(e, (StoreError, DelegraphError))
                why = str(e) if known else kind_and_status(e)
                name = getattr(store, "name", type(store).__name__)
                self.add_note(f"the remote cache {name} is not used: {why}")
                self._remote = None
            elif isinstance(e, DelegraphError):
                self.add_note(f"{failure}: {e.message}")
            elif isinstance(e, OSError):
                self.add_note(f"{failure}: {e.strerror or e}")
            else:
                raise


@dataclass
class _Cacheable:
    """A partition that can be cached: its request, its form and its key."""

    request: Request
    form: Form
    key: str

    @cached_property
    def handles(self) -> dict[int, int]:
        """Return debug handles of the partition by those of the canonical program.

        If the partition has the handles 4 and 7, the result is {1: 4, 2: 7, 3: 8, 4: 9}.
        Handles 3 and 4 are for calls of delegates that the backend itself adds: in both
        programs they follow the largest handle. There are at most as many as own calls
        (``allowed_handles``).
        """
        own = self.form.handles
        count = len(own)
        handles = dict(enumerate(own, start=1))
        first_added = max(own, default=0) + 1
        for k in range(count):
            handles[count + 1 + k] = first_added + k
        return handles

    def own_handles(self, result: PreprocessResult) -> PreprocessResult:
        """Return a result of the canonical program with the partition's own handles."""
        return _renumbered(result, self.handles)

    def canonical_handles(self, result: PreprocessResult) -> PreprocessResult:
        """The inverse of ``own_handles``."""
        numbers = {handle: k for k, handle in self.handles.items()}
        return _renumbered(result, numbers)

    def canonical_program(self) -> ExportedProgram:
        """Return the canonical program."""
        program = canonical(self.form)
        # progress messages show this text; the canonical program has no method and tag
        request = self.request
        program.graph_module.meta["local:place"] = f"{request.tag} of {request.method}"
        return program


class CachedResults:
    """The answers to the requests of one call of ``Session.compile``.

    ``answers``: position of a request -> its answer. ``_cacheable``: position -> the
    partition, if it can be cached. ``_equal``: position -> position of an earlier, equal
    request.
    """

    def __init__(self, entries: Entries, requests: Sequence[Request]) -> None:
        self.answers: dict[int, Compiled] = {}
        self._entries = entries
        self._requests = requests
        self._cacheable: dict[int, _Cacheable] = {}
        self._equal: dict[int, int] = {}

    def look_up(self) -> list[int]:
        """Take results from the cache; return the positions of other requests.

        Only the first of several equal requests is compiled and returned.
        """
        first_of: dict[str, int] = {}  # key -> position
        missing: list[int] = []
        for position, request in enumerate(self._requests):
            start = time.perf_counter()
            partition = self._prepare(request)
            if partition is None:
                missing.append(position)
                continue
            self._cacheable[position] = partition
            first = first_of.setdefault(partition.key, position)
            if first != position:
                self._equal[position] = first
                continue
            result = self._fetch(partition)
            if result is None:
                missing.append(position)
                continue
            seconds = time.perf_counter() - start
            own = partition.own_handles(result)
            self.answers[position] = Compiled(own, "from the cache", seconds)
        return missing

    def compile(self, position: int, first: int, total: int) -> Compiled:
        """Compile a request, and add the result to the cache.

        The backend compiles the canonical program. It compiles the partition's own
        program in three cases: the partition cannot be cached, the backend keeps names,
        or the canonical program fails. In the last case the error then has the user's
        names, and the result is not cached. ``first`` and ``total`` count calls for
        progress messages (``compile_here``).
        """
        start = time.perf_counter()
        request = self._requests[position]
        partition = self._cacheable.get(position)
        keeps_names = partition is not None and request.backend.kind.keeps_names
        if partition is not None and not keeps_names:
            result = _compile_canonical(partition, first, total)
            if result is not None:
                self._store(partition, result)
                own = partition.own_handles(result)
                return Compiled(own, "compiled", time.perf_counter() - start)
        (compiled,) = compile_here([request], first, total)
        if partition is not None and keeps_names:
            if not isinstance(compiled.result, Refused):
                self._store(partition, partition.canonical_handles(compiled.result))
        return compiled._replace(origin="compiled")

    def complete(self) -> list[Compiled]:
        """Return all answers; equal requests get equal results.

        If the backend refused the first of several equal requests, the others are
        compiled one by one.
        """
        for position, first in self._equal.items():
            start = time.perf_counter()
            result = self.answers[first].result
            if isinstance(result, Refused):
                (compiled,) = compile_here([self._requests[position]])
                self.answers[position] = compiled._replace(origin="compiled")
                continue
            shared = self._cacheable[first].canonical_handles(result)
            own = self._cacheable[position].own_handles(shared)
            seconds = time.perf_counter() - start
            self.answers[position] = Compiled(own, seconds=seconds, equal_to=first)
        self._entries.make_room()
        return [self.answers[k] for k in range(len(self._requests))]

    def _prepare(self, request: Request) -> _Cacheable | None:
        """Return a partition with its form and key; None, with a note, without a key."""
        backend = request.backend
        name = backend.kind.__name__
        if compiles_jointly(backend.kind):
            text = f"{name} compiles its partitions jointly, so they are not cached"
            self._entries.add_note(text)
            return None
        fingerprint = fingerprint_of(backend, request.compile_specs)
        if fingerprint is None:
            self._entries.add_note(
                f"{name} returns no fingerprint for its compile specs, so partitions"
                " with them are not cached"
            )
            return None
        try:
            form = write(request.extract())
        except Unsupported as e:
            self._entries.add_note(f"{request.place} is not cached: {e.message}")
            return None
        return _Cacheable(request, form, _key_of(request, form, fingerprint))

    def _fetch(self, partition: _Cacheable) -> PreprocessResult | None:
        """Return the result of a partition from the cache; None if it has none."""
        request = partition.request

        def decode(data: bytes) -> PreprocessResult:
            """Return the result in an entry, with the checks of a backend's result."""
            result = read_result(partition.key, data, partition.form)
            name = request.backend.kind.__name__
            check_result(name, request.tag, partition.handles, result)
            return result

        result = self._entries.fetch(partition.key, decode)
        if result is not None:
            self._entries.found.append(partition.key)
        return result

    def _store(self, partition: _Cacheable, result: PreprocessResult) -> None:
        """Store a result in the cache. A failure becomes a note."""
        backend = partition.request.backend
        about = {
            "backend": backend.kind.__name__,
            "producer": " ".join(filter(None, backend.producer)),
            "torch": torch.__version__,
        }
        try:
            data = write_result(partition.key, about, result, partition.form)
        except DelegraphError as e:
            self._entries.add_note(f"a partition could not be stored in the cache: {e}")
            return
        if self._entries.store(partition.key, data):
            self._entries.stored.append(partition.key)


def _key_of(request: Request, form: Form, fingerprint: str) -> str:
    """Return the key of a compiled partition: a hash of all inputs of its result."""
    spec = request.backend.spec
    kind: Any = request.backend.kind
    # the class describes the code that is installed in the backend's environment
    if isinstance(spec, RemoteBackendSpec):
        code = kind.installed()
    else:
        code = code_of(kind, spec.traits.composes, spec.traits.independent_of)
    settings = [(c.key, c.value.hex()) for c in request.compile_specs]
    names = form.names if kind.keeps_names else None
    producer = request.backend.producer
    return key_of(kind, [form.key, names, settings, producer, code, fingerprint])


def _compile_canonical(
    partition: _Cacheable, first: int, total: int
) -> PreprocessResult | None:
    """Compile the canonical program; return a result with its handles.

    Returns None if the backend fails or refuses it.
    """
    request = partition.request._replace(extract=partition.canonical_program)
    try:
        (compiled,) = compile_here([request], first, total)
    except ContractViolation:  # a second compilation could hide it
        raise
    except DelegraphError:
        return None
    return None if isinstance(compiled.result, Refused) else compiled.result


def _renumbered(
    result: PreprocessResult, numbers: Mapping[int, int]
) -> PreprocessResult:
    """Return ``result`` with debug handles replaced by ``numbers``."""
    if not result.debug_handle_map:
        return result
    handles: Any = {
        identifier: tuple(sorted(numbers[handle] for handle in listed))
        for identifier, listed in result.debug_handle_map.items()
    }
    return replace(result, debug_handle_map=handles)
