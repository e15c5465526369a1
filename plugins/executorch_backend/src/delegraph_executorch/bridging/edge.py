"""Convert programs to ExecuTorch's edge dialect.

A call of the original becomes one or several calls in edge dialect: its pieces. Each
piece records the name of the original call.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from delegraph_engines import quietly
from delegraph_programs import (
    argument_of,
    build_program,
    copy_node,
    flat_call,
    name_outputs,
    output_values,
    placeholders,
)
from torch._ops import OpOverload
from torch._prims_common import is_contiguous_or_false
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec
from torch.fx import Graph, Node

ORIGIN = "delegraph_origin"
"""Key of a piece's meta: the name of the original call."""
MARKS = "delegraph_executorch_marks"
"""Key of a call's meta: a list with the new entries in the meta of each of its pieces.

ExecuTorch's partitioner adds these entries, and ``preprocess`` of its backend reads them.
"""


@torch.library.custom_op("delegraph_executorch::stand_in", mutates_args=())
def stand_in(like: torch.Tensor, after: list[torch.Tensor]) -> torch.Tensor:
    """Stand for a call that ExecuTorch does not support.

    The result has the type and shape of ``like``. ``after`` are the inputs of the
    replaced call, so the order of calls remains.
    """
    raise NotImplementedError(
        "this operator stands in for another one in the graph, and cannot be run"
    )


@stand_in.register_fake
def _(like: torch.Tensor, after: list[torch.Tensor]) -> torch.Tensor:
    return torch.empty_like(like)


def to_edge_dialect(
    program: ExportedProgram, hidden: Collection[Node] = ()
) -> ExportedProgram:
    """Return a copy of a core ATen program in edge dialect, with contiguous tensors.

    Tensors in a program file are contiguous, so blobs must be compiled for contiguous
    tensors. The copy shares contiguous weights with ``program``. A ``stand_in``, which
    no backend takes, replaces each call in ``hidden``, delegate, branch and loop.
    """
    from executorch.exir import EdgeCompileConfig
    from executorch.exir.program._program import _generate_edge_program

    config = EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True)
    copied = _Copy(program, hidden).program()
    _forget_pending_sizes(copied)
    with quietly():
        edge: ExportedProgram = _generate_edge_program(config, copied)
    metas = {n.name: n.meta for n in program.graph.nodes}
    for name, pieces in pieces_of(edge).items():
        handle = metas[name].get("debug_handle")
        marks = metas[name].get(MARKS, ())
        if handle is not None:
            # The conversion gave the pieces other debug handles: restore the original.
            for piece in pieces:
                piece.meta["debug_handle"] = handle
        # A call without marks has an empty list.
        for piece, mark in zip(pieces, marks, strict=False):
            piece.meta.update(mark)
    return edge


def _forget_pending_sizes(program: ExportedProgram) -> None:
    """Clear data-dependent sizes that an earlier trace left unbound.

    Otherwise torch raises an error for them in the next call that it traces. All parts
    of a program share one shape environment, so that call may be in any part.
    """
    values = (node.meta.get("val") for node in program.graph.nodes)
    modes = {value.fake_mode for value in values if isinstance(value, FakeTensor)}
    for shape_env in {mode.shape_env for mode in modes if mode.shape_env is not None}:
        shape_env.pending_fresh_unbacked_symbols.clear()


def calls_of(program: ExportedProgram) -> list[Node]:
    """Return the calls of a program's graph, in order."""
    return [n for n in program.graph.nodes if n.op == "call_function"]


def finish_program(
    graph: Graph,
    inputs: Sequence[InputSpec],
    outputs: Sequence[OutputSpec],
    values: Sequence[Any],
    made_of: ExportedProgram,
) -> ExportedProgram:
    """Add the output to a graph, and return the graph's program.

    ``values`` are the outputs, described by ``outputs``. Tensors and modules come from
    ``made_of``. All calls were valid in ``made_of``, so the program is not validated.
    """
    graph.output(tuple(values))
    given = sum(spec.kind is InputKind.USER_INPUT for spec in inputs)
    returned = sum(spec.kind is OutputKind.USER_OUTPUT for spec in outputs)
    call = flat_call(given, returned)
    root = made_of.graph_module
    return build_program(
        root, graph, inputs, name_outputs(outputs, values), made_of, call, check=False
    )


