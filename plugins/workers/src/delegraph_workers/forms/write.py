"""Write a program as a form: ``write``."""

from __future__ import annotations

import itertools
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
from .form import VERSION, Form, Labels, Structure, dumps
from .operators import convention_of, name_of
from .sizes import NoForm, SymbolsWritten

NOT_IN_FORM = frozenset({
    "val", "debug_handle", "stack_trace", "nn_module_stack",
    EXPORTED, LEFT, "decomposed_from",  # for reports
    "delegation_tag", "no_copy",  # a partitioner's answer, which has been applied
    # the same facts as "val", or fewer
    "tensor_meta", "example_value", "eager_input_vals",
    # of tracers
    "torch_fn", "original_aten", "from_node", "seq_nr", "source_fn_stack", "fwd_source_fn_stack",
    "fwd_nn_module_stack", "partitioner_tag", "autograd_backward", "is_torch_exported", "desc",
})  # fmt: skip
"""Metadata of nodes that a form has elsewhere, or that no backend uses.

Every other key is in the form, except keys that begin with ``local:``: plugins set them
for their own process.
"""


def write(program: ExportedProgram) -> Form:
    """Return the form of ``program``. Takes time linear in its graphs; no constant is
    read.

    Raises Unsupported, with the node, for a value or call that the form cannot express.
    """
    writer = _Writer(program)
    try:
        return writer.form()
    except NoForm as e:
        node = writer.node
        text = f"the program cannot be written as bytes: {e}"
        source = None if node is None else source_of(node)
        raise Unsupported("unsupported", text, node, source) from e


