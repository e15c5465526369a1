"""A program as a form: ``write``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from delegraph.errors import Unsupported
from delegraph_programs import constant_tensor, placeholders, source_of
from delegraph_programs.call_names import EXPORTED, LEFT
from delegraph_programs.exported_program import CONSTANT_KINDS
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule, Node

from .arguments import NAMES, TypesWritten, written
from .constants import written_constants
from .form import VERSION, Form, dumps
from .operators import convention_of, name_of
from .sizes import NoForm, SymbolsWritten

_BESIDE = ("stack_trace", "nn_module_stack")
NOT_IN_FORM = frozenset({
    "val", "debug_handle", *_BESIDE,
    EXPORTED, LEFT, "decomposed_from",  # for reports
    "delegation_tag", "no_copy",  # a partitioner's answer, which has been followed
    # they say what "val" says, or less
    "tensor_meta", "example_value", "eager_input_vals",
    # of tracers
    "torch_fn", "original_aten", "from_node", "seq_nr", "source_fn_stack", "fwd_source_fn_stack",
    "fwd_nn_module_stack", "partitioner_tag", "autograd_backward", "is_torch_exported", "desc",
})  # fmt: skip
"""Metadata of nodes that a form has elsewhere, or that no backend computes by.

Every other key is in the form, but for those that begin with ``local:``, which plugins
leave for their own process.
"""


def write(program: ExportedProgram) -> Form:
    """The form of ``program``. Takes time linear in its graphs; no constant is read.

    Raises Unsupported, with the node, for a value or call that the form cannot express.
    """
    writer = _Writer(program)
    try:
        return writer.form()
    except NoForm as e:
        node = writer.node
        text = f"{e}; such a program cannot be written as bytes"
        raise Unsupported(
            "unsupported", text, node, source_of(node) if node else None
        ) from e


class _Writer:
    """Fills the tables of a form in one walk over all graphs.

    ``node``: the node at which the walk is.
    """

    def __init__(self, program: ExportedProgram) -> None:
        """Find the graphs of ``program`` and number the symbols of its sizes; the
        tables are still empty.
        """
        self.program = program
        self.node: Node | None = None
        self._graphs = _graphs(program.graph_module)
        self._nodes = [list(module.graph.nodes) for module in self._graphs]
        self._symbols = SymbolsWritten(
            n.meta.get("val") for nodes in self._nodes for n in nodes
        )
        self._types = TypesWritten(self._symbols)
        self._targets: dict[Any, int] = {}  # target of a call -> its number
        self._handles: dict[int, int] = {}  # debug handle -> its number, from 1 on
        self._tensors: list[torch.Tensor] = []

    def form(self) -> Form:
        """The form of the program."""
        signature = self._signature()
        graphs = [self._graph(nodes) for nodes in self._nodes]
        self.node = None
        constants, memories = written_constants(self._tensors)
        symbols = self._symbols.table(self.program.range_constraints)
        default = NAMES[torch.get_default_dtype()]  # some rules of torch follow it
        names = [name_of(target) for target in self._targets]
        tables = [
            VERSION,
            default,
            symbols,
            names,
            self._types.rows,
            constants,
            signature,
            graphs,
        ]
        return Form(dumps(tables), dumps(self._beside()), memories, self._tensors)

    def _signature(self) -> list[Any]:
        """Rows for the program's inputs and outputs.

        An input has kind, number of its constant (None for a run-time input), and
        whether that is persistent. An output has kind, and position of the input that
        it is written to (None if it is returned).
        """
        inputs = []
        position = dict[str | None, int]()
        for k, (node, spec) in enumerate(placeholders(self.program)):
            self.node = node
            is_run_time = spec.kind is InputKind.USER_INPUT
            if not is_run_time and spec.kind not in CONSTANT_KINDS:
                raise NoForm(
                    f"the form has no words for the input {node.name}, a"
                    f" {spec.kind.name}"
                )
            position[node.name if is_run_time else spec.target] = k
            constant = (
                None
                if is_run_time
                else self._constant(constant_tensor(self.program, spec))
            )
            inputs.append([spec.kind.name, constant, spec.persistent])
        outputs = self.program.graph_signature.output_specs
        return [
            inputs,
            [
                [s.kind.name, None if s.target is None else position[s.target]]
                for s in outputs
            ],
        ]

    def _constant(self, tensor: torch.Tensor) -> int:
        """Append a tensor to the constants of the form; returns its number."""
        self._tensors.append(tensor)
        return len(self._tensors) - 1

    def _graph(self, nodes: list[Node]) -> list[Any]:
        """The rows of the nodes of one graph."""
        numbers = {node: k for k, node in enumerate(nodes)}
        return [self._row(node, numbers) for node in nodes]

    def _row(self, node: Node, numbers: Mapping[Node, int]) -> list[Any]:
        """The row of a node: its ``_action``, the number of its type, its debug handle,
        and other metadata if any.

        ``numbers``: node of this graph -> its number.
        """
        self.node = node
        meta = node.meta
        handle = meta.get("debug_handle")
        # 0 for no handle; else handles are numbered from 1 in the order in which they
        # appear
        number = (
            0
            if handle is None
            else self._handles.setdefault(handle, len(self._handles) + 1)
        )
        row = [*self._action(node, numbers), self._types.index(meta.get("val")), number]
        extra = {
            key: meta[key]
            for key in meta.keys() - NOT_IN_FORM
            if not str(key).startswith("local:")
        }
        # delegraph keeps names of layers there
        if isinstance(extra.get("custom"), dict):
            extra["custom"] = {
                k: v
                for k, v in extra["custom"].items()
                if not str(k).startswith("delegraph.")
            }
        # ``== {}`` would ask arrays, which answer with an array
        extra = {
            k: v
            for k, v in extra.items()
            if v is not None and not (isinstance(v, dict) and not v)
        }
        return [*row, written(extra, {}, self._symbols)] if extra else row

    def _action(self, node: Node, numbers: Mapping[Node, int]) -> tuple[int | str, Any]:
        """What a node does (a word, or the number of the operator that it calls), and
        the form of its arguments.

        ``numbers``: node of this graph -> its number. Raises NoForm.
        """
        if node.op == "placeholder":
            return "input", None
        if node.op == "output":
            return "output", written(node.args[0], numbers, self._symbols)
        if node.op == "get_attr":
            attribute = getattr(node.graph.owning_module, str(node.target))
            if isinstance(attribute, torch.Tensor):
                return "constant", self._constant(attribute)
            if not isinstance(attribute, GraphModule):
                raise NoForm(
                    f"the form has no words for {node.name}, a"
                    f" {type(attribute).__name__}"
                )
            return "graph", next(
                k for k, module in enumerate(self._graphs) if module is attribute
            )
        name_of(node.target)  # raises NoForm if the target has no name
        number = self._targets.setdefault(node.target, len(self._targets))
        if not isinstance(node.target, OpOverload):
            return number, [
                written(arg, numbers, self._symbols)
                for arg in (list(node.args), node.kwargs)
            ]
        names, defaults, *_ = convention_of(node.target)
        # all arguments, in the order of the schema, whether the call gives them or not
        args = [written(v, numbers, self._symbols, flat=True) for v in node.args]
        # for those that are not given by position; the next loop replaces some
        args += defaults[len(args) :]
        for key, value in node.kwargs.items():
            args[names.index(key)] = written(value, numbers, self._symbols, flat=True)
        return number, args

    def _beside(self) -> list[Any]:
        """The tables of names, debug handles and source lines, by the numbers that the
        form has for nodes.
        """
        # text -> number: many nodes share a source line or a module
        numbers: dict[str, int] = {}
        graphs = [
            [self._names(node, numbers) for node in nodes] for nodes in self._nodes
        ]
        targets = [s.target for s in self.program.graph_signature.input_specs]
        partition = {
            key: self.program.graph_module.meta.get(key)
            for key in ("method", "partition")
        }
        return [
            targets,
            list(map(str, self._symbols.numbers)),
            list(self._handles),
            partition,
            list(numbers),
            graphs,
        ]

    def _names(self, node: Node, numbers: dict[str, int]) -> list[Any]:
        """A node's name, its target, and the ``numbers`` of its stack trace and of its
        module stack.

        ``numbers``: text -> its number; new texts are added. The target is None unless
        it is a name.
        """
        target = str(node.target) if node.op in ("placeholder", "get_attr") else None
        trace, modules = map(node.meta.get, _BESIDE)
        stack = (
            json.dumps(
                [[key, path, str(kind)] for key, (path, kind) in modules.items()]
            )
            if modules
            else ""
        )
        return [
            node.name,
            target,
            *(numbers.setdefault(text, len(numbers)) for text in (trace or "", stack)),
        ]


def _graphs(top: GraphModule) -> list[GraphModule]:
    """A program's graphs: ``top``, then the subgraphs that they fetch, each once."""
    modules = [top]
    for module in modules:  # ``modules`` grows meanwhile
        fetched = [
            getattr(module, str(node.target))
            for node in module.graph.find_nodes(op="get_attr")
        ]
        new = [m for m in dict.fromkeys(fetched) if isinstance(m, GraphModule)]
        modules += [m for m in new if not any(m is k for k in modules)]
    return modules
