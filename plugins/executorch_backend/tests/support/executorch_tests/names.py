"""ExecuTorch's module names, bound to delegraph: what its own tests then import is
ours.

``install`` is called in a process of its own, before the first test is imported. What
it binds is what delegraph offers under ExecuTorch's names, or in other words for the
same thing. ExecuTorch's schema, deserializer, devtools and runtime stay its own: they
are the judges, which read real files.
"""

from __future__ import annotations

import contextlib
import importlib
import operator
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import delegraph
import torch
from delegraph import backend, partitioner
from delegraph.delegates import LoweredBackendModule
from delegraph_engines import GroupedPartitioner
from delegraph_executorch import edge as lowering
from delegraph_executorch.device import build_library, load_library
from delegraph_executorch.emit import emit_program
from delegraph_executorch.serialize import reader
from torch import _C
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

TESTS = "executorch.exir.backend.test"
"""Where ExecuTorch's demo backends are."""
READS_NAMES = {
    "Backend2Demo",
    "BackendWithCompilerDemo",
    "BackendWithNamedDataMap",
    "FirstBackendWithPreprocessAll",
    "SecondBackendWithPreprocessAll",
}
"""Demo backends whose blobs have the names of operators as ExecuTorch's dialect writes
them.
"""
_registered: dict[str, contextlib.ExitStack] = {}


def install() -> None:
    """Bind the names, and load the device halves of the demo backends."""
    bound: dict[str, dict[str, Any]] = {
        "exir": (
            _faces()
            | {
                "EdgeCompileConfig": EdgeCompileConfig,
                "ExecutorchBackendConfig": BackendConfig,
            }
        ),
        "exir.program": _faces(),
        "exir.program._program": _faces(),
        "exir.capture": {
            "EdgeCompileConfig": EdgeCompileConfig,
            "ExecutorchBackendConfig": BackendConfig,
        },
        "exir.capture._config": {
            "EdgeCompileConfig": EdgeCompileConfig,
            "ExecutorchBackendConfig": BackendConfig,
        },
        "exir.backend.backend_api": {
            "to_backend": lowering.to_backend,
            "MethodProgramsPartitionerSpec": lowering.MethodProgramsPartitionerSpec,
            "LoweredBackendModule": LoweredModule,
        },
        "exir.backend.backend_details": {
            "BackendDetails": BackendDetails,
            "PreprocessResult": backend.PreprocessResult,
            "CompileSpec": backend.CompileSpec,
        },
        "exir.backend.compile_spec_schema": {"CompileSpec": backend.CompileSpec},
        "exir.backend.partitioner": {
            name: getattr(partitioner, name)
            for name in ("DelegationSpec", "Partitioner", "PartitionResult")
        },
        "exir.backend.utils": {
            "DelegateMappingBuilder": backend.DelegateMappingBuilder,
            "tag_constant_data": partitioner.tag_constant_data,
            "tag_mutated_buffer": partitioner.tag_mutated_buffer,
            "is_identical_graph": lowering.is_identical_graph,
            "is_shape_dynamic": lowering.is_shape_dynamic,
            "format_delegated_graph": format_delegated_graph,
            "get_delegated_payload": lowering.get_delegated_payload,
            "get_delegates": lowering.get_delegates,
            "get_non_lowered_nodes": lowering.get_non_lowered_nodes,
        },
        "exir.backend.canonical_partitioners.all_node_partitioner": {
            "AllNodePartitioner": lowering.AllNodePartitioner
        },
        "exir.backend.canonical_partitioners.group_partitioner": {
            "GroupBasedPartitioner": GroupBasedPartitioner
        },
        "exir.lowered_backend_module": {
            "LoweredBackendModule": LoweredModule,
            "get_lowered_backend_modules": lowering.get_lowered_backend_modules,
            "get_lowered_submodules": lowering.get_lowered_submodules,
        },
        "exir._serialize._named_data_store": {
            "NamedDataStore": NamedDataStore,
            "NamedDataStoreOutput": backend.NamedDataStoreOutput,
        },
        "exir._serialize.data_serializer": {"DataEntry": backend.DataEntry},
        "exir.tensor_layout": {"TensorLayout": TensorLayout},
        "exir.emit": {"emit_program": emit},
    }
    modules = {name: importlib.import_module(f"executorch.{name}") for name in bound}
    # judges keep what they import
    for theirs in ("devtools", "extension.flat_tensor.serialize.serialize"):
        importlib.import_module(f"executorch.{theirs}")
    for name, members in bound.items():
        for member, ours in members.items():
            if not hasattr(modules[name], member):
                raise AttributeError(f"ExecuTorch's {name} has no {member}")
            setattr(modules[name], member, ours)
    dialect = importlib.import_module("executorch.exir.dialects._ops")
    dialect.ops = SimpleNamespace(edge=torch.ops, backend=dialect.ops.backend)  # type: ignore[attr-defined]
    torch.testing.FileCheck = FileCheck  # type: ignore[misc, assignment]
    LoweredBackendModule.program = _program_of  # type: ignore[attr-defined]
    LoweredBackendModule.buffer = _buffer_of  # type: ignore[attr-defined]
    # what is loaded stays loaded when its file goes
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "libdemo.so")
        build_library(Path(__file__).with_name("demo_backends.cpp"), library)
        load_library(library)


