"""Run blobs of ExecuTorch's backends in ExecuTorch's own runtime.

The runtime loads program files only. So a program file is generated for each blob, with
the blob as its only delegate.
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
from delegraph.runtime import (
    BackendRuntime,
    BlobHeader,
    Border,
    Compatibility,
    Delegate,
    ProfiledDelegate,
    Spent,
)
from delegraph_engines import quietly

from ..emit.kernel_calls import CODES
from ..program import pte_tables
from ..program.pte_tables import (
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
from .calling_convention import Convention, Value, convention_of
from .compatibility import compare_with_stock_runtime
from .profile import last_run, nodes_of, spent

ALIGNMENT = 16
"""Bytes that the memory of every output is aligned to."""


class BridgedRuntime(BackendRuntime):
    """Runs the blobs of ``backend_id`` in the runtime of the wheel ``executorch``."""

    backend_id: ClassVar[str]
    any_strides = True

    @classmethod
    def compatible(
        cls,
        header: BlobHeader,
        compile_specs: Sequence[CompileSpec],
        device: str | None = None,
    ) -> Compatibility | None:
        """Compare a blob with the backends and version of ExecuTorch's runtime here."""
        return compare_with_stock_runtime(cls.backend_id, header, device)

    @classmethod
    def load(
        cls,
        processed_bytes: bytes,
        compile_specs: Sequence[CompileSpec],
        named_data: Mapping[str, bytes],
    ) -> Delegate:
        """Load the blob as a program of one delegate.

        Raises NoRuntime if the runtime here lacks the backend.
        """
        runtime = stock_runtime()
        known = runtime.backend_registry.registered_backend_names
        if cls.backend_id not in known:
            text = (
                f"ExecuTorch's runtime here has no backend {cls.backend_id}; it has"
                f" {', '.join(known)}"
            )
            hint = "save the program, and run it on the device"
            raise NoRuntime("no-runtime", text, hint=hint)
        content = cls._program(processed_bytes, compile_specs, named_data)
        try:
            program = runtime.load_program(content)
            method = program.load_method("forward")
        except RuntimeError as e:
            text = f"{cls.backend_id} cannot load this blob: {e}"
            raise FormatError("format-invalid", text) from e

        def call(*args: torch.Tensor | float) -> tuple[Any, ...]:
            # The method does not keep its program alive. This use of ``program`` makes
            # the function keep it.
            keep = program
            inputs = [_as_plain_tensor(a) for a in args]
            try:
                # The next call overwrites the results. The caller copies them, since the
                # runtime is not thread_safe.
                return tuple(method._method(inputs, clone_outputs=False))
            except RuntimeError as e:
                raise cls._input_error(e) from e
            finally:
                del keep

        return call

    @classmethod
    def _program(
        cls,
        processed_bytes: bytes,
        compile_specs: Sequence[CompileSpec],
        named_data: Mapping[str, bytes],
    ) -> bytes:
        """Return a ``.pte`` file with the blob as its only delegate."""
        convention = convention_of(cls.backend_id, processed_bytes, named_data)
        return one_delegate_program(
            cls.backend_id, processed_bytes, compile_specs, named_data, convention
        )

    @classmethod
    def _input_error(cls, error: RuntimeError) -> InputError:
        """Return the error for inputs that the runtime refuses."""
        return InputError(
            "input-invalid", f"{cls.backend_id} refuses these inputs: {error}"
        )


class XnnpackBridgedRuntime(BridgedRuntime):
    """XNNPACK's runtime, which measures the time of its operators."""

    @classmethod
    def profile(
        cls,
        processed_bytes: bytes,
        compile_specs: Sequence[CompileSpec],
        named_data: Mapping[str, bytes],
    ) -> ProfiledDelegate:
        """Load a blob so that calls also return a function that reads the times.

        The times of XNNPACK's operators come from ExecuTorch's ETDump.
        """
        # Load once more, and drop the result: ``load`` explains errors, unlike the loader
        # with ETDump.
        cls.load(processed_bytes, compile_specs, named_data)
        with quietly():
            from executorch.extension.pybindings import portable_lib

        content = cls._program(processed_bytes, compile_specs, named_data)
        program = portable_lib._load_for_executorch_from_buffer(
            content, enable_etdump=True
        )
        nodes = nodes_of(processed_bytes)

        def read_times(middle: float) -> Spent:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "call.etdp")
                debug = path.with_suffix(".debug")
                program.write_etdump_result_to_file(str(path), str(debug))
                return spent(last_run(path.read_bytes()), nodes, middle)

        def call(
            *args: torch.Tensor | float,
        ) -> tuple[tuple[Any, ...], Callable[[], Spent]]:
            # The program does not keep its bytes alive. This use of ``content`` makes the
            # function keep them.
            keep = content
            inputs = []
            # the time for converting each input
            borders: dict[Any, dict[str, Any]] = {}
            for position, arg in enumerate(args):
                start = perf_counter()
                inputs.append(_as_plain_tensor(arg))
                end = perf_counter()
                borders[Border("input", position)] = {
                    "seconds": end - start,
                    "intervals": [(start, end)],
                }
            try:
                start = perf_counter()
                results = program.run_method(
                    "forward", tuple(inputs), clone_outputs=False
                )
                middle = (start + perf_counter()) / 2

                def times() -> Spent:
                    return {**read_times(middle), **borders}

                return tuple(results), times
            except RuntimeError as e:
                raise cls._input_error(e) from e
            finally:
                del keep

        return call


