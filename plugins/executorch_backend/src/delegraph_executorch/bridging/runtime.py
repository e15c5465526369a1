"""Blobs of ExecuTorch's backends in ExecuTorch's own runtime: each is the one delegate
of a program made for it.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

import torch
from delegraph.backend import CompileSpec
from delegraph.errors import FormatError, InputError, NoRuntime
from delegraph.io.quiet import quietly
from delegraph.runtime import (
    BackendRuntime,
    BlobHeader,
    Border,
    Compatibility,
    Delegate,
    ProfiledDelegate,
    Spent,
)

from ..emit.kernel_calls import CODES
from ..program import tables
from ..program.tables import (
    AllocationDetails,
    Chain,
    DelegateCall,
    Dynamism,
    EValue,
    Instruction,
    Int,
    Tensor,
)
from ..serialize.file import Segment, program_file
from ..wheel import in_c_order, stock_runtime
from .compatible import compatible
from .convention import Convention, Value, convention_of
from .profile import last_run, nodes_of, spent

ALIGNMENT = 16
"""Bytes that the memory of every output is aligned to."""


class BridgedRuntime(BackendRuntime):
    """Runs the blobs of ``backend_id``, if the wheel ``executorch`` has the backend's
    device half.
    """

    backend_id: ClassVar[str]
    any_strides = True

    @classmethod
    def compatible(
        cls,
        header: BlobHeader,
        compile_specs: Sequence[CompileSpec],
        device: str | None = None,
    ) -> Compatibility | None:
        """By the backends of ExecuTorch's runtime here, and by its version beside that
        which compiled the blob.
        """
        return compatible(cls.backend_id, header, device)

    @classmethod
    def load(
        cls,
        processed_bytes: bytes,
        compile_specs: Sequence[CompileSpec],
        named_data: Mapping[str, bytes],
    ) -> Delegate:
        """The blob as a program of one delegate. Raises NoRuntime if the runtime has no
        such backend.
        """
        runtime = stock_runtime()
        known = runtime.backend_registry.registered_backend_names
        if cls.backend_id not in known:
            text = (
                f"ExecuTorch's runtime here has no {cls.backend_id}; it has"
                f" {', '.join(known)}"
            )
            raise NoRuntime(
                "no-runtime", text, hint="save the program, and run it on the device"
            )
        convention = convention_of(cls.backend_id, processed_bytes, named_data)
        content = one_delegate_program(
            cls.backend_id, processed_bytes, compile_specs, named_data, convention
        )
        try:
            program = runtime.load_program(content)
            method = program.load_method("forward")
        except RuntimeError as e:
            raise FormatError(
                "format-invalid", f"{cls.backend_id} does not load this blob: {e}"
            ) from e

        def call(*args: torch.Tensor | float) -> tuple[Any, ...]:
            keep = program  # a method does not keep its program, which owns the blob
            try:
                # results lie where the next call writes: the caller copies those of a
                # runtime that is not thread_safe
                return tuple(
                    method._method([_plain(a) for a in args], clone_outputs=False)
                )
            except RuntimeError as e:
                raise InputError(
                    "input-invalid", f"{cls.backend_id} refuses these inputs: {e}"
                ) from e
            finally:
                del keep

        return call


class XnnpackBridgedRuntime(BridgedRuntime):
    """XNNPACK's, which tells the time of its operators."""

    @classmethod
    def profile(
        cls,
        processed_bytes: bytes,
        compile_specs: Sequence[CompileSpec],
        named_data: Mapping[str, bytes],
    ) -> ProfiledDelegate:
        """As ``load``; each call also tells the seconds of XNNPACK's operators, from
        ExecuTorch's ETDump.
        """
        # which says in words what is the matter, if something is
        cls.load(processed_bytes, compile_specs, named_data)
        with quietly():
            from executorch.extension.pybindings import portable_lib

        convention = convention_of(cls.backend_id, processed_bytes, named_data)
        content = one_delegate_program(
            cls.backend_id, processed_bytes, compile_specs, named_data, convention
        )
        program = portable_lib._load_for_executorch_from_buffer(
            content, enable_etdump=True
        )
        nodes = nodes_of(processed_bytes)

        def read() -> Spent:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "call.etdp")
                program.write_etdump_result_to_file(
                    str(path), str(path.with_suffix(".debug"))
                )
                return spent(last_run(path.read_bytes()), nodes)

        def call(
            *args: torch.Tensor | float,
        ) -> tuple[tuple[Any, ...], Callable[[], Spent]]:
            keep = content  # the program reads it where it is
            given = []
            borders = {}
            for place, arg in enumerate(args):
                start = perf_counter()
                given.append(_plain(arg))
                borders[Border("input", place)] = {"seconds": perf_counter() - start}
            try:
                results = tuple(
                    program.run_method("forward", tuple(given), clone_outputs=False)
                )
                return results, lambda: {**read(), **borders}
            except RuntimeError as e:
                raise InputError(
                    "input-invalid", f"{cls.backend_id} refuses these inputs: {e}"
                ) from e
            finally:
                del keep

        return call


