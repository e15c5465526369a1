"""Emit calls of operators as calls of kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from delegraph.errors import Unsupported
from delegraph_programs.interpolation_scale_factors import why_factor_undecided
from torch._ops import OpOverload
from torch.fx import Node
from torch.fx.node import map_arg

from ..kernels import Kernel, find_kernel, loses_values, why_not
from ..program.pte_tables import (
    BoolList,
    DoubleList,
    IntList,
    OptionalTensorList,
    TensorList,
)
from ..program.scalar_types import TORCH_NAMES
from .as_strided import DEPEND_ON_LAYOUT, by_elements
from .decompose import decompose
from .graph_emitter import (
    GraphEmitter,
    Item,
    Replacement,
    Result,
    as_list,
    unsupported,
)
from .in_place import INDEX_PUT_KERNEL
from .method_values import ScalarValue, TensorValue, constant_tensor
from .views import emit_view

aten = torch.ops.aten
CODES = {getattr(torch, name): int(code) for code, name in TORCH_NAMES.items()}
"""dtype -> its number in the file."""


def emit_operator(emitter: GraphEmitter, node: Node) -> Result:
    """Emit an operator as a write in place, another graph, a view, or a kernel call."""
    target = node.target
    assert isinstance(target, OpOverload)
    if node in emitter.in_place.unchanged:
        return emitter.in_place.unchanged[node]
    if node in emitter.in_place.writes:
        return _write_in_place(emitter, node, emitter.in_place.writes[node])
    if target in DEPEND_ON_LAYOUT:
        replacement = by_elements(node, _arguments(target, node))
        if replacement is not None:
            return _emit_instead(emitter, node, replacement)
    view = emit_view(emitter, node)
    return call_kernel(emitter, node) if view is None else view


def _write_in_place(
    emitter: GraphEmitter, node: Node, buffer: TensorValue
) -> TensorValue:
    """Emit an ``index_put`` as ``index_put_`` on the memory of ``buffer``."""
    given = _arguments(aten.index_put.default, node)
    target = emitter.position(buffer)
    args = [target]
    for schema in aten.index_put.default._schema.arguments[1:]:
        args.append(_position(emitter, node, schema, given[schema.name]))
    # the result of an in-place kernel is its first argument
    emitter.assembler.add_kernel_call(INDEX_PUT_KERNEL, "", [*args, target])
    return buffer


def call_kernel(emitter: GraphEmitter, node: Node) -> Result:
    """Emit a call of the kernel that computes a node, or the node's decomposition.

    The decomposition is also used if the kernel does not compute these arguments.
    """
    undecided = why_factor_undecided(node)
    if undecided is not None:
        raise unsupported(
            node, f"no kernel computes {node.target} correctly here: {undecided}"
        )
    target = _scalar_overload(node)
    runtime = emitter.context.kernels.runtime
    kernel = find_kernel(target, emitter.context.kernels)
    if kernel is None:
        return _emit_decomposed(
            emitter, node, f"{runtime} has no kernel that computes {node.target}"
        )
    given = _arguments(target, node)
    values = map_arg(given, lambda n: n.meta.get("val"))
    recorded = as_list(node.meta["val"])
    why = why_not(str(kernel), values, recorded)
    # Formulas call a kernel only with arguments that it computes correctly.
    if why is None and target not in emitter.decomposing:
        why = loses_values(str(kernel), values, recorded)
    if why is not None:
        text = (
            f"the kernel {kernel} of {runtime} does not compute this {node.target}:"
            f" {why}"
        )
        return _emit_decomposed(emitter, node, text)
    args = [_position(emitter, node, a, given[a.name]) for a in kernel.inputs]
    results = emitter.new_results(node)
    _append_call(emitter, kernel, args, results)
    return results if isinstance(node.meta["val"], (tuple, list)) else results[0]


_USED_BY_EXPERTS = (
    "aten.histc.default",
    "aten._grouped_mm.default",
    "transformers.grouped_mm_fallback.default",
)
"""Operators that transformers calls for a mixture of experts, by default."""
_HINTS = {
    **dict.fromkeys(
        _USED_BY_EXPERTS,
        "call model.set_experts_implementation("
        '"batched_mm") before the export: transformers then needs no such operator',
    ),
    "aten._int_mm.default": (
        "quantize with torchao's Int8DynamicActivationIntxWeightConfig("
        "weight_dtype=torch.int8, weight_granularity=PerAxis(0)), which xnnpack takes"
    ),
}
"""Operator that no runtime has a kernel for -> a way to do without it."""


def _emit_decomposed(emitter: GraphEmitter, node: Node, text: str) -> Result:
    """Emit the decomposition of a node that no kernel computes.

    Raises Unsupported with ``text`` if the node has no decomposition.
    """
    hint = (
        "use another operator there, lower it with a backend, or name a kernel set"
        " that has it (option kernels)"
    )
    hint = _HINTS.get(str(node.target), hint)
    if node.target in emitter.decomposing:
        raise unsupported(node, text, hint)
    try:
        replacement = decompose(node)
        if replacement is not None:
            return _emit_instead(emitter, node, replacement)
    except Unsupported as e:
        raise unsupported(
            node, f"{text}, and it cannot be decomposed: {e.message}", hint
        ) from e
    raise unsupported(node, text, hint)


def _emit_instead(
    emitter: GraphEmitter, node: Node, replacement: Replacement
) -> Result:
    """Emit another graph instead of a node, and return the node's result."""
    inputs = [emitter.item(i) for i in replacement.inputs]
    nested = emitter.nested_emitter(replacement.module, inputs)
    nested.decomposing |= {node.target}
    nested.emit()
    items = nested.output_values()
    return items if isinstance(node.meta["val"], (tuple, list)) else items[0]


