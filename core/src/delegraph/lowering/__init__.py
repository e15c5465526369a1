"""``to_backend``: hand a program, or the parts of it that a partitioner tags, to a backend (names as in ExecuTorch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from torch.export import ExportedProgram

from ..backend import CompileSpec
from ..discovery.registry import default_registry
from ..engine.delegate.stage import run_stage
from ..engine.functionalize.normalize import normalize
from ..engine.gc_pause import collection_suspended
from ..engine.graph_equality import is_identical_graph
from ..errors import InputError, UnknownMethod
from ..partitioner import AllNodePartitioner, Partitioner
from ..program.call_spec import whole_call
from ..program.delegates import DelegateDebug, delegate_calls, delegate_map, merged_named_data
from ..program.lowered_module import LoweredBackendModule
from .edge import EdgeCompileConfig, EdgeProgramManager, to_edge, to_edge_transform_and_lower
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
    "LoweredBackendModule",
    "MethodProgramsPartitionerSpec",
    "delegate_calls",
    "delegate_map",
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
    """Programs and partitioners by method name; a method without a partitioner stays as it is."""

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
    """Lower with a backend or a partitioner; three forms.

    ``to_backend(backend_id, program, compile_specs)``: the whole program, calls of delegates in it included, as one
    ``LoweredBackendModule``, which is called as the program is and keeps the buffers that it writes.
    ``to_backend(program, partitioner)``: the program with what the partitioner tags delegated.
    ``to_backend(MethodProgramsPartitionerSpec(...))``: the same for several methods, each backend called once for all.
    The programs that are passed in are never changed.
    """
    if isinstance(target, str) and isinstance(program, ExportedProgram):
        return _whole(target, program, compile_specs)
    if isinstance(target, ExportedProgram) and isinstance(program, Partitioner):
        return _methods({"forward": target}, {"forward": program})["forward"]
    if isinstance(target, MethodProgramsPartitionerSpec) and program is None:
        return _methods(target.method_to_edge_program, target.method_to_partitioner)
    forms = (
        "(backend_id, ExportedProgram, compile_specs), (ExportedProgram, Partitioner), (MethodProgramsPartitionerSpec)"
    )
    given = ", ".join(type(a).__name__ for a in (target, program) if a is not None)
    raise InputError("input-invalid", f"to_backend takes {forms}; it was given ({given})")


def _methods(programs: Mapping[str, Any], partitioners: Mapping[str, Any]) -> dict[str, ExportedProgram]:
    unknown = [m for m in partitioners if m not in programs]
    if unknown:
        raise UnknownMethod(
            "input-invalid", f"a partitioner is given for method {unknown[0]!r}; methods: {list(programs)}"
        )
    with collection_suspended():
        normal = {m: normalize(p)[0] if m in partitioners else p for m, p in programs.items()}
        return run_stage(normal, partitioners, default_registry()).programs


def _whole(backend_id: str, program: ExportedProgram, compile_specs: Sequence[CompileSpec]) -> LoweredBackendModule:
    with collection_suspended():
        normal, _ = normalize(program)
        everything = AllNodePartitioner(backend_id, compile_specs)
        made = run_stage({"forward": normal}, {"forward": everything}, default_registry())
        call = whole_call(made.programs["forward"])
    module = made.work[0].module
    module.whole = call
    return module
