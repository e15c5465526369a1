"""Read a program from the bytes of a form: ``read``.

Reading evaluates no text and imports nothing. It checks everything except the content
of constants of 1 MB or more.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from delegraph.errors import DelegraphError, FormatError
from delegraph_programs import (
    TRACING,
    argument_of,
    build_program,
    flat_call,
    output_node,
)
from delegraph_programs.exported_program import append_node
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec
from torch.fx import Graph, GraphModule, Node
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from .arguments import DTYPES, TypesRead
from .arguments import read as read_value
from .constants import ConstantsRead
from .form import Fetch, Form, Labels, Structure, unpack
from .operators import call_of, target_of
from .sizes import SymbolsRead, at


def read(
    data: bytes | memoryview, fetch: Fetch | None = None, named: bool = False
) -> ExportedProgram:
    """Read a program from ``data``, the bytes of ``Form.pieces``.

    Nodes get the names v0, v1, ..., constants c0, c1, ..., and debug handles count from
    1. With ``named``, the program has the writer's names, debug handles and source
    lines.

    ``fetch`` returns constants of 1 MB or more, and their content is not compared with
    their digests. Everything else is checked. Raises FormatError if the bytes are
    damaged or of another version. Raises it also if the program calls an operator that
    this torch lacks.
    """
    try:
        tables, names, memories = unpack(data, fetch)
        structure = Structure(*tables)
        labels = Labels(*names) if named else None
        constants = ConstantsRead(structure.constants, memories)
        return _program(structure, labels, constants.tensor)
    except DelegraphError:
        raise
    except Exception as e:  # for invalid values, sympy and torch raise many types
        text = f"the serialized program is invalid: {type(e).__name__}: {e}"
        raise FormatError("format-invalid", text) from e


def canonical(form: Form) -> ExportedProgram:
    """Return the program of the bytes of ``form``, with the constants of the original
    program.
    """
    structure = Structure(*json.loads(form.structure))
    return _program(structure, None, form.tensors.__getitem__)


def _program(
    structure: Structure,
    labels: Labels | None,
    tensor: Callable[[Any], torch.Tensor],
) -> ExportedProgram:
    """Return the program of a form's tables. ``tensor`` returns the constant of a row."""
    with TRACING:  # fake tensors with symbolic sizes trace
        reader = _Reader(structure, labels, tensor)
        with reader.environment.suppress_guards():
            return reader.program()