def _append_call(
    emitter: GraphEmitter, kernel: Kernel, args: Sequence[int], results: Sequence[Item]
) -> None:
    """Append a call of a kernel.

    ExecuTorch passes the results twice: as the kernel's ``out`` arguments, and as the
    value that the kernel returns. Several returned values are a list.
    """
    positions = [emitter.position(r) for r in results]
    # one ``out`` argument is a list, as in split_copy.Tensor_out(..., Tensor[] out)
    takes_list = "List" in str(kernel.outputs[0].real_type)
    if takes_list or len(positions) > 1:
        returned = emitter.assembler.values.references(TensorList, positions)
    else:
        returned = positions[0]
    outs = [returned] if takes_list else positions
    emitter.assembler.add_kernel_call(
        kernel.name, kernel.overload, [*args, *outs, returned]
    )


def _scalar_overload(node: Node) -> OpOverload:
    """Return the operator of a node; the overload for numbers if ``other`` is one.

    Export calls ``add.Tensor`` also for ``add(x, 1)``: this returns ``add.Scalar``.
    """
    target = node.target
    assert isinstance(target, OpOverload)
    other = _arguments(target, node).get("other")
    is_number = isinstance(other, (int, float))
    if isinstance(other, Node):
        is_number = not isinstance(other.meta.get("val"), torch.Tensor)
    names = {"Tensor": "Scalar", "Tensor_mode": "Scalar_mode"}
    name = names.get(target._overloadname)
    if is_number and name is not None and name in target.overloadpacket.overloads():
        return getattr(target.overloadpacket, name)  # type: ignore[no-any-return]
    return target


def _arguments(target: OpOverload, node: Node) -> dict[str, Any]:
    """Return the arguments of a call of ``target`` by name, with defaults."""
    given = dict(node.kwargs)
    for schema, value in zip(target._schema.arguments, node.args, strict=False):
        given[schema.name] = value
    for schema in target._schema.arguments:
        if schema.name not in given:
            given[schema.name] = schema.default_value
    return given