def pieces_of(edge: ExportedProgram) -> dict[str, list[Node]]:
    """Return the pieces of each call of the original, by the call's name."""
    found: dict[str, list[Node]] = {}
    for node in calls_of(edge):
        if ORIGIN in node.meta:
            found.setdefault(node.meta[ORIGIN], []).append(node)
    return found


def _with_unpacking(calls: Sequence[Node], hidden: Collection[Node]) -> set[Node]:
    """Return hidden calls, opaque calls, and ``getitem`` calls on their results."""
    found: set[Node] = set()
    for node in calls:
        if (
            node in hidden
            or _is_opaque(node)
            or (node.target is operator.getitem and node.args[0] in found)
        ):
            found.add(node)
    return found


ORIGIN_KEYS = ("source_fn_stack", "torch_fn", "nn_module_stack")
"""Keys of a node's meta that name the function or module of PyTorch it comes from."""
_PRODUCTS = (
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
)


def _is_product_by_weight(node: Node) -> bool:
    """Return whether a product's right operand is a weight itself, not its transpose.

    If the meta of a product names ``linear`` as its origin, XNNPACK transposes the
    weight back. That is wrong if lowering computed the transpose already, so ``_copy``
    drops the origin of such products.
    """
    right: Any = node.args[-1] if node.target in _PRODUCTS else None
    return isinstance(right, Node) and right.op == "placeholder"


class _Copy:
    """A copy of a program, with stand-ins for hidden calls.

    Each result of a hidden call gets an additional input, the ``like`` of its stand-in.
    """

    def __init__(self, program: ExportedProgram, hidden: Collection[Node]) -> None:
        self.original = program
        self.graph = Graph(owning_module=program.graph_module)
        calls = calls_of(program)
        self.hidden = _with_unpacking(calls, hidden)
        # node of the original -> its copy
        self.env: dict[Node, Node] = {}
        self.inputs: list[InputSpec] = []
        # Written parameters become buffers: ExecuTorch drops parameters that no call
        # reads, even if the program writes them.
        outputs = program.graph_signature.output_specs
        written = {
            spec.target
            for spec in outputs
            if spec.kind is OutputKind.PARAMETER_MUTATION
        }
        for node, spec in placeholders(program):
            self.env[node] = self._copy(node)
            self.env[node].meta["val"] = _contiguous(node.meta.get("val"))
            persistent = True if spec.kind is InputKind.PARAMETER else spec.persistent
            kind = InputKind.BUFFER if spec.target in written else spec.kind
            self.inputs.append(
                InputSpec(kind, argument_of(self.env[node]), spec.target, persistent)
            )
        # Add all inputs before the first call: a graph needs its placeholders first.
        for node in calls:
            val = node.meta.get("val")
            if node in self.hidden and not isinstance(val, (list, tuple, type(None))):
                self._add_like_input(node)
        for node in calls:
            if node not in self.hidden:
                self.env[node] = self._copy(node)
            elif isinstance(node.meta.get("val"), torch.Tensor):
                self.env[node] = self._stand_in(node)

    def _add_like_input(self, node: Node) -> None:
        """Add an input with the type and shape of a hidden call's result.

        Tensors get a stand-in with this input as ``like``. For a number, the input itself
        represents the result.
        """
        self.env[node] = new = self.graph.placeholder(f"like_{node.name}")
        new.meta = {"val": _contiguous(node.meta["val"])}
        self.inputs.append(InputSpec(InputKind.USER_INPUT, argument_of(new), None))

    def program(self) -> ExportedProgram:
        """Return the copy as a program, with contiguous tensors."""
        values = [
            self.env[v] if isinstance(v, Node) else v
            for v in output_values(self.original)
        ]
        outputs = []
        for spec in self.original.graph_signature.output_specs:
            if spec.kind is OutputKind.PARAMETER_MUTATION:
                # written parameters have become buffers
                spec = replace(spec, kind=OutputKind.BUFFER_MUTATION)
            outputs.append(spec)
        program = finish_program(
            self.graph, self.inputs, outputs, values, self.original
        )
        for tensors in (program.state_dict, program.constants):
            tensors.update(
                {name: _contiguous(tensor) for name, tensor in tensors.items()}
            )
        return program

    def _copy(self, node: Node) -> Node:
        """Append a copy of a node that records its origin, and return it."""
        new = copy_node(self.graph, node, self.env.__getitem__)
        if isinstance(node.target, OpOverload):
            target = node.target
            if _has_equal_tensor_overload(node):
                new.target = target = _WITH_TENSORS[target]
            new.args = _with_float_operands(target, new)
            new.kwargs = {k: v for k, v in new.kwargs.items() if k != "memory_format"}
        new.meta[ORIGIN] = node.name
        dropped = ["delegation_tag", MARKS]
        if _is_product_by_weight(node):
            # the keys by which XNNPACK recognizes ``linear``
            dropped += ORIGIN_KEYS
        for key in dropped:
            new.meta.pop(key, None)
        return new

    def _stand_in(self, node: Node) -> Node:
        """Append a stand-in for a result of a hidden call, and return it.

        ``env`` must contain the ``like`` input of the result.
        """
        inputs = producer_of(node).all_input_nodes
        copies = [self.env[i] for i in inputs if i in self.env]
        after = [i for i in copies if isinstance(i.meta.get("val"), torch.Tensor)]
        new = self.graph.call_function(
            torch.ops.delegraph_executorch.stand_in.default, (self.env[node], after)
        )
        new.meta = {"val": node.meta["val"], ORIGIN: node.name}
        return new