def _as_plain_tensor(given: torch.Tensor | float) -> torch.Tensor | float:
    """Return an input for ExecuTorch's runtime: no Parameter, and in C order."""
    if not isinstance(given, torch.Tensor):
        return given
    if type(given) is not torch.Tensor or given.requires_grad:
        given = given.detach()
    return in_c_order(given)  # type: ignore[no-any-return]


def one_delegate_program(
    backend_id: str,
    blob: bytes,
    compile_specs: Sequence[CompileSpec],
    named_data: Mapping[str, bytes],
    convention: Convention,
) -> bytes:
    """Return a ``.pte`` file with a method ``forward`` that calls one delegate."""
    # The table of values has the inputs, then the outputs. The caller has the memory of
    # the inputs; the outputs are in memory 1, since memory 0 is for constants.
    values = [_input(v) for v in convention.inputs]
    memory_size = 0
    for output in convention.outputs:
        values.append(_tensor(output, AllocationDetails.at(1, memory_size)))
        padding = -_nbytes(output) % ALIGNMENT
        memory_size += _nbytes(output) + padding
    inputs = tuple(range(len(convention.inputs)))
    outputs = tuple(range(len(inputs), len(values)))
    # Segment 0 is the blob; the named data follow from segment 1.
    reference = pte_tables.BackendDelegateDataReference(
        pte_tables.BlobLocation.SEGMENT, 0
    )
    specs = tuple(pte_tables.CompileSpec(s.key, s.value) for s in compile_specs)
    call = Instruction(DelegateCall(0, (*inputs, *outputs)))
    plan = pte_tables.ExecutionPlan(
        name="forward",
        container=pte_tables.ContainerMetadata(),
        values=tuple(map(EValue, values)),
        inputs=inputs,
        outputs=outputs,
        chains=(Chain(inputs, outputs, (call,)),),
        delegates=(pte_tables.BackendDelegate(backend_id, reference, specs),),
        memory_sizes=(0, memory_size),
    )
    program = pte_tables.Program(
        plans=(plan,),
        constant_segment=pte_tables.SubsegmentOffsets(0, (0,)),
        named_data=tuple(
            pte_tables.NamedData(key, 1 + k) for k, key in enumerate(named_data)
        ),
    )
    return program_file(
        program, [Segment(blob), *map(Segment, named_data.values())]
    ).join()


def _input(value: Value) -> Tensor | Int:
    """Return the entry of an input in the file: a tensor without memory, or a number."""
    return Int(0) if value.dtype is None else _tensor(value, None)


def _tensor(value: Value, allocation: AllocationDetails | None) -> Tensor:
    """Return a tensor's entry in the table of values.

    Raises NoRuntime if the value is a number.
    """
    if value.dtype is None:
        raise NoRuntime(
            "no-runtime",
            "this delegate returns a number, but delegates of ExecuTorch return tensors"
            " only",
        )
    return Tensor(
        scalar_type=CODES[getattr(torch, value.dtype)],
        sizes=value.sizes,
        dim_order=tuple(range(len(value.sizes))),
        allocation=allocation,
        dynamism=Dynamism.BOUND if value.varies else Dynamism.STATIC,
    )


def _nbytes(value: Value) -> int:
    """Return the number of bytes of a tensor at its largest size."""
    # ``_tensor`` has refused numbers, the values without a dtype.
    dtype: torch.dtype = getattr(torch, str(value.dtype))
    return math.prod(value.sizes) * dtype.itemsize