class _Writer:
    """Fills the tables of a form in one walk over all graphs.

    ``node``: the current node of the walk.
    """

    def __init__(self, program: ExportedProgram) -> None:
        """Find the graphs of ``program`` and number the symbols of its sizes."""
        self.program = program
        self.node: Node | None = None
        self._graphs = _graphs(program.graph_module)
        self._nodes = [list(module.graph.nodes) for module in self._graphs]
        self._symbols = SymbolsWritten(
            node.meta.get("val") for node in itertools.chain(*self._nodes)
        )
        self._types = TypesWritten(self._symbols)
        self._targets: dict[Any, int] = {}  # target of a call -> its number
        self._handles: dict[int, int] = {}  # debug handle -> its number, from 1 on
        self._tensors: list[torch.Tensor] = []

    def form(self) -> Form:
        """Return the form of the program."""
        signature = self._signature()
        graphs = [self._graph(nodes) for nodes in self._nodes]
        self.node = None
        constants, memories = written_constants(self._tensors)
        structure = Structure(
            version=VERSION,
            # some rules of torch depend on it
            default_dtype=NAMES[torch.get_default_dtype()],
            symbols=self._symbols.table(self.program.range_constraints),
            targets=[name_of(target) for target in self._targets],
            types=self._types.rows,
            constants=constants,
            signature=signature,
            graphs=graphs,
        )
        return Form(dumps(structure), dumps(self._labels()), memories, self._tensors)

    def _signature(self) -> list[Any]:
        """Return rows for the program's inputs and outputs.

        An input has its kind, the number of its constant (None for a run-time input),
        and whether the constant is persistent. An output has its kind, and the position
        of the input that it writes (None if it is returned).
        """
        inputs = []
        position = dict[str | None, int]()
        for k, (node, spec) in enumerate(placeholders(self.program)):
            self.node = node
            if spec.kind is InputKind.USER_INPUT:
                position[node.name] = k
                constant = None
            elif spec.kind in CONSTANT_KINDS:
                position[spec.target] = k
                constant = self._constant(constant_tensor(self.program, spec))
            else:
                raise NoForm(f"it has the input {node.name}, a {spec.kind.name}")
            inputs.append([spec.kind.name, constant, spec.persistent])
        outputs = []
        for output in self.program.graph_signature.output_specs:
            written_input = None
            if output.target is not None:
                written_input = position[output.target]
            outputs.append([output.kind.name, written_input])
        return [inputs, outputs]

    def _constant(self, tensor: torch.Tensor) -> int:
        """Append a tensor to the constants of the form; return its number."""
        self._tensors.append(tensor)
        return len(self._tensors) - 1

    def _graph(self, nodes: list[Node]) -> list[Any]:
        """Return the rows of the nodes of one graph."""
        numbers = {node: k for k, node in enumerate(nodes)}
        return [self._row(node, numbers) for node in nodes]

    def _row(self, node: Node, numbers: Mapping[Node, int]) -> list[Any]:
        """Return the row of a node.

        It has the node's ``_action``, the number of its type, its debug handle, and
        other metadata if there are any. ``numbers``: node of this graph -> its number.
        """
        self.node = node
        # debug handles are numbered in the order in which they appear; 0 means none
        handle = node.meta.get("debug_handle")
        handle_number = 0
        if handle is not None:
            handle_number = self._handles.setdefault(handle, len(self._handles) + 1)
        action, args = self._action(node, numbers)
        row = [action, args, self._types.index(node.meta.get("val"))]
        row.append(handle_number)
        further = _further_metadata(node)
        if further:
            row.append(written(further, {}, self._symbols))
        return row

    def _action(self, node: Node, numbers: Mapping[Node, int]) -> tuple[int | str, Any]:
        """Return the action of a node, and the form of its arguments.

        The action is a word, or the number of the called operator. ``numbers``: node of
        this graph -> its number. Raises NoForm.
        """
        if node.op == "placeholder":
            return "input", None
        if node.op == "output":
            return "output", written(node.args[0], numbers, self._symbols)
        if node.op == "get_attr":
            return self._attribute(node)
        name_of(node.target)  # raises NoForm if the target has no name
        number = self._targets.setdefault(node.target, len(self._targets))
        if not isinstance(node.target, OpOverload):
            positional = written(list(node.args), numbers, self._symbols)
            return number, [positional, written(node.kwargs, numbers, self._symbols)]

        # all arguments, in the order of the schema
        convention = convention_of(node.target)
        args = [written(v, numbers, self._symbols, flat=True) for v in node.args]
        args += convention.defaults[len(args) :]
        for key, value in node.kwargs.items():
            position = convention.names.index(key)
            args[position] = written(value, numbers, self._symbols, flat=True)
        return number, args

    def _attribute(self, node: Node) -> tuple[str, int]:
        """Return the action of a node that fetches a constant or a subgraph."""
        attribute = getattr(node.graph.owning_module, str(node.target))
        if isinstance(attribute, torch.Tensor):
            return "constant", self._constant(attribute)
        for k, module in enumerate(self._graphs):
            if module is attribute:
                return "graph", k
        raise NoForm(f"it has {node.name}, a {type(attribute).__name__}")

    def _labels(self) -> Labels:
        """Return the tables of names, debug handles and source lines."""
        # text -> number: many nodes share a source line or a module
        numbers: dict[str, int] = {}
        graphs = [
            [self._names(node, numbers) for node in nodes] for nodes in self._nodes
        ]
        meta = self.program.graph_module.meta
        return Labels(
            inputs=[spec.target for spec in self.program.graph_signature.input_specs],
            symbols=list(map(str, self._symbols.numbers)),
            handles=list(self._handles),
            origin={key: meta.get(key) for key in ("method", "partition")},
            texts=list(numbers),
            graphs=graphs,
        )

    def _names(self, node: Node, numbers: dict[str, int]) -> list[Any]:
        """Return a node's name, its target, and the numbers of two texts.

        The texts are its stack trace and its module stack. ``numbers``: text -> its
        number; new texts are added. The target is None unless it is a name.
        """
        target = str(node.target) if node.op in ("placeholder", "get_attr") else None
        trace = node.meta.get("stack_trace") or ""
        modules = node.meta.get("nn_module_stack") or {}
        stack = ""
        if modules:
            rows = [[key, path, str(kind)] for key, (path, kind) in modules.items()]
            stack = json.dumps(rows)
        trace_number = numbers.setdefault(trace, len(numbers))
        stack_number = numbers.setdefault(stack, len(numbers))
        return [node.name, target, trace_number, stack_number]


def _further_metadata(node: Node) -> dict[str, Any]:
    """Return the metadata of a node for its form, except ``NOT_IN_FORM``."""
    found = {}
    for key in node.meta.keys() - NOT_IN_FORM:
        value = node.meta[key]
        if key == "custom" and isinstance(value, dict):
            # names of layers, which delegraph keeps there, are no part of a form
            value = {
                k: v for k, v in value.items() if not str(k).startswith("delegraph.")
            }
        is_empty = value is None or (isinstance(value, dict) and not value)
        if not is_empty and not str(key).startswith("local:"):
            found[key] = value
    return found


def _graphs(top: GraphModule) -> list[GraphModule]:
    """Return a program's graphs: ``top``, then the subgraphs that they fetch, once
    each.
    """
    modules = [top]
    for module in modules:  # ``modules`` grows in the loop
        fetched = [
            getattr(module, str(node.target))
            for node in module.graph.find_nodes(op="get_attr")
        ]
        new = [m for m in dict.fromkeys(fetched) if isinstance(m, GraphModule)]
        modules += [m for m in new if not any(m is k for k in modules)]
    return modules