class FileCheck:
    """torch's, for code in which operators have their names in torch, not those of
    ExecuTorch's dialect.
    """

    _dialect = re.compile(
        r"executorch_exir_dialects_edge__ops_(aten|quantized_decomposed|prims)_(\w+)_([A-Za-z]+)"
    )

    def __init__(self) -> None:
        self._checks = _C.FileCheck()

    def __getattr__(self, name: str) -> Any:
        def call(text: str, *rest: Any, **also: Any) -> Any:
            made = getattr(self._checks, name)(
                self._dialect.sub(r"torch.ops.\1.\2.\3", text), *rest, **also
            )
            return self if made is not None else None

        return call


def _faces() -> dict[str, Any]:
    return {
        "to_edge": to_edge,
        "to_edge_transform_and_lower": to_edge_transform_and_lower,
        "EdgeProgramManager": EdgeProgramManager,
        "ExecutorchProgramManager": ExecutorchProgramManager,
    }


# --- configurations -------------------------------------------------------------------


@dataclass
class EdgeCompileConfig:
    """ExecuTorch's fields. The order of dimensions and the exceptions of its verifier
    have no counterpart.
    """

    _check_ir_validity: bool = True
    _skip_dim_order: bool = False
    _core_aten_ops_exception_list: list[Any] = field(default_factory=list)
    preserve_ops: list[Any] = field(default_factory=list)

    @property
    def ours(self) -> lowering.EdgeCompileConfig:
        return lowering.EdgeCompileConfig(
            tuple(self.preserve_ops), self._check_ir_validity
        )


@dataclass
class BackendConfig:
    """ExecuTorch's fields. ``options`` are those of a ``.pte`` file; what has no
    counterpart is not looked at.
    """

    passes: list[Any] = field(default_factory=list)
    memory_planning_pass: Any = None
    propagate_device_config: Any = None
    to_out_var_pass: Any = None
    dynamic_memory_planning_mode: Any = None
    emit_stacktrace: bool = False
    extract_delegate_segments: bool = True
    segment_alignment: int = 128
    constant_tensor_alignment: int | None = None
    delegate_alignment: int | None = None
    sym_shape_eval_pass: Any = None
    remove_view_copy: bool = True
    external_constants: Any = False
    external_mutable_weights: bool = False
    emit_mutable_buffer_names: bool = False
    enable_non_cpu_memory_planning: bool = True
    do_quant_fusion_and_const_prop: bool = False
    run_reinplace_pass: bool = False
    reinplace_extra_ops: Any = None

    @property
    def options(self) -> dict[str, Any]:
        placement = self.propagate_device_config
        found: dict[str, Any] = {
            "emit_stacktrace": self.emit_stacktrace,
            "external_constants": self.external_constants,
            "external_mutable_weights": self.external_mutable_weights,
            "emit_mutable_buffer_names": self.emit_mutable_buffer_names,
            "enable_non_cpu_memory_planning": self.enable_non_cpu_memory_planning,
            "alloc_graph_input": self._planned("alloc_graph_input"),
            "alloc_graph_output": self._planned("alloc_graph_output"),
            "alloc_mutable_buffers": getattr(
                self.memory_planning_pass, "alloc_mutable_buffers", True
            ),
        }
        for name in ("skip_h2d_for_method_inputs", "skip_d2h_for_method_outputs"):
            if isinstance(placement, Mapping):
                found[name] = {
                    method: getattr(each, name) for method, each in placement.items()
                }
            elif placement is not None:
                found[name] = getattr(placement, name)
        return found

    def _planned(self, name: str) -> bool | dict[str, bool]:
        planning = self.memory_planning_pass
        if isinstance(planning, Mapping):
            return {
                method: getattr(each, name, True) for method, each in planning.items()
            }
        return getattr(planning, name, True)