def _plain(given: torch.Tensor | float) -> torch.Tensor | float:
    """What ExecuTorch's runtime takes: no Parameter, and C order."""
    if not isinstance(given, torch.Tensor):
        return given
    plain: torch.Tensor = (
        given
        if type(given) is torch.Tensor and not given.requires_grad
        else given.detach()
    )
    return in_c_order(plain)  # type: ignore[no-any-return]


def one_delegate_program(
    backend_id: str,
    blob: bytes,
    compile_specs: Sequence[CompileSpec],
    named_data: Mapping[str, bytes],
    convention: Convention,
) -> bytes:
    """A ``.pte`` file whose method ``forward`` calls one delegate, with its inputs, and
    returns its outputs.
    """
    values = [_input(v) for v in convention.inputs]
    end = 0
    for output in convention.outputs:
        values.append(_tensor(output, AllocationDetails.at(1, end)))
        end += _nbytes(output) + -_nbytes(output) % ALIGNMENT
    given = tuple(range(len(convention.inputs)))
    returned = tuple(range(len(given), len(values)))
    reference = tables.BackendDelegateDataReference(tables.BlobLocation.SEGMENT, 0)
    specs = tuple(tables.CompileSpec(s.key, s.value) for s in compile_specs)
    plan = tables.ExecutionPlan(
        name="forward",
        container=tables.ContainerMetadata(),
        values=tuple(map(EValue, values)),
        inputs=given,
        outputs=returned,
        chains=(
            Chain(
                given, returned, (Instruction(DelegateCall(0, (*given, *returned))),)
            ),
        ),
        delegates=(tables.BackendDelegate(backend_id, reference, specs),),
        memory_sizes=(0, end),
    )
    program = tables.Program(
        plans=(plan,),
        constant_segment=tables.SubsegmentOffsets(0, (0,)),
        named_data=tuple(
            tables.NamedData(key, 1 + k) for k, key in enumerate(named_data)
        ),
    )
    return program_file(
        program, [Segment(blob), *map(Segment, named_data.values())]
    ).join()


def _input(value: Value) -> Tensor | Int:
    return Int(0) if value.dtype is None else _tensor(value, None)


def _tensor(value: Value, allocation: AllocationDetails | None) -> Tensor:
    if value.dtype is None:
        raise NoRuntime(
            "no-runtime",
            "ExecuTorch's delegates return tensors, and this one is to return a number",
        )
    return Tensor(
        scalar_type=CODES[getattr(torch, value.dtype)],
        sizes=value.sizes,
        dim_order=tuple(range(len(value.sizes))),
        allocation=allocation,
        dynamism=Dynamism.BOUND if value.varies else Dynamism.STATIC,
    )


def _nbytes(value: Value) -> int:
    dtype: torch.dtype = getattr(torch, value.dtype or "bool")
    return math.prod(value.sizes) * dtype.itemsize
