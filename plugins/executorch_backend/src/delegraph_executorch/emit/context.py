"""What all methods of a program share while it is emitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..kernels import KernelSet
from ..program.tables import BackendDelegate, BackendDelegateDataReference, BlobLocation, CompileSpec
from .pool import Pool


@dataclass
class Context:
    """The kernels that may be called, and the pools of bytes.

    ``plan_inputs`` and ``plan_outputs``: whether inputs and outputs get planned memory, or the caller brings it.
    """

    kernels: KernelSet
    plan_inputs: bool = True
    plan_outputs: bool = True
    constants: Pool = field(default_factory=Pool)
    states: Pool = field(default_factory=Pool)
    blobs: Pool = field(default_factory=Pool)


def backend_delegate(module: Any, context: Context) -> BackendDelegate:
    """The table of a ``LoweredBackendModule``; its blob's index is the position in the pool, not yet the segment's."""
    reference = BackendDelegateDataReference(BlobLocation.SEGMENT, context.blobs.add(module.blob))
    specs = tuple(CompileSpec(spec.key, bytes(spec.value)) for spec in module.compile_specs)
    return BackendDelegate(module.backend_id, reference, specs)


@dataclass
class Delegates:
    """The delegates of one method, each once however often it is called."""

    context: Context
    tables: list[BackendDelegate] = field(default_factory=list)
    debug_maps: list[Mapping[Any, tuple[int, ...]]] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    _indices: dict[Any, int] = field(default_factory=dict)

    def index(self, module: Any) -> int:
        if module not in self._indices:
            self._indices[module] = len(self.tables)
            self.tables.append(backend_delegate(module, self.context))
            self.outputs.append(len(module.outputs))
            self.debug_maps.append(dict(module.meta.get("debug_handle_map") or {}))
        return self._indices[module]