def _ours(config: Any) -> lowering.EdgeCompileConfig | None:
    return config.ours if isinstance(config, EdgeCompileConfig) else config


# --- managers -------------------------------------------------------------------------


class EdgeProgramManager(lowering.EdgeProgramManager):
    """Ours, made as ExecuTorch's is."""

    def __init__(
        self,
        edge_programs: Any,
        constant_methods: Any = None,
        compile_config: Any = None,
        *ignored: Any,
        **also_ignored: Any,
    ) -> None:
        programs = (
            {"forward": edge_programs}
            if isinstance(edge_programs, ExportedProgram)
            else edge_programs
        )
        super().__init__(programs, constant_methods, _ours(compile_config))

    def _next(self, programs: Any) -> EdgeProgramManager:
        return EdgeProgramManager(programs, self.constant_methods, self.compile_config)

    @property
    def _edge_programs(self) -> dict[str, ExportedProgram]:
        return self._programs

    @property
    def _named_data_store(self) -> Any:
        return SimpleNamespace(get_named_data_store_output=lambda: self.named_data)

    def to_executorch(self, config: Any = None) -> Any:
        options = (
            config.options if isinstance(config, BackendConfig) else dict(config or {})
        )
        return ExecutorchProgramManager(super().to_executorch(options), self)


def _named(manager: lowering.EdgeProgramManager) -> EdgeProgramManager:
    """As ExecuTorch's class, with nodes called as ExecuTorch's dialect calls them:
    ``aten_add_tensor_1``.
    """
    manager.__class__ = EdgeProgramManager
    for name in manager.methods:
        program = manager.exported_program(name)
        renamed = {}
        for node in program.graph.nodes:
            if isinstance(node.target, torch._ops.OpOverload):
                before = node.name
                node._rename(str(node.target).replace(".", "_").lower())
                renamed[before] = node.name
        for spec in program.graph_signature.output_specs:
            if getattr(spec.arg, "name", None) in renamed:
                spec.arg.name = renamed[spec.arg.name]  # type: ignore[union-attr]
    return manager  # type: ignore[return-value]


def to_edge(
    programs: Any,
    constant_methods: Any = None,
    compile_config: Any = None,
    **ignored: Any,
) -> Any:
    return _named(lowering.to_edge(programs, constant_methods, _ours(compile_config)))


def to_edge_transform_and_lower(
    programs: Any,
    transform_passes: Any = None,
    partitioner: Any = None,
    constant_methods: Any = None,
    compile_config: Any = None,
    **ignored: Any,
) -> Any:
    return _named(
        lowering.to_edge_transform_and_lower(
            programs,
            transform_passes,
            partitioner,
            constant_methods,
            _ours(compile_config),
        )
    )


