"""``to_edge``, ``to_edge_transform_and_lower``, ``EdgeProgramManager`` (names as in ExecuTorch), over the one engine.

An edge program is functional, in ATen overloads, with static types and a debug handle on every call. Every step makes
a new manager, leaves the old one as it was, keeps the configuration, and verifies what it made.
"""

from __future__ import annotations

from collections.abc import Callable, KeysView, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputSpec
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassBase
from torch.fx.passes.infra.pass_manager import PassManager

from ..backend import NamedDataStoreOutput
from ..discovery.registry import default_registry
from ..engine.decompose.on_demand import Decomposer
from ..engine.delegate.partition import Plan
from ..engine.delegate.stage import run_stage
from ..engine.functionalize.normalize import normalize, number_calls
from ..engine.gc_pause import collection_suspended
from ..engine.subgraphs import all_nodes, graphs, next_handles
from ..errors import ContractViolation, InputError, OptionError, UnknownMethod
from ..exported_program import argument_of, build_program, output_node, root_call
from ..partitioner import Partitioner
from ..program.delegates import DelegateDebug, delegate_map, merged_named_data
from ..source import source_of

Pass = Callable[[Any], Any]
"""From ExportedProgram to ExportedProgram, or one of torch's ``PassBase`` and ``PassManager``, which rewrite graphs."""
Passes = Pass | Sequence[Pass] | Mapping[str, Pass | Sequence[Pass]]
"""One pass, several, or either by method."""
Programs = ExportedProgram | Mapping[str, ExportedProgram]


@dataclass(frozen=True)
class EdgeCompileConfig:
    """``preserve_ops``: operators that ``to_edge`` leaves whole. ``check_validity``: verify after every step."""

    preserve_ops: tuple[OpOverload, ...] = ()
    check_validity: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "preserve_ops", tuple(self.preserve_ops))
        for op in self.preserve_ops:
            if not isinstance(op, OpOverload):
                text = f"preserve_ops names operators such as torch.ops.aten.linear.default, not {op!r}"
                raise OptionError("option-invalid", text)


class EdgeProgramManager:
    """Edge programs by method, the values of constant methods, and the configuration that made them."""

    def __init__(
        self,
        programs: Mapping[str, ExportedProgram],
        constant_methods: Mapping[str, Any] | None = None,
        compile_config: EdgeCompileConfig | None = None,
    ) -> None:
        self._programs, self._constant_methods = dict(programs), dict(constant_methods or {})
        self.compile_config = compile_config or EdgeCompileConfig()

    @property
    def methods(self) -> KeysView[str]:
        """Names of the methods, in the order in which they were given."""
        return self._programs.keys()

    @property
    def config_methods(self) -> KeysView[str]:
        """Names of the methods that only return a constant."""
        return self._constant_methods.keys()

    def exported_program(self, name: str = "forward") -> ExportedProgram:
        """The program of a method. Raises InputError if there is none of that name."""
        if name not in self._programs:
            raise InputError("input-invalid", f"there is no method {name!r}; methods: {list(self._programs)}")
        return self._programs[name]

    @property
    def not_core(self) -> dict[str, list[str]]:
        """Method -> names of the operators in it that are not core ATen: kept, or nothing decomposes them."""
        graphs = {m: all_nodes(p.graph_module) for m, p in self._programs.items()}
        called = {m: {n.target for n in nodes if isinstance(n.target, OpOverload)} for m, nodes in graphs.items()}
        return {m: sorted(str(op) for op in ops if torch.Tag.core not in op.tags) for m, ops in called.items()}

    @property
    def named_data(self) -> NamedDataStoreOutput:
        """The named data of all delegates of all methods, equal contents once, as one program file holds it."""
        return merged_named_data(self._programs.values())

    @property
    def delegate_map(self) -> dict[str, dict[int, DelegateDebug]]:
        """Method -> debug handle of each call of a delegate -> whose it is, and its debug handle map."""
        return {m: delegate_map(p) for m, p in self._programs.items()}

    def transform(self, passes: Passes) -> EdgeProgramManager:
        """Run passes, one or several, on every method, or by method. Each gets a copy of its own."""
        named = passes if isinstance(passes, Mapping) else dict.fromkeys(self._programs, passes)
        self._check_methods("passes are", named)
        lists = {m: [p] if callable(p) else p for m, p in named.items()}
        made = {m: self._passed(m, p, lists.get(m, ())) for m, p in self._programs.items()}
        return self._next(made)

    def to_backend(self, partitioner: Partitioner | Mapping[str, Partitioner]) -> EdgeProgramManager:
        """Delegate what a partitioner tags, in every method or by method; each backend is called once for all."""
        named = partitioner if isinstance(partitioner, Mapping) else dict.fromkeys(self._programs, partitioner)
        self._check_methods("a partitioner is", named)
        with collection_suspended():
            copies = {m: normalize(p)[0] if m in named else p for m, p in self._programs.items()}
            made = run_stage(copies, named, default_registry()).programs
        self._verify(made, "to_backend")
        return self._next(made)

    def to_executorch(self, config: Any = None) -> Any:
        """The program file's contents; this version has no writer for them and says so."""
        hint = "delegates[k].save(path) of delegraph.lower writes a delegate in its backend's own format"
        raise OptionError("option-invalid", "this version does not write .pte files yet", hint=hint)

    def _next(self, programs: Mapping[str, ExportedProgram]) -> EdgeProgramManager:
        return EdgeProgramManager(programs, self._constant_methods, self.compile_config)

    def _check_methods(self, what: str, named: Mapping[str, Any]) -> None:
        for method in named:
            if method not in self._programs:
                raise UnknownMethod(
                    "input-invalid", f"{what} given for method {method!r}; methods: {list(self.methods)}"
                )

    def _passed(self, method: str, program: ExportedProgram, passes: Sequence[Pass]) -> ExportedProgram:
        for each in passes:
            like, module = run_pass(each, normalize(program)[0])
            handles = next_handles(module)
            for graph in graphs(module):
                number_calls(graph, handles)
            self._verify({method: module}, f"pass {_pass_name(each)}")
            program = _with_graph(like, module)
        return program

    def _verify(self, programs: Mapping[str, ExportedProgram | GraphModule], step: str) -> None:
        if self.compile_config.check_validity:
            for method, program in programs.items():
                verify(program, f"after {step}, method {method}")


