"""``LoweredBackendModule``: a partition, and the blob to which its backend compiled it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from delegraph_programs.exported_program import (
    CALL_DELEGATE,
    STATE_WRITES,
    is_validating,
)
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from ..backend import Blob, CompileSpec, NamedDataStoreOutput, PreprocessResult
from ..io.blob_pieces import join


@dataclass(frozen=True)
class Argument:
    """One input or output of a delegate: a tensor or a Python number (``is_number``).

    ``name``: the name of the value in the program. ``dtype`` and ``shape``: those of
    the tensor, or None for a number.
    """

    name: str
    dtype: torch.dtype | None
    shape: tuple[Any, ...] | None

    @classmethod
    def of(cls, name: str, val: Any, dtype: torch.dtype | None = None) -> Argument:
        """Return the argument ``name`` with the recorded value ``val``.

        ``dtype``: the dtype in which a tensor crosses the border between host and
        delegate; None for the dtype of ``val``. If ``val`` is no tensor, the argument
        is a number.
        """
        if not isinstance(val, torch.Tensor):
            return cls(name, None, None)
        return cls(name, dtype or val.dtype, tuple(val.shape))

    @property
    def is_number(self) -> bool:
        """Return whether this is a Python number instead of a tensor."""
        return self.dtype is None

    @property
    def type(self) -> str:
        """Return the type as text: ``float32[2, 3]``, or ``number``."""
        if self.is_number:
            return "number"
        sizes = ", ".join(map(str, self.shape or ()))
        return f"{str(self.dtype).removeprefix('torch.')}[{sizes}]"

    def __str__(self) -> str:
        return f"{self.name}: {self.type}"


class LoweredBackendModule(torch.nn.Module):
    """The module that a lowered graph calls through
    ``torch.ops.higher_order.executorch_call_delegate``.

    ``backend_id``: the name of the backend's class; a partitioner may use another name
    until the partition is compiled. ``original_module``: the partition as a program,
    which torch's own call of the delegate runs. ``compile_specs``: the settings for
    backend and runtime. ``named_data_store_output``: the named data of the backend;
    None if there is none. ``blob``: the backend's blob; ``processed_bytes`` joins it
    when it is first read.

    This class has no ``module_name``, on purpose: ``torch.export.save`` of a lowered
    program must fail, because it would silently leave out the blob.

    ``inputs`` and ``outputs`` are the calling convention. They do not contain the
    buffers that the delegate keeps (``state``). These are buffers of
    ``original_module``, which returns their new values first, as mutations in its
    signature. At every load, a runtime starts with the values of these buffers in
    ``original_module``. It keeps the new values between calls.

    ``boundary_types``: name of a value of the host's program -> the dtype in which the
    value crosses the border of a delegate.

    A call of the module takes the inputs one by one and returns a tuple. If the module
    is a whole program, the function that makes the module may set ``whole``, as
    delegraph-executorch does. The module is then called like that program:
    ``whole(delegate, args, kwargs)`` calls the delegate, with arguments and results in
    the program's structure.

    A copy of the module shares the blob and all tensors except those of its state.
    """

    def __init__(
        self,
        backend_id: str,
        original_module: ExportedProgram,
        compile_specs: Sequence[CompileSpec],
        inputs: Sequence[Argument] = (),
        outputs: Sequence[Argument] = (),
    ) -> None:
        """Make a module without a blob; ``attach`` adds the blob."""
        super().__init__()
        self.backend_id = backend_id
        self.original_module = original_module
        self.compile_specs = list(compile_specs)
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.meta: dict[str, Any] = {}
        self.blob: bytes | Blob = b""
        self.named_data_store_output: NamedDataStoreOutput | None = None
        self.whole: Callable[..., Any] | None = None
        self.boundary_types: Mapping[str, torch.dtype] = {}

    def attach(
        self,
        result: PreprocessResult,
        producer: tuple[str, str],
        fingerprint: str | None = None,
    ) -> None:
        """Store ``result`` of the backend's ``preprocess``.

        Blob and named data become attributes, and everything else goes to ``meta``.
        ``producer``: the backend's distribution and its version. ``fingerprint``: the
        result of the backend's ``fingerprint``.
        """
        self.blob = result.processed_bytes
        self.named_data_store_output = result.data_store_output
        self.meta["debug_handle_map"] = result.debug_handle_map
        self.meta["producer"] = " ".join(filter(None, producer))
        self.meta["fingerprint"] = fingerprint or ""
        # Backends for ExecuTorch fill this field of its ``PreprocessResult``. If it is a
        # mapping, its entries are facts, too; ``result.facts`` takes precedence.
        delegate_info = result._delegate_info_meta
        facts: dict[Any, Any] = {}
        if delegate_info is not None:
            self.meta["_delegate_info_meta"] = delegate_info
        if isinstance(delegate_info, Mapping):
            facts |= delegate_info
        facts |= result.facts
        self.meta["facts"] = {str(name): str(fact) for name, fact in facts.items()}
        self.meta["output"] = result.output
        self.meta["figures"] = {
            identifier: dict(amounts) for identifier, amounts in result.figures.items()
        }

    @property
    def where_and_nodes(self) -> tuple[str, Iterable[Node]]:
        """Return ``partition X of method Y`` and the partition's nodes, which an error of
        the backend names.
        """
        program = self.original_module.graph_module
        where = (
            f"partition {program.meta['partition']} of method {program.meta['method']}"
        )
        return where, program.graph.nodes

    @property
    def processed_bytes(self) -> bytes:
        """Return the blob as bytes, as a ``.pte`` stores it.

        A ``Blob`` is joined at the first read, and the bytes then replace it in
        ``blob``. The result is empty while torch validates the program, which needs no
        blob.
        """
        if is_validating():
            return b""
        self.blob = join(self.blob)
        return self.blob

    @property
    def state(self) -> tuple[str, ...]:
        """Return the names of the buffers that the delegate keeps and writes."""
        specs = self.original_module.graph_signature.output_specs
        return tuple(str(s.target) for s in specs if s.kind in STATE_WRITES)

    @property
    def keeps_state(self) -> bool:
        """Return whether the delegate keeps and writes buffers.

        A part of the protocol ``Opaque``, as ``inner`` is: with these two, passes handle
        a delegate without knowing this class.
        """
        return bool(self.state)

    @property
    def inner(self) -> GraphModule:
        """Return the graph of the partition, before its backend compiled it."""
        graph: GraphModule = self.original_module.graph_module
        return graph

    def state_tensors(self) -> list[torch.Tensor]:
        """Return the tensors of the buffers in ``state``.

        torch writes them when it runs ``original_module``. A runtime that runs the blob
        has tensors of its own.
        """
        # buffers that torch does not save are in ``constants``
        tensors = self.original_module.state_dict | self.original_module.constants
        return [tensor for name, tensor in tensors.items() if name in self.state]

    def named_data(self) -> dict[str, bytes]:
        """Return all named data by key, as bytes for a runtime. These are the data for
        the program file and for external files.
        """
        store = self.named_data_store_output or NamedDataStoreOutput()
        data: dict[str, bytes] = {}
        for _, entries in store.files():
            for key, entry in entries.items():
                data[key] = join(store.buffers[entry.buffer_index])
        return data

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the delegate.

        If ``whole`` is set, arguments and results are those of the whole program.
        """
        if self.whole is not None:
            return self.whole(partial(CALL_DELEGATE, self), args, kwargs)
        return CALL_DELEGATE(self, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> LoweredBackendModule:
        """Return a copy that shares the blob, and all tensors except those of the state."""
        # ``memo``: id of an object -> its copy. A tensor that is its own copy is
        # shared.
        for table in (self.original_module.state_dict, self.original_module.constants):
            for name, tensor in table.items():
                if name not in self.state:
                    memo[id(tensor)] = tensor
        twin = LoweredBackendModule(
            self.backend_id,
            copy.deepcopy(self.original_module, memo),
            self.compile_specs,
            self.inputs,
            self.outputs,
        )
        twin.blob = self.blob
        twin.named_data_store_output = self.named_data_store_output
        twin.whole = self.whole
        twin.meta = dict(self.meta)
        twin.boundary_types = self.boundary_types
        memo[id(self)] = twin
        return twin