class ExecutorchProgramManager:
    """Ours, with the program as ExecuTorch's own deserializer reads it from the file."""

    def __init__(self, ours: lowering.ExecutorchProgramManager, edge: Any) -> None:
        self._ours = ours
        self._edge = edge

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ours, name)

    @property
    def config_methods(self) -> Any:
        return self._edge.config_methods

    @property
    def executorch_program(self) -> Any:
        return read(self._ours.buffer).program

    @property
    def _emitter_output(self) -> Any:
        data = {name: read_data(content) for name, content in self._tensor_data.items()}
        return SimpleNamespace(
            program=self.executorch_program,
            mutable_data=read(self._ours.buffer).mutable_data,
            external_constant_buffer=[
                buffer for buffers, _ in data.values() for buffer in buffers
            ],
            external_constant_map={name: places for name, (_, places) in data.items()},
        )

    @property
    def debug_handle_map(self) -> dict[str, dict[int, int | None]]:
        """What the side file of a program says (``debug_file``): the handle of each
        instruction.
        """
        handles = emit_program(self._edge).debug_handles
        return {
            method: dict(enumerate(of.instructions)) for method, of in handles.items()
        }

    @property
    def delegate_map(self) -> dict[str, dict[int, Any]]:
        """The same of calls of delegates: what they are, and their identifiers."""
        emitted = emit_program(self._edge)
        found: dict[str, dict[int, Any]] = {}
        for plan in emitted.program.plans[: len(emitted.debug_handles)]:
            called = enumerate(
                getattr(i.call, "delegate_index", None)
                for i in plan.chains[0].instructions
            )
            maps = emitted.debug_handles[plan.name].delegates
            found[plan.name] = {
                k: {"name": plan.delegates[d].id, "delegate_map": maps[d]}
                for k, d in called
                if d is not None
            }
        return found

    @property
    def _tensor_data(self) -> dict[str, bytes]:
        with tempfile.TemporaryDirectory() as folder:
            self._ours.write_tensor_data_to_file(folder)
            return {
                name.removesuffix(".ptd"): Path(folder, name).read_bytes()
                for name in self._ours.data_files
            }

    def dump_executorch_program(self, verbose: bool = False, out: Any = None) -> None:
        from executorch.exir.print_program import pretty_print, print_program

        (pretty_print if verbose else print_program)(self.executorch_program, out=out)


def format_delegated_graph(module: GraphModule) -> str:
    """Ours, with ExecuTorch's names of operators."""
    return lowering.format_delegated_graph(module).replace(
        "torch.ops.aten.", "executorch.exir.dialects.edge._ops.aten."
    )


def read(content: bytes) -> Any:
    """A file, read by ExecuTorch's own deserializer, which gives each delegate a copy
    of its segment; here once.
    """
    from executorch.exir._serialize._program import deserialize_pte_binary

    file = deserialize_pte_binary(content)
    program = file.program
    blobs = list[bytes]()
    # number 0, which stands for no data, is there in what ExecuTorch emits
    if not program.constant_buffer:
        program.constant_buffer = [
            importlib.import_module("executorch.exir.schema").Buffer(storage=b"")
        ]
    for delegate in (d for plan in program.execution_plan for d in plan.delegates):
        blob = program.backend_delegate_data[delegate.processed.index].data
        if blob not in blobs:
            blobs.append(blob)
        delegate.processed.index = blobs.index(blob)
        delegate.compile_specs = [
            backend.CompileSpec(s.key, bytes(s.value)) for s in delegate.compile_specs
        ]
    program.backend_delegate_data = (
        [type(program.backend_delegate_data[0])(blob) for blob in blobs]
        if blobs
        else []
    )
    return file


def read_data(content: bytes) -> tuple[list[bytes], dict[str, int]]:
    """(buffers of a data file, key -> which of them). ExecuTorch's reader makes a class
    of it that is bound to ours.
    """
    file = reader.read_data(content)
    return [bytes(segment) for segment in file.segments], {
        d.key: d.segment_index for d in file.data.named_data
    }