def to_edge(
    programs: Programs,
    constant_methods: Mapping[str, Any] | None = None,
    compile_config: EdgeCompileConfig | None = None,
) -> EdgeProgramManager:
    """Edge programs in core ATen, except for ``compile_config.preserve_ops`` and what nothing decomposes.

    ``not_core`` of the result lists what is left, such as ``aten._linalg_svd.default``.
    With a partitioner at hand, ``to_edge_transform_and_lower`` lets it keep what it wants whole.
    """
    config = compile_config or EdgeCompileConfig()
    decomposition = Decomposer()
    with collection_suspended():
        normal = {m: normalize(p)[0] for m, p in _by_method(programs).items()}
        core = {m: decomposition.finish(p, config.preserve_ops) for m, p in normal.items()}
    made = EdgeProgramManager(core, constant_methods, config)
    made._verify(core, "to_edge")
    return made


def to_edge_transform_and_lower(
    programs: Programs,
    transform_passes: Passes | None = None,
    partitioner: Partitioner | Sequence[Partitioner] | Mapping[str, Sequence[Partitioner]] | None = None,
    constant_methods: Mapping[str, Any] | None = None,
    compile_config: EdgeCompileConfig | None = None,
) -> EdgeProgramManager:
    """Normalize, run passes, delegate, and bring what is left to core ATen.

    ``partitioner``: one, several in order of preference, or such a list by method. What one of them keeps
    (``ops_to_not_decompose``, or what its backend says of single nodes) is not decomposed before it was asked;
    what ends up undelegated is decomposed afterwards. Passes see operators as ``torch.export`` gave them.
    """
    config = compile_config or EdgeCompileConfig()
    with collection_suspended():
        normal = {m: normalize(p)[0] for m, p in _by_method(programs).items()}
        edge = EdgeProgramManager(normal, constant_methods, config)
        edge = edge.transform(transform_passes) if transform_passes else edge
        lists = {m: list(p) for m, p in _lists(partitioner, edge.methods).items()}
        edge._check_methods("a partitioner is", lists)
        edge = edge.transform({m: [p.transform_for_pre_decomposition for p in who] for m, who in _own(lists).items()})
        made = _lowered(edge._programs, lists, config)
    edge._verify(made, "lowering")
    return edge._next(made)


