"""``read`` makes a program from the bytes of a form.

It evaluates no text, imports nothing and checks everything.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

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
from .form import Fetch, Form, unpack
from .operators import call_of, target_of
from .sizes import SymbolsRead, at


def read(
    data: bytes | memoryview, fetch: Fetch | None = None, named: bool = False
) -> ExportedProgram:
    """Read a program from ``data``, the bytes of ``Form.pieces``.

    Nodes are called v0, v1, ..., constants c0, c1, ..., and debug handles count from 1.
    With ``named``, the program has the writer's names, debug handles and source lines
    instead.

    ``fetch`` returns constants of 1 MB and more, whose content is not compared with
    their digests; None if there are none. Everything else is checked. Raises
    FormatError if the bytes are damaged or of another version, or if the program calls
    an operator that this torch lacks.
    """
    try:
        structure, beside, memories = unpack(data, fetch)
        constants = ConstantsRead(structure[5], memories)
        return _program(structure, beside if named else None, constants.tensor)
    except DelegraphError:
        raise
    except Exception as e:
        # whatever sympy and torch raise when they are given nonsense
        text = f"the form of a program is invalid: {type(e).__name__}: {e}"
        raise FormatError("format-invalid", text) from e


def canonical(form: Form) -> ExportedProgram:
    """The program that ``read`` would make of the bytes of ``form``, with the constants
    of the original program.
    """
    return _program(json.loads(form.structure), None, form.tensors.__getitem__)


def _program(
    structure: list[Any],
    beside: list[Any] | None,
    tensor: Callable[[Any], torch.Tensor],
) -> ExportedProgram:
    """The program of a form's tables. ``tensor`` returns the constant of a row."""
    with TRACING:  # fake tensors of symbolic sizes compute
        reader = _Reader(structure, beside, tensor)
        with reader.environment.suppress_guards():
            return reader.program()