def emit(
    methods: Any,
    emit_stacktrace: bool = False,
    prim_getters: Any = None,
    **ignored: Any,
) -> Any:
    """``exir.emit.emit_program``."""
    manager = EdgeProgramManager(methods, prim_getters)
    emitted = emit_program(manager)
    file = read(emitted.file.join())
    return SimpleNamespace(program=file.program, mutable_data=file.mutable_data)


# --- backends and partitioners --------------------------------------------------------


class BackendDetails(backend.BackendDetails, abstract=True):
    """A subclass is registered by being defined, as ExecuTorch's are; a later one of
    the same name takes its place.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__name__ in READS_NAMES:
            _write_dialect_names(cls)
        if cls.__name__ in _registered:
            _registered[cls.__name__].close()
        _registered[cls.__name__] = stack = contextlib.ExitStack()
        # XNNPACK is bridged already
        if cls.__name__ not in {info.backend_id for info in delegraph.backends()}:
            stack.enter_context(delegraph.register(cls))


class _Operator:
    """An operator as ExecuTorch's dialect names it."""

    def __init__(self, op: Any) -> None:
        self.op = op
        self.__name__ = str(op)

    def __eq__(self, other: Any) -> bool:
        return self.op is other

    def __hash__(self) -> int:
        return hash(self.op)


def _write_dialect_names(cls: Any) -> None:
    for name in ("preprocess", "preprocess_multimethod"):
        if name in vars(cls):
            setattr(cls, name, _renaming(getattr(cls, name)))


def _renaming(compiled: Callable[..., Any]) -> Any:
    def preprocess(edge_program: Any, compile_specs: Any) -> Any:
        with contextlib.ExitStack() as stack:
            for program in _programs_in(edge_program):
                stack.enter_context(_renamed(program.graph))
            return compiled(edge_program, compile_specs)

    return staticmethod(preprocess)


def _programs_in(given: Any) -> list[ExportedProgram]:
    return (
        [given]
        if isinstance(given, ExportedProgram)
        else [p for listed in given.values() for p in listed]
    )


@contextlib.contextmanager
def _renamed(graph: torch.fx.Graph) -> Iterator[None]:
    targets = {
        node: node.target
        for node in graph.nodes
        if isinstance(node.target, torch._ops.OpOverload)
    }
    for node, target in targets.items():
        node.target = _Operator(target)  # type: ignore[assignment]
    try:
        yield
    finally:
        for node, target in targets.items():
            node.target = target


class GroupBasedPartitioner:
    """ExecuTorch's class, over ``CapabilityPartitioner``."""

    def __init__(
        self,
        graph_module: GraphModule,
        operator_support: Any,
        allows_single_node_partition: bool = False,
        non_compute_ops: Any = None,
        allowed_single_node_partition_ops: Any = None,
        node_groups: Any = None,
    ) -> None:
        self.graph_module = graph_module
        self.groups = node_groups or []
        submodules = dict(graph_module.named_modules())

        def why_not(node: Node) -> str | None:
            return (
                None
                if operator_support.is_node_supported(submodules, node)
                else "not supported"
            )

        free = _operators(non_compute_ops)
        allowed = _operators(allowed_single_node_partition_ops)

        def why_too_small(operators: Any) -> str | None:
            work = [node for node in operators if node.target not in free]
            is_alone = len(work) == 1 and work[0].target not in allowed
            if not work or (is_alone and not allows_single_node_partition):
                return "too small"
            return None

        self.ours = GroupedPartitioner(
            why_not,
            "Group",
            groups=lambda program: self.groups,
            limits=partitioner.Limits(why_too_small=why_too_small),
        )

    def propose_partitions(self) -> list[Any]:
        from torch.fx.passes.infra.partitioner import Partition

        graph = self.graph_module.graph
        self.ours.partition(_as_program(self.graph_module))
        found: dict[str, list[Node]] = {}
        for node in graph.nodes:
            if node.op == "call_function" and "delegation_tag" in node.meta:
                found.setdefault(node.meta.pop("delegation_tag"), []).append(node)
        return [Partition(id=k, nodes=nodes) for k, nodes in enumerate(found.values())]


