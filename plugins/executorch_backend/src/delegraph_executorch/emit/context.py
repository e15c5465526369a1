"""Hold the data that all methods of a program share while it is emitted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from delegraph.backend import NamedDataStore
from delegraph.delegates import DelegateInfo
from torch.fx import Node

from ..kernels import KernelSet
from ..memory import ALIGNMENT
from ..program.pte_tables import (
    BackendDelegate,
    BackendDelegateDataReference,
    BlobLocation,
    CompileSpec,
)
from ..serialize.file import SEGMENT_ALIGNMENT
from ..serialize.xnnpack_blob import BACKEND_ID
from .pool import Pool
from .state_memory import StateOffsets

TENSOR_ALIGNMENT = 16
"""Bytes that every tensor in a segment is aligned to."""
_XNNPACK_ALIGNMENT = 16
"""Alignment of XNNPACK's blobs. Its compiler aligns data in them to no more."""


@dataclass
class Context:
    """The kernels and options of a program, and its pools of bytes.

    States are buffers that a method writes: they keep their content between runs.

    - ``emitter_of`` returns the function that emits a node; None if a file cannot hold
      the node. It is passed in, because ``dispatch`` imports modules that need this
      one.
    - ``file_of`` returns the name of the data file for a constant's placeholder, or ""
      for the program's own file. Its second argument: whether the program returns the
      constant's gradient.
    - ``memory_of`` returns the memory for a node's results, from 1.
    - ``alignment``: alignment of planned tensors, in bytes.
    - ``stack_traces``: whether to store source lines.
    - ``plans_states``: whether states get planned memory.
    - ``names_states``: whether the file stores the names of states.
    - ``plans_devices``: whether tensors of delegates on other devices are planned in
      the memory of these devices, with copies.
    - ``state_offsets``: the states that have an offset before a method is planned.
    - ``external_data``: contents of the data files.
    - ``constants``, ``states``, ``blobs``: contents of the program's own file.
    """

    kernels: KernelSet
    emitter_of: Callable[[Node], Callable[..., Any] | None]
    file_of: Callable[[Node, bool], str]
    memory_of: Callable[[Node], int] = lambda node: 1
    alignment: int = ALIGNMENT
    stack_traces: bool = False
    plans_states: bool = True
    names_states: bool = False
    plans_devices: bool = True
    state_offsets: StateOffsets = field(default_factory=StateOffsets)
    external_data: NamedDataStore = field(default_factory=NamedDataStore)
    constants: Pool = field(default_factory=lambda: Pool(TENSOR_ALIGNMENT))
    states: Pool = field(default_factory=lambda: Pool(TENSOR_ALIGNMENT))
    blobs: Pool = field(default_factory=Pool)


class Delegates:
    """The delegates of one method, by the name of the attribute that holds each.

    ``used``: the delegates that are called, in the order of the file's table. A
    delegate is stored once, even if it is called several times.
    """

    def __init__(self, context: Context, delegates: list[DelegateInfo]) -> None:
        self._context = context
        self._by_name = {delegate.name: delegate for delegate in delegates}
        self.used: dict[str, DelegateInfo] = {}

    def named(self, name: str) -> DelegateInfo:
        """Return the delegate that the dotted attribute ``name`` holds."""
        return self._by_name[name]

    def find(self, name: str) -> tuple[int, DelegateInfo]:
        """Return the position of a delegate in the table, and the delegate.

        A delegate that is not in the table yet is appended.
        """
        delegate = self.used.setdefault(name, self._by_name[name])
        return list(self.used).index(name), delegate

    def store_blobs(self) -> tuple[BackendDelegate, ...]:
        """Add the delegates' blobs to the pool, and return the table of delegates.

        The index of a blob in the table is its position in the pool.
        """
        return tuple(self._record(delegate) for delegate in self.used.values())

    def _record(self, delegate: DelegateInfo) -> BackendDelegate:
        alignment = SEGMENT_ALIGNMENT
        if delegate.backend_id == BACKEND_ID:
            alignment = _XNNPACK_ALIGNMENT
        position = self._context.blobs.add(delegate.blob, alignment)
        reference = BackendDelegateDataReference(BlobLocation.SEGMENT, position)
        specs = tuple(
            CompileSpec(spec.key, bytes(spec.value)) for spec in delegate.compile_specs
        )
        return BackendDelegate(delegate.backend_id, reference, specs)