class _Call(NamedTuple):
    """The op, target and arguments of a node."""

    op: str
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class _Reader:
    """Makes a program from the tables of a form.

    Without ``labels``, nodes get names by number. ``tensor`` returns the constant of a
    row. ``environment`` has the symbols of sizes.
    """

    def __init__(
        self,
        structure: Structure,
        labels: Labels | None,
        tensor: Callable[[Any], torch.Tensor],
    ) -> None:
        """Read the tables that the graphs refer to.

        Raises FormatError if torch has another default dtype in this process.
        """
        dtype = structure.default_dtype
        self._signature = structure.signature
        self._graphs = structure.graphs
        if DTYPES[dtype] is not torch.get_default_dtype():
            raise FormatError(
                "format-invalid",
                f"the program was serialized with the default dtype torch.{dtype};"
                f" that of this process is {torch.get_default_dtype()}",
                hint=f"call torch.set_default_dtype(torch.{dtype})",
            )
        self._labels = labels
        self.environment = ShapeEnv()
        names = labels.symbols if labels else None
        self._symbols = SymbolsRead(structure.symbols, self.environment, names)
        mode = FakeTensorMode(
            allow_non_fake_inputs=True, export=True, shape_env=self.environment
        )
        self._types = TypesRead(structure.types, self._symbols, mode)
        self._tensor = tensor
        self._targets = [target_of(name) for name in structure.targets]
        self._modules: dict[int, GraphModule] = {}

    def program(self) -> ExportedProgram:
        """Return the program of graph 0, the outermost one."""
        root: Any = torch.nn.Module()
        graph = self._graph(0, root)
        inputs, outputs = self._specs(graph)
        # ``build_program`` takes tensors and ranges of symbols from a program
        source: Any = SimpleNamespace(
            state_dict={},
            constants={},
            range_constraints=self._symbols.constraints,
            _guards_code=(),
        )
        for spec, (_, constant, _) in zip(inputs, self._signature[0], strict=True):
            if constant is None:  # a run-time input
                continue
            tensor = self._tensor(constant)
            is_parameter = spec.kind is InputKind.PARAMETER
            # torch requires this class
            if is_parameter and not isinstance(tensor, torch.nn.Parameter):
                tensor = torch.nn.Parameter(tensor, requires_grad=False)
            if is_parameter or spec.persistent:
                source.state_dict[spec.target] = tensor
            else:
                source.constants[spec.target] = tensor
        arguments = sum(spec.kind is InputKind.USER_INPUT for spec in inputs)
        results = sum(spec.kind is OutputKind.USER_OUTPUT for spec in outputs)
        call = flat_call(arguments, results)
        program = build_program(root, graph, inputs, outputs, source, call, check=False)
        origin = {"method": "forward", "partition": "0"}
        if self._labels:
            origin = self._labels.origin
        program.graph_module.meta.update(origin)
        return program

    def _specs(self, graph: Graph) -> tuple[list[InputSpec], list[OutputSpec]]:
        """Return the specs of inputs and outputs for the program's signature."""
        input_rows, output_rows = self._signature
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        targets = [
            None if constant is None else f"c{k}"
            for k, (_, constant, _) in enumerate(input_rows)
        ]
        if self._labels:
            targets = self._labels.inputs
        inputs = []
        names = []
        for node, target, row in zip(placeholders, targets, input_rows, strict=True):
            kind, _, persistent = row
            inputs.append(
                InputSpec(InputKind[kind], argument_of(node), target, persistent)
            )
            names.append(target or node.name)
        values: Any = output_node(graph).args[0]
        outputs = []
        for value, (kind, written) in zip(values, output_rows, strict=True):
            target = None if written is None else names[at(written)]
            outputs.append(OutputSpec(OutputKind[kind], argument_of(value), target))
        return inputs, outputs

    def _graph(self, number: int, root: Any) -> Graph:
        """Return graph number ``number``.

        Its subgraphs and constants become attributes of ``root``.
        """
        graph = Graph(owning_module=root)
        nodes = list[Node]()
        for k, (action, args, type_, handle, *further) in enumerate(
            self._graphs[number]
        ):
            meta: dict[str, Any] = {}
            name = "output"
            if action != "output":
                name = f"v{k}"
                meta["val"] = self._types.val(type_)
            if handle:  # 0 means none
                meta["debug_handle"] = at(handle)
            target = None
            if self._labels is not None:
                name, target = self._restore_names(meta, self._labels, number, k)
            for values in further:  # one at most
                meta |= read_value(values, (), self._symbols)
            if action in ("graph", "constant"):
                attribute = target or name
                setattr(root, attribute, self._attribute(action, args, number))
                call = _Call("get_attr", attribute, (), {})
            else:
                call = self._call(action, args, nodes, target or name)
            nodes.append(
                append_node(
                    graph, call.op, call.target, call.args, call.kwargs, name, meta
                )
            )
        return graph

    def _attribute(self, action: str, row: Any, number: int) -> Any:
        """Return the constant or subgraph that a node of graph ``number`` fetches."""
        if action == "constant":
            return self._tensor(row)
        return self._module(at(row), number)

    def _call(self, action: Any, args: Any, nodes: list[Node], name: str) -> _Call:
        """Return the op, target and arguments of a node.

        ``action``: a word, or the number of the called operator. ``args``: the form of
        its arguments, which refer to earlier ``nodes``. ``name``: the target of a
        placeholder.
        """
        if action == "input":
            return _Call("placeholder", name, (), {})
        if action == "output":
            returned = read_value(args, nodes, self._symbols)
            return _Call("output", "output", (returned,), {})
        target = self._targets[at(action)]
        if isinstance(target, OpOverload):
            positional, keywords = call_of(target, args, nodes, self._symbols)
            return _Call("call_function", target, positional, keywords)
        positional, keywords = (read_value(arg, nodes, self._symbols) for arg in args)
        return _Call("call_function", target, tuple(positional), keywords)

    def _module(self, number: int, above: int) -> GraphModule:
        """Return graph number ``number`` as a module, for a node of graph ``above``.

        All nodes that fetch the graph share the module. Raises FormatError if a graph
        contains itself.
        """
        if number <= above:
            raise FormatError(
                "format-invalid",
                f"graph {above} calls graph {number}; a graph may call later ones only",
            )
        if number not in self._modules:
            root = torch.nn.Module()
            self._modules[number] = _LazyGraphModule(root, self._graph(number, root))
        return self._modules[number]

    def _restore_names(
        self, meta: dict[str, Any], labels: Labels, graph: int, node: int
    ) -> tuple[str, str | None]:
        """Return the writer's name and target of node number ``node``.

        Adds the writer's debug handle, stack trace and module stack to ``meta``.
        """
        name, target, trace, modules = labels.graphs[graph][node]
        if "debug_handle" in meta:
            meta["debug_handle"] = labels.handles[meta["debug_handle"] - 1]
        trace_text = labels.texts[at(trace)]
        if trace_text:
            meta["stack_trace"] = trace_text
        modules_text = labels.texts[at(modules)]
        if modules_text:
            meta["nn_module_stack"] = {
                key: (path, kind) for key, path, kind in json.loads(modules_text)
            }
        return name, target