def _as_program(module: GraphModule) -> Any:
    """What a partitioner looks at: here every placeholder is an input."""
    inputs = [
        InputSpec(InputKind.USER_INPUT, TensorArgument(n.name), None)
        for n in module.graph.find_nodes(op="placeholder")
    ]
    return SimpleNamespace(
        graph=module.graph,
        graph_module=module,
        graph_signature=SimpleNamespace(input_specs=inputs, output_specs=[]),
        state_dict={},
        constants={},
    )


def _operators(names: Any) -> list[Any]:
    """``torch.ops.aten.view.default``, as torch's own partitioner names operators;
    other names never name one.
    """
    listed = [str(name).removeprefix("torch.ops.") for name in names or ()]
    return [
        operator.attrgetter(name)(torch.ops) for name in listed if name.count(".") == 2
    ]


class NamedDataStore(backend.NamedDataStore):
    """Ours, with the attributes that ExecuTorch's has."""

    @property
    def buffers(self) -> list[Any]:
        return self.get_named_data_store_output().buffers

    @property
    def pte_data(self) -> dict[str, Any]:
        return self.get_named_data_store_output().pte_data

    @property
    def external_data(self) -> dict[str, Any]:
        return self.get_named_data_store_output().external_data

    def externalize_pte_data(self, max_data_bytes: int, tag_prefix: str) -> None:
        output = self.get_named_data_store_output()
        lowering.externalize_pte_data(output, max_data_bytes, tag_prefix)

    @property
    def key_to_buffer_idx(self) -> dict[str, int]:
        entries = [self.pte_data, *self.external_data.values()]
        return {
            key: entry.buffer_index
            for by_key in entries
            for key, entry in by_key.items()
        }


class TensorLayout:
    """Ours, made with ExecuTorch's number of an element type; it is in C order always."""

    def __new__(cls, scalar_type: Any, sizes: Any, dim_order: Any) -> Any:
        from delegraph_executorch.program.scalar_types import TORCH_NAMES, ScalarType

        return backend.TensorLayout(
            getattr(torch, TORCH_NAMES[ScalarType(int(scalar_type))]), tuple(sizes)
        )


# --- a lowered module on its own ------------------------------------------------------


def _buffer_of(
    module: LoweredBackendModule, *ignored: Any, **also_ignored: Any
) -> bytes:
    """The file of a lowered module alone."""
    return to_edge(_program_that_calls(module)).to_executorch().buffer  # type: ignore[no-any-return]


def _program_of(
    module: LoweredBackendModule, *ignored: Any, **also_ignored: Any
) -> Any:
    return read(_buffer_of(module)).program


def _program_that_calls(module: LoweredBackendModule) -> ExportedProgram:
    inner = module.original_module
    vals = {
        node.name: node.meta["val"]
        for node in inner.graph.nodes
        if node.op == "placeholder"
    }
    taken = [vals[argument.name] for argument in module.inputs]
    if module.whole is None:
        return torch.export.export(_Call(module), tuple(taken))
    leaves: list[Any] = [torch.zeros(1)] * module.whole.in_spec.num_leaves  # type: ignore[union-attr]
    for origin, val in zip(module.whole.takes, taken, strict=True):
        if origin.kind == "input":
            leaves[origin.at] = val
    args, kwargs = pytree.tree_unflatten(leaves, module.whole.in_spec)  # type: ignore[arg-type]
    return torch.export.export(_Call(module), args, kwargs)


class _Made(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, LoweredBackendModule)

    def __call__(
        cls,
        edge_program: Any,
        backend_id: str,
        processed_bytes: bytes,
        compile_specs: Any,
        *ignored: Any,
    ) -> Any:
        made = LoweredBackendModule(backend_id, edge_program, compile_specs)
        made.attach(backend.PreprocessResult(processed_bytes), ("", ""))
        return made


class LoweredModule(metaclass=_Made):
    """``LoweredBackendModule``, made as ExecuTorch's is."""


class _Call(torch.nn.Module):
    def __init__(self, module: LoweredBackendModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.module(*inputs, **named)
