"""Offer delegraph's pipeline by ExecuTorch's names, such as ``to_edge``.

``to_backend`` gives a backend the whole program, or the parts that a partitioner tags.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from delegraph.backend import CompileSpec
from delegraph.delegates import (
    LoweredBackendModule,
    delegate_calls,
    merged_named_data,
)
from delegraph.engine import extract_partition
from delegraph.errors import InputError
from delegraph.partitioner import Partitioner
from torch.export import ExportedProgram

from .delegate_map import DelegateDebug, delegate_map
from .external_files import externalize_pte_data
from .graph_queries import (
    format_delegated_graph,
    get_delegated_payload,
    get_delegates,
    get_lowered_backend_modules,
    get_lowered_submodules,
    get_non_lowered_nodes,
    is_identical_graph,
)
from .manager import (
    EdgeCompileConfig,
    EdgeProgramManager,
    ExecutorchProgramManager,
    delegate,
    to_edge,
    to_edge_transform_and_lower,
)
from .operator_support import (
    DontPartition,
    DontPartitionModule,
    DontPartitionName,
    is_shape_dynamic,
)
from .pattern_partitioners import AllNodePartitioner, PatternPartitioner, matches
from .whole_call import whole_call

__all__ = [
    "AllNodePartitioner",
    "DelegateDebug",
    "DontPartition",
    "DontPartitionModule",
    "DontPartitionName",
    "EdgeCompileConfig",
    "EdgeProgramManager",
    "ExecutorchProgramManager",
    "LoweredBackendModule",
    "MethodProgramsPartitionerSpec",
    "PatternPartitioner",
    "delegate_calls",
    "delegate_map",
    "externalize_pte_data",
    "extract_partition",
    "format_delegated_graph",
    "get_delegated_payload",
    "get_delegates",
    "get_lowered_backend_modules",
    "get_lowered_submodules",
    "get_non_lowered_nodes",
    "is_identical_graph",
    "is_shape_dynamic",
    "matches",
    "merged_named_data",
    "to_backend",
    "to_edge",
    "to_edge_transform_and_lower",
]


@dataclass
class MethodProgramsPartitionerSpec:
    """Programs and partitioners by method. Without a partitioner, nothing changes."""

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


def to_backend(
    target: Any, program: Any = None, compile_specs: Sequence[CompileSpec] = ()
) -> Any:
    """Lower with a backend or a partitioner; the arguments never change.

    - ``to_backend(backend_id, program, compile_specs)`` makes one
      ``LoweredBackendModule`` of the whole program, including calls of delegates. It is
      called like the program, and keeps the buffers that it writes.
    - ``to_backend(program, partitioner)`` delegates the operators that the partitioner
      tags.
    - ``to_backend(MethodProgramsPartitionerSpec(...))`` does so for several methods.
      Each backend is called once for all of them.
    """
    if isinstance(target, str) and isinstance(program, ExportedProgram):
        everything = {"forward": AllNodePartitioner(target, compile_specs)}
        lowered = delegate({"forward": program}, everything, whole=True)["forward"]
        call = whole_call(lowered)
        _, module = next(iter(delegate_calls(lowered)))
        module.whole = call
        return module
    if isinstance(target, ExportedProgram) and isinstance(program, Partitioner):
        return delegate({"forward": target}, {"forward": program})["forward"]
    if isinstance(target, MethodProgramsPartitionerSpec) and program is None:
        programs = target.method_to_edge_program
        return {**programs, **delegate(programs, target.method_to_partitioner)}
    forms = (
        "(backend_id, ExportedProgram, compile_specs), (ExportedProgram, Partitioner),"
        " (MethodProgramsPartitionerSpec)"
    )
    given = ", ".join(type(a).__name__ for a in (target, program) if a is not None)
    raise InputError(
        "input-invalid", f"to_backend takes {forms}; it was given ({given})"
    )
