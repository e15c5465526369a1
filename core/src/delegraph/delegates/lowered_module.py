"""``LoweredBackendModule``: a partition, and the blob to which its backend compiled it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from ..backend import Blob, CompileSpec, NamedDataStoreOutput, PreprocessResult
from ..exported_program import CALL_DELEGATE, STATE_WRITES, is_validating
from ..io.blob import join


@dataclass(frozen=True)
class Argument:
    """One input or output of a delegate.

    Its name in the program, its dtype and its shape (both None for a Python number).
    """

    name: str
    dtype: torch.dtype | None
    shape: tuple[Any, ...] | None

    @classmethod
    def of(cls, name: str, val: Any, dtype: torch.dtype | None = None) -> Argument:
        """By the recorded value, for one that crosses the border in ``dtype``, or its own."""
        if not isinstance(val, torch.Tensor):
            return cls(name, None, None)
        return cls(name, dtype or val.dtype, tuple(val.shape))

    @property
    def type(self) -> str:
        """The type in words: ``float32[2, 3]``, or ``number``."""
        sizes = ", ".join(map(str, self.shape or ()))
        return "number" if self.dtype is None else f"{str(self.dtype).removeprefix('torch.')}[{sizes}]"

    def __str__(self) -> str:
        return f"{self.name}: {self.type}"


class LoweredBackendModule(torch.nn.Module):
    """What a lowered graph calls through ``torch.ops.higher_order.executorch_call_delegate``.

    What it records is read-only. ``processed_bytes`` joins the blob when it is first read; ``blob`` is what the backend
    returned. There is no ``module_name``, on purpose: ``torch.export.save`` of a lowered program must fail, because it
    would silently leave out the blob.

    ``inputs`` and ``outputs`` are the calling convention. Buffers that the delegate keeps (``state``) are in neither.
    In ``original_module`` they are buffers, and their new values are the first outputs, as mutations in its signature.
    A runtime starts with their values there in every load, and keeps them from call to call.

    It takes its inputs one by one and returns a tuple. ``whole(delegate, args, kwargs)``, if a face sets it, calls the
    delegate as the whole program is called that it stands for, with arguments and results in that one's structure. A
    copy shares the blob and all tensors but those of its state.
    """

    def __init__(
        self,
        backend_id: str,
        original_module: ExportedProgram,
        compile_specs: Sequence[CompileSpec],
        inputs: Sequence[Argument] = (),
        outputs: Sequence[Argument] = (),
    ) -> None:
        super().__init__()
        self._backend_id, self._original_module, self._compile_specs = backend_id, original_module, tuple(compile_specs)
        self._inputs, self._outputs = tuple(inputs), tuple(outputs)
        self.meta: dict[str, Any] = {}
        self.blob: bytes | Blob = b""
        self._named_data_store_output: NamedDataStoreOutput | None = None
        self.whole: Callable[..., Any] | None = None

    def belongs_to(self, backend_id: str) -> None:
        """Record the backend's class name; the partitioner may have used another name of the backend."""
        self._backend_id = backend_id

    def restore(self, original_module: ExportedProgram) -> None:
        """Record a fresh extract of the partition, after the backend rewrote the one that it was given."""
        self._original_module = original_module

    def attach(self, result: PreprocessResult, producer: tuple[str, str], fingerprint: str | None = None) -> None:
        """Record what the backend returned; ``producer`` is its distribution and the version of that.

        ``fingerprint`` is the backend's, if it gives one.
        """
        self.blob, self._named_data_store_output = result.processed_bytes, result.data_store_output
        self.meta["debug_handle_map"] = result.debug_handle_map
        self.meta["producer"] = " ".join(filter(None, producer))
        self.meta["fingerprint"] = fingerprint or ""
        given = result._delegate_info_meta  # ExecuTorch's name for what a backend tells; facts where it has names
        if given is not None:
            self.meta["_delegate_info_meta"] = given
        facts = {**(given if isinstance(given, Mapping) else {}), **result.facts}
        self.meta["facts"] = {str(name): str(fact) for name, fact in facts.items()}
        self.meta["figures"] = {identifier: dict(amounts) for identifier, amounts in result.figures.items()}

    @property
    def backend_id(self) -> str:
        """The name of the backend's class."""
        return self._backend_id

    @property
    def original_module(self) -> ExportedProgram:
        """The partition as a program; torch's own call of the delegate runs it."""
        return self._original_module

    @property
    def compile_specs(self) -> list[CompileSpec]:
        """The settings that the backend was given, and that its runtime gets."""
        return list(self._compile_specs)

    @property
    def inputs(self) -> tuple[Argument, ...]:
        """What the delegate is called with."""
        return self._inputs

    @property
    def outputs(self) -> tuple[Argument, ...]:
        """What it returns."""
        return self._outputs

    @property
    def named_data_store_output(self) -> NamedDataStoreOutput | None:
        """The data that the backend named, if any."""
        return self._named_data_store_output

    @property
    def place(self) -> tuple[str, Iterable[Node]]:
        """Which partition it is, and its operators, for errors of its plugin."""
        program = self.original_module.graph_module
        where = f"partition {program.meta['partition']} of method {program.meta['method']}"
        return where, program.graph.nodes

    @property
    def processed_bytes(self) -> bytes:
        """The blob as the ``.pte`` stores it."""
        if is_validating():
            return b""
        self.blob = join(self.blob)
        return self.blob

    @property
    def state(self) -> tuple[str, ...]:
        """Names of the buffers that the delegate keeps and writes."""
        specs = self.original_module.graph_signature.output_specs
        return tuple(str(s.target) for s in specs if s.kind in STATE_WRITES)

    @property
    def keeps_state(self) -> bool:
        """Whether the delegate keeps and writes buffers."""
        return bool(self.state)

    @property
    def inner(self) -> GraphModule:
        """The graph of the partition."""
        graph: GraphModule = self.original_module.graph_module
        return graph

    def state_tensors(self) -> list[torch.Tensor]:
        """The tensors of the buffers in ``state``. torch's own call of the delegate writes them.

        A runtime has its own.
        """
        tables = (self.original_module.state_dict, self.original_module.constants)
        return [t for table in tables for k, t in table.items() if k in self.state]

    def named_data(self) -> dict[str, bytes]:
        """Named data by key, internal and external, as bytes: what a runtime gets."""
        store = self.named_data_store_output or NamedDataStoreOutput()
        tables = [store.pte_data, *store.external_data.values()]
        return {k: join(store.buffers[e.buffer_index]) for entries in tables for k, e in entries.items()}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.whole is not None:
            return self.whole(partial(CALL_DELEGATE, self), args, kwargs)
        return CALL_DELEGATE(self, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> LoweredBackendModule:
        """A copy that shares everything that is never written."""
        memo.update((id(t), t) for t in self._shared())
        twin = LoweredBackendModule(
            self.backend_id,
            copy.deepcopy(self.original_module, memo),
            self.compile_specs,
            self.inputs,
            self.outputs,
        )
        twin.blob, twin._named_data_store_output, twin.whole = self.blob, self._named_data_store_output, self.whole
        twin.meta = dict(self.meta)
        memo[id(self)] = twin
        return twin

    def _shared(self) -> list[torch.Tensor]:
        """The tensors of the program that it never writes; copies share them."""
        tables = (self.original_module.state_dict, self.original_module.constants)
        return [t for table in tables for k, t in table.items() if k not in self.state]
