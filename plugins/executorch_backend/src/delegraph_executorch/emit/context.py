"""What all methods of a program share while it is emitted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from delegraph.backend import NamedDataStore
from delegraph.formats import DelegateContents
from torch.fx import Node

from ..kernels import KernelSet
from ..memory import ALIGNMENT
from ..program.tables import (
    BackendDelegate,
    BackendDelegateDataReference,
    BlobLocation,
    CompileSpec,
)
from ..serialize.file import SEGMENT_ALIGNMENT
from ..serialize.xnnpack_blob import BACKEND_ID
from .pool import Pool
from .states import StatePlaces

TENSOR_ALIGNMENT = 16
"""Bytes that every tensor in a segment is aligned to."""


@dataclass
class Context:
    """The kernels that may be called, and the pools of bytes.

    ``emitter_of``: the function that emits a node in a ``Body``, None if a file can
    hold no such node. Branches and loops emit bodies, which emit nodes: the table of
    all these functions is handed in from above (``dispatch``). ``memory_of``: the
    memory that a node's results are planned in, from 1. ``alignment``: bytes that
    planned tensors are aligned to. ``stack_traces``: whether instructions have source
    lines. ``file_of``: the data file that the constant of a placeholder goes to, by its
    name, empty for the program's own; it is told whether the program returns the
    constant's gradient. ``plans_states`` and ``names_states``: whether buffers that are
    written get planned memory, and whether the file has their names. ``plans_devices``:
    whether what delegates of other devices take and return is planned in those devices'
    memory, with copies to and from the host's. ``places``: where written buffers lie
    that have places before the method is planned.
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
    places: StatePlaces = field(default_factory=StatePlaces)
    external_data: NamedDataStore = field(default_factory=NamedDataStore)
    constants: Pool = field(default_factory=lambda: Pool(TENSOR_ALIGNMENT))
    states: Pool = field(default_factory=lambda: Pool(TENSOR_ALIGNMENT))
    blobs: Pool = field(default_factory=Pool)


_BLOB_ALIGNMENTS = {BACKEND_ID: 16}
"""Bytes that the blobs of a backend are aligned to, if less than usual: XNNPACK's
compiler aligns to no more inside.
"""


class Delegates:
    """The delegates of one method, each once however often it is called; found by the
    attribute that holds it.
    """

    def __init__(self, context: Context, contents: list[DelegateContents]) -> None:
        self._context = context
        self._by_name = {contents_of.name: contents_of for contents_of in contents}
        self.used: dict[str, DelegateContents] = {}

    def named(self, name: str) -> DelegateContents:
        """The delegate of a dotted attribute, used or not."""
        return self._by_name[name]

    def find(self, name: str) -> tuple[int, DelegateContents]:
        """(position in the method's table, the delegate) of a dotted attribute."""
        delegate = self.used.setdefault(name, self._by_name[name])
        return list(self.used).index(name), delegate

    def tables(self) -> tuple[BackendDelegate, ...]:
        """The delegates in the file's terms; a blob's index is its position in the
        pool, not yet its segment's.
        """
        return tuple(self._table(delegate) for delegate in self.used.values())

    def _table(self, delegate: DelegateContents) -> BackendDelegate:
        alignment = _BLOB_ALIGNMENTS.get(delegate.backend_id, SEGMENT_ALIGNMENT)
        position = self._context.blobs.add(delegate.blob, alignment)
        reference = BackendDelegateDataReference(BlobLocation.SEGMENT, position)
        specs = tuple(
            CompileSpec(spec.key, bytes(spec.value)) for spec in delegate.compile_specs
        )
        return BackendDelegate(delegate.backend_id, reference, specs)