def _position(emitter: GraphEmitter, node: Node, schema: Any, value: Any) -> int:
    """Return the position of an argument's value, converted to the schema's type.

    ``schema`` describes the argument in the schema of the kernel.
    """
    kind = schema.type
    if isinstance(kind, torch.OptionalType):
        if value is None:
            return emitter.assembler.values.constant(None)
        kind = kind.getElementType()
    if isinstance(kind, torch.ListType):
        return _list_position(emitter, kind.getElementType(), value, schema)
    if isinstance(kind, torch.TensorType):
        return _tensor_position(emitter, node, value)
    return _scalar_position(emitter, kind, value, schema.name)


def _list_position(emitter: GraphEmitter, kind: Any, value: Any, schema: Any) -> int:
    """Return the position of a list whose elements have the schema type ``kind``."""
    values = emitter.assembler.values
    if isinstance(value, (tuple, list)):
        elements = list(value)
    else:
        # A schema such as int[2] (N is 2) also accepts one number for all elements.
        elements = [value] * (schema.N or 1)
    if isinstance(kind, torch.OptionalType):
        return values.references(
            OptionalTensorList, [emitter.position(emitter.item(v)) for v in elements]
        )
    if isinstance(kind, torch.TensorType):
        return values.references(
            TensorList, [emitter.position(emitter.item(v)) for v in elements]
        )
    if isinstance(kind, torch.FloatType):
        return values.numbers(DoubleList, [float(v) for v in elements])
    if isinstance(kind, torch.BoolType):
        return values.numbers(BoolList, [bool(v) for v in elements])
    return values.references(
        IntList, [_scalar_position(emitter, kind, v) for v in elements]
    )


def _tensor_position(emitter: GraphEmitter, node: Node, value: Any) -> int:
    """Return the position of a tensor argument; a constant number becomes a tensor."""
    item = emitter.item(value)
    if isinstance(item, (bool, int, float)):
        return emitter.position(constant_tensor(torch.tensor(item)))
    if isinstance(item, ScalarValue):
        text = f"{node.target} needs a tensor, but gets a number computed at run time"
        raise unsupported(node, text, "pass torch.tensor(number) in the model")
    return emitter.position(item)


def _scalar_position(
    emitter: GraphEmitter, kind: Any, value: Any, name: str = ""
) -> int:
    """Return the position of an argument that is no tensor and no list.

    ``kind`` is its type in the schema, and ``name`` its name. An integer is converted
    to the type.
    """
    item = emitter.item(value)
    if name == "non_blocking":
        # kernels run one after the other, and refuse True
        return emitter.assembler.values.constant(False)
    if isinstance(item, torch.dtype):
        return emitter.assembler.values.constant(CODES[item])
    if isinstance(item, (torch.memory_format, torch.layout, torch.device)):
        # Every tensor of a file is dense, in C order, and on the host.
        return emitter.assembler.values.constant(None)
    if isinstance(kind, torch.FloatType) and isinstance(item, int):
        return emitter.assembler.values.constant(float(item))
    if isinstance(kind, torch.BoolType) and isinstance(item, int):
        return emitter.assembler.values.constant(bool(item))
    return emitter.position(item)


def copy_tensor(
    emitter: GraphEmitter, source: TensorValue, target: TensorValue
) -> None:
    """Append a call of aten::clone.out that copies ``source`` to ``target``.

    Raises Unsupported if the kernel set lacks that kernel.
    """
    kernel = find_kernel(aten.clone.default, emitter.context.kernels)
    if kernel is None:
        text = (
            f"{emitter.context.kernels.runtime} has no kernel for aten.clone, which a"
            " program needs to copy tensors"
        )
        hint = "name a kernel set that has it (option kernels)"
        # no node of the graph asks for the copy; an error needs one
        first_node = next(iter(emitter.module.graph.nodes))
        raise unsupported(first_node, text, hint)
    # all arguments but ``self`` are optional: None
    args = [
        emitter.position(source if argument.name == "self" else None)
        for argument in kernel.inputs
    ]
    # ExecuTorch passes the target twice: as the argument ``out``, and as the result
    out = emitter.position(target)
    emitter.assembler.add_kernel_call(kernel.name, kernel.overload, [*args, out, out])