class _Reader:
    """Creates a program from the tables of a form.

    ``structure`` and ``beside`` are those of ``Form``, parsed; ``beside`` None gives
    nodes names by number. ``tensor`` returns the constant of a row. ``environment``:
    where the symbols of sizes are created.
    """

    def __init__(
        self,
        structure: list[Any],
        beside: list[Any] | None,
        tensor: Callable[[Any], torch.Tensor],
    ) -> None:
        """Read the tables that the graphs refer to.

        Raises FormatError if torch has another default dtype here.
        """
        # version, default dtype, symbols, targets of calls, types of values, constants,
        # signature, graphs
        _, default, symbols, targets, types, _, self._signature, self._graphs = (
            structure
        )
        if DTYPES[default] is not torch.get_default_dtype():
            text = (
                f"the form was written where the default dtype was {default}; it is"
                f" {torch.get_default_dtype()} here"
            )
            raise FormatError("format-invalid", text, hint="torch.set_default_dtype")
        self._beside = beside
        self.environment = ShapeEnv()
        self._symbols = SymbolsRead(
            symbols, self.environment, beside[1] if beside else None
        )
        mode = FakeTensorMode(
            allow_non_fake_inputs=True, export=True, shape_env=self.environment
        )
        self._types = TypesRead(types, self._symbols, mode)
        self._tensor = tensor
        self._targets = [target_of(name) for name in targets]
        self._modules: dict[int, GraphModule] = {}

    def program(self) -> ExportedProgram:
        """The program of graph 0, the outermost one."""
        root: Any = torch.nn.Module()
        graph = self._graph(0, root)
        inputs, outputs = self._specs(graph)
        # ``build_program`` takes tensors and ranges of symbols from an existing
        # program: this stands for one
        like: Any = SimpleNamespace(
            state_dict={},
            constants={},
            range_constraints=self._symbols.constraints,
            _guards_code=(),
        )
        # row of an input: kind, number of its constant (None for a run-time input),
        # persistence
        for spec, (_, constant, _) in zip(inputs, self._signature[0], strict=True):
            if constant is not None:
                tensor = self._tensor(constant)
                is_parameter = spec.kind is InputKind.PARAMETER
                # torch wants one there
                if is_parameter and not isinstance(tensor, torch.nn.Parameter):
                    tensor = torch.nn.Parameter(tensor, requires_grad=False)
                (
                    like.state_dict
                    if is_parameter or spec.persistent
                    else like.constants
                )[spec.target] = tensor
        run_time = [spec for spec in inputs if spec.kind is InputKind.USER_INPUT]
        call = flat_call(
            len(run_time), sum(spec.kind is OutputKind.USER_OUTPUT for spec in outputs)
        )
        program = build_program(root, graph, inputs, outputs, like, call, check=False)
        # table 3 of ``beside`` has the writer's method and partition
        program.graph_module.meta.update(
            self._beside[3] if self._beside else {"method": "forward", "partition": "0"}
        )
        return program

    def _specs(self, graph: Graph) -> tuple[list[InputSpec], list[OutputSpec]]:
        """The specs of inputs and outputs for the program's signature."""
        # input: kind, number of its constant or None, persistence; output: kind,
        # position of the input that it writes
        rows, output_rows = self._signature
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        targets = [None if row[1] is None else f"c{k}" for k, row in enumerate(rows)]
        if self._beside:
            targets = self._beside[0]
        inputs = [
            InputSpec(InputKind[kind], argument_of(node), target, persistent)
            for node, target, (kind, _, persistent) in zip(
                placeholders, targets, rows, strict=True
            )
        ]
        names = [
            target or node.name
            for node, target in zip(placeholders, targets, strict=True)
        ]
        values: Any = output_node(graph).args[0]
        outputs = [
            OutputSpec(
                OutputKind[kind],
                argument_of(value),
                None if k is None else names[at(k)],
            )
            for value, (kind, k) in zip(values, output_rows, strict=True)
        ]
        return inputs, outputs

    def _graph(self, number: int, root: Any) -> Graph:
        """Graph number ``number``.

        Its subgraphs and constants become attributes of ``root``.
        """
        graph = Graph(owning_module=root)
        nodes = list[Node]()
        # ``handle``: the debug handle, from 1 on, or 0 for none; ``marks``: one table
        # of other metadata, or nothing
        for k, (action, args, type_, handle, *marks) in enumerate(self._graphs[number]):
            meta: dict[str, Any] = (
                {} if action == "output" else {"val": self._types.val(type_)}
            )
            meta |= {"debug_handle": at(handle)} if handle else {}
            name = "output" if action == "output" else f"v{k}"
            target = None
            if self._beside is not None:
                name, target = self._restore_names(meta, self._beside, number, k)
            for mark in marks:
                meta |= read_value(mark, (), self._symbols)
            op, called, positional, keywords = self._call(
                action, args, nodes, number, root, target or name
            )
            nodes.append(
                append_node(graph, op, called, positional, keywords, name, meta)
            )
        return graph

    def _call(
        self,
        action: Any,
        args: Any,
        nodes: list[Node],
        number: int,
        root: Any,
        name: str,
    ) -> Any:
        """The op, target, arguments and keyword arguments of a node.

        ``action``: a word, or the number of the called operator. ``args``: the form of
        the arguments. ``nodes``: the earlier nodes of the graph, whose number is
        ``number``. ``root``: the module whose attributes are the graph's subgraphs and
        constants. ``name``: the target of the node if it is a placeholder or fetches
        such an attribute.
        """
        if action == "input":
            return "placeholder", name, (), {}
        if action == "output":
            return "output", "output", (read_value(args, nodes, self._symbols),), {}
        if action in ("graph", "constant"):
            attribute = name
            setattr(
                root,
                attribute,
                (
                    self._tensor(args)
                    if action == "constant"
                    else self._module(at(args), number)
                ),
            )
            return "get_attr", attribute, (), {}
        target = self._targets[at(action)]
        if isinstance(target, OpOverload):
            return "call_function", target, *call_of(target, args, nodes, self._symbols)
        positional, keywords = (read_value(arg, nodes, self._symbols) for arg in args)
        return "call_function", target, tuple(positional), keywords

    def _module(self, number: int, above: int) -> GraphModule:
        """Graph number ``number`` as a module, for a call in graph ``above``; one
        module serves all of its calls.

        Raises FormatError if a graph would contain itself.
        """
        if number <= above:  # a graph that holds itself has no end
            raise FormatError("format-invalid", f"graph {above} holds graph {number}")
        if number not in self._modules:
            root = torch.nn.Module()
            self._modules[number] = _LazyGraphModule(root, self._graph(number, root))
        return self._modules[number]

    def _restore_names(
        self, meta: dict[str, Any], beside: list[Any], graph: int, node: int
    ) -> tuple[str, str | None]:
        """The writer's name and target of node number ``node`` in graph number
        ``graph``.

        Puts the writer's debug handle, stack trace and module stack into ``meta``.
        """
        _, _, handles, _, texts, graphs = beside
        name, target, trace, modules = graphs[graph][node]
        if "debug_handle" in meta:
            meta["debug_handle"] = handles[meta["debug_handle"] - 1]
        if text := texts[at(trace)]:
            meta["stack_trace"] = text
        if text := texts[at(modules)]:
            meta["nn_module_stack"] = {
                key: (path, kind) for key, path, kind in json.loads(text)
            }
        return name, target
