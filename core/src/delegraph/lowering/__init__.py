"""``to_backend``: hand a program, or the parts of it that a partitioner tags, to a backend (names as in ExecuTorch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from torch.export import ExportedProgram

from ..backend import CompileSpec
from ..delegates.delegates import DelegateDebug, delegate_calls, delegate_map, merged_named_data
from ..delegates.lowered_module import LoweredBackendModule
from ..delegates.whole_call import whole_call
from ..errors import InputError
from ..exported.graph_equality import is_identical_graph
from ..partitioner import AllNodePartitioner, Partitioner
from .edge import (
    EdgeCompileConfig,
    EdgeProgramManager,
    ExecutorchProgramManager,
    delegate,
    to_edge,
    to_edge_transform_and_lower,
)
from .extract import extract_partition
from .graph_queries import (
    format_delegated_graph,
    get_delegated_payload,
    get_delegates,
    get_lowered_backend_modules,
    get_lowered_submodules,
    get_non_lowered_nodes,
)

__all__ = [
    "DelegateDebug",
    "EdgeCompileConfig",
    "EdgeProgramManager",
    "ExecutorchProgramManager",
    "LoweredBackendModule",
    "MethodProgramsPartitionerSpec",
    "delegate_calls",
    "delegate_map",
    "extract_partition",
    "format_delegated_graph",
    "get_delegated_payload",
    "get_delegates",
    "get_lowered_backend_modules",
    "get_lowered_submodules",
    "get_non_lowered_nodes",
    "is_identical_graph",
    "merged_named_data",
    "to_backend",
    "to_edge",
    "to_edge_transform_and_lower",
]


@dataclass
class MethodProgramsPartitionerSpec:
    """Programs and partitioners by method name; a method without a partitioner is not changed."""

    method_to_edge_program: Mapping[str, ExportedProgram]
    method_to_partitioner: Mapping[str, Partitioner]


@overload
def to_backend(
    target: str, program: ExportedProgram, compile_specs: Sequence[CompileSpec] = ()
) -> LoweredBackendModule: ...
@overload
def to_backend(target: ExportedProgram, program: Partitioner) -> ExportedProgram: ...
@overload
def to_backend(target: MethodProgramsPartitionerSpec) -> dict[str, ExportedProgram]: ...


def to_backend(target: Any, program: Any = None, compile_specs: Sequence[CompileSpec] = ()) -> Any:
    """Lower with a backend or a partitioner. There are three forms.

    ``to_backend(backend_id, program, compile_specs)``: the whole program, calls of delegates in it included, becomes
    one ``LoweredBackendModule``, which is called like the program and keeps the buffers that it writes.
    ``to_backend(program, partitioner)``: the program, with everything that the partitioner tags delegated.
    ``to_backend(MethodProgramsPartitionerSpec(...))``: the same for several methods; each backend is called once for
    all. The programs that are passed in never change.
    """
    if isinstance(target, str) and isinstance(program, ExportedProgram):
        lowered = delegate({"forward": program}, {"forward": AllNodePartitioner(target, compile_specs)}, whole=True)
        call = whole_call(lowered.programs["forward"])
        module = lowered.delegates[0].module
        module.whole = call
        return module
    if isinstance(target, ExportedProgram) and isinstance(program, Partitioner):
        return delegate({"forward": target}, {"forward": program}).programs["forward"]
    if isinstance(target, MethodProgramsPartitionerSpec) and program is None:
        programs = target.method_to_edge_program
        return {**programs, **delegate(programs, target.method_to_partitioner).programs}
    forms = (
        "(backend_id, ExportedProgram, compile_specs), (ExportedProgram, Partitioner), (MethodProgramsPartitionerSpec)"
    )
    given = ", ".join(type(a).__name__ for a in (target, program) if a is not None)
    raise InputError("input-invalid", f"to_backend takes {forms}; it was given ({given})")