_WITH_TENSORS = {
    torch.ops.aten.add.Scalar: torch.ops.aten.add.Tensor,
    torch.ops.aten.div.Scalar: torch.ops.aten.div.Tensor,
    torch.ops.aten.mul.Scalar: torch.ops.aten.mul.Tensor,
    torch.ops.aten.sub.Scalar: torch.ops.aten.sub.Tensor,
}
"""Overload for a number -> the overload for a tensor, which more partitioners take.

In edge dialect, its number becomes a tensor.
"""


def _has_equal_tensor_overload(node: Node) -> bool:
    """Return whether the overload with a tensor in place of a number is equivalent.

    It is equivalent if the tensor operand and the result are floats of one type.
    """
    if node.target not in _WITH_TENSORS or len(node.args) != 2 or node.kwargs:
        return False
    if type(node.args[1]) not in (int, float):
        return False
    operand: Any = node.args[0]
    val = node.meta["val"]
    return val.is_floating_point() and operand.meta["val"].dtype is val.dtype


def _with_float_operands(op: OpOverload, call: Node) -> tuple[Any, ...]:
    """Return a call's arguments, with ``x * 2`` as ``x * 2.0`` if the result is float.

    In edge dialect, numbers become tensors. An int tensor would need a cast, which most
    backends leave to the host.
    """
    val: Any = call.meta.get("val")
    if not isinstance(val, torch.Tensor) or not val.is_floating_point():
        return call.args
    args = list(call.args)
    for k, argument in enumerate(op._schema.arguments[: len(args)]):
        number = args[k]
        if type(number) is int and isinstance(argument.type, torch.TensorType):
            args[k] = float(number)
    return tuple(args)


def _is_opaque(node: Node) -> bool:
    """Return whether a call has no form in edge dialect, so that a stand-in is needed."""
    target: Any = node.target
    if not isinstance(target, OpOverload):
        return isinstance(target, torch._ops.HigherOrderOperator)
    return (
        any(i.op == "get_attr" for i in node.all_input_nodes)
        # as_strided addresses memory, and the copy of the program has another layout
        or target is torch.ops.aten.as_strided.default
        or _has_no_copying_form(target)
    )


def _has_no_copying_form(op: OpOverload) -> bool:
    """Return whether an operator returns a view and has no copying variant.

    Edge dialect has copying variants in place of views.
    """
    namespace, name = op._schema.name.split("::")
    arguments = op._schema.arguments
    returns_view = bool(arguments) and arguments[0].alias_info is not None
    return (
        namespace == "aten"
        and returns_view
        and not hasattr(torch.ops.aten, f"{name}_copy")
    )


def _contiguous(value: Any) -> Any:
    """Return a tensor in C order. Parameters stay Parameters, other values unchanged."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return value
    if is_contiguous_or_false(value):
        return value
    dense = value.detach().contiguous()
    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(dense, value.requires_grad)
    return dense


def producer_of(node: Node) -> Node:
    """Return ``node``, or the call from whose result it selects if it is a ``getitem``."""
    while node.target is operator.getitem:
        source = node.args[0]
        assert isinstance(source, Node)
        node = source
    return node