def _lowered(
    programs: dict[str, ExportedProgram], lists: Mapping[str, Sequence[Partitioner]], config: EdgeCompileConfig
) -> dict[str, ExportedProgram]:
    decomposition = Decomposer()
    for k in range(max(map(len, lists.values()), default=0)):
        now = {m: listed[k] for m, listed in lists.items() if k < len(listed)}

        def planner(method: str, program: ExportedProgram, who: Partitioner, after: int = k + 1) -> Plan:
            return decomposition.plan(program, who, lists[method][after:])

        programs = run_stage(programs, now, default_registry(), planner).programs
    return {m: decomposition.finish(p, config.preserve_ops) for m, p in programs.items()}


def _by_method(programs: Programs) -> dict[str, ExportedProgram]:
    named = dict(programs) if isinstance(programs, Mapping) else {"forward": programs}
    for method, program in named.items():
        if not isinstance(program, ExportedProgram):
            text = f"method {method}: an ExportedProgram is wanted, not {type(program).__name__}"
            raise InputError("input-invalid", text, hint="torch.export.export(module, inputs) makes one")
    if not named:
        raise InputError("input-invalid", "there is no method to lower")
    return named


def _lists(partitioner: Any, methods: KeysView[str]) -> dict[str, Sequence[Partitioner]]:
    if isinstance(partitioner, Mapping):
        return {m: [p] if isinstance(p, Partitioner) else p for m, p in partitioner.items()}
    listed = [partitioner] if isinstance(partitioner, Partitioner) else list(partitioner or ())
    return dict.fromkeys(methods, listed)


def _own(lists: Mapping[str, Sequence[Partitioner]]) -> dict[str, list[Partitioner]]:
    """Those partitioners, by method, that have a transformation of their own."""
    default = Partitioner.transform_for_pre_decomposition
    return {m: [p for p in who if type(p).transform_for_pre_decomposition is not default] for m, who in lists.items()}


def _pass_name(each: Pass) -> str:
    return getattr(each, "__name__", type(each).__name__)


def run_pass(each: Pass, program: ExportedProgram) -> tuple[ExportedProgram, GraphModule]:
    """What ``each`` makes of ``program``, which it may change: the signature's program, and the graph."""
    if isinstance(each, PassBase | PassManager):
        made = getattr(each(program.graph_module), "graph_module", program.graph_module)
        return program, made
    changed = each(program)
    if not isinstance(changed, ExportedProgram):
        text = f"pass {_pass_name(each)} returned {type(changed).__name__}, not an ExportedProgram"
        raise ContractViolation("contract-violation", text)
    return changed, changed.graph_module


def _with_graph(program: ExportedProgram, module: GraphModule) -> ExportedProgram:
    """``program`` with the graph of ``module``, and a signature that names what that returns."""
    specs, values = program.graph_signature.output_specs, output_node(module.graph).args[0]
    outputs = [OutputSpec(s.kind, argument_of(v), s.target) for s, v in zip(specs, values, strict=True)]  # type: ignore[arg-type]
    inputs = program.graph_signature.input_specs
    return build_program(module, module.graph, inputs, outputs, program, root_call(program))


def verify(program: ExportedProgram | GraphModule, where: str) -> None:
    """Check that ``program`` is an edge program; ContractViolation says which node breaks which rule."""
    module = program.graph_module if isinstance(program, ExportedProgram) else program
    for node in all_nodes(module):
        broken = _broken_rule(node)
        if broken:
            text = f"{where}: node {node.name} ({node.target}) {broken}"
            raise ContractViolation("contract-violation", text, node, source_of(node))


def _broken_rule(node: Node) -> str | None:
    if node.op in ("call_module", "call_method"):
        return f"is a {node.op}; edge programs call functions"
    if node.op != "call_function":
        return None
    if isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
        return "writes to its arguments; edge programs are functional"
    if not isinstance(node.target, OpOverload | HigherOrderOperator) and not _plain(node.target):
        return "is no operator overload"
    if "val" not in node.meta:
        return "has no type (meta['val'])"
    return None if "debug_handle" in node.meta else "has no debug handle"


def _plain(target: Any) -> bool:
    """Python's operators on numbers, and torch's on symbolic sizes."""
    return getattr(target, "__module__", "") in ("_operator", "math", "builtins", "torch")
