"""Calls of operators as calls of kernels, argument by argument as the kernel's schema
says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from delegraph.errors import Unsupported
from delegraph_programs.interpolation_scales import why_factor_undecided
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from ..kernels import Kernel, find_kernel, loses_values, why_not
from ..program.scalar_types import TORCH_NAMES
from ..program.tables import (
    BoolList,
    DoubleList,
    IntList,
    OptionalTensorList,
    TensorList,
)
from .body import Body, Item, Result, unsupported
from .decompose import decompose
from .in_place import KERNEL
from .places import BY_PLACE, by_elements
from .values import ScalarValue, TensorValue, constant_tensor
from .views import emit_view

aten = torch.ops.aten
CODES = {getattr(torch, name): int(code) for code, name in TORCH_NAMES.items()}
"""dtype -> its number in the file."""


def emit_operator(body: Body, node: Node) -> Result:
    """An operator: a view of memory that is there, or the call of the kernel that
    computes it.
    """
    target = node.target
    assert isinstance(target, OpOverload)
    if node in body.in_place.same:
        return body.in_place.same[node]
    if node in body.in_place.writes:
        return _write_in_place(body, node, body.in_place.writes[node])
    if (
        target in BY_PLACE
        and (in_elements := by_elements(node, _arguments(target, node))) is not None
    ):
        return _emit_instead(body, node, *in_elements)
    view = emit_view(body, node)
    return call_kernel(body, node) if view is None else view


def _write_in_place(body: Body, node: Node, buffer: TensorValue) -> TensorValue:
    """Let an ``index_put`` write into the buffer whose new value it computes."""
    given = _arguments(aten.index_put.default, node)
    arguments = aten.index_put.default._schema.arguments
    args = [
        (
            body.position(buffer)
            if a.name == "self"
            else _position(body, node, a, given[a.name])
        )
        for a in arguments
    ]
    body.assembler.kernel(KERNEL, "", [*args, body.position(buffer)])
    return buffer


def call_kernel(body: Body, node: Node) -> Result:
    """Call the kernel that computes a node."""
    if (undecided := why_factor_undecided(node)) is not None:
        raise unsupported(
            node, f"{node.target} has no kernel that is right: {undecided}"
        )
    target = _with_number(node)
    runtime = body.context.kernels.runtime
    kernel = find_kernel(target, body.context.kernels)
    if kernel is None:
        return _emit_decomposed(
            body, node, f"{runtime} has no kernel that computes {node.target}"
        )
    given = _arguments(target, node)
    values = map_arg(given, lambda n: n.meta.get("val"))
    results_of = _listed(node.meta["val"])
    why = why_not(str(kernel), values, results_of)
    # a formula keeps away what its operator's kernel computes wrong
    if why is None and target not in body.decomposing:
        why = loses_values(str(kernel), values, results_of)
    if why is not None:
        text = (
            f"the kernel {kernel} of {runtime} does not compute this {node.target}:"
            f" {why}"
        )
        return _emit_decomposed(body, node, text)
    args = [_position(body, node, a, given[a.name]) for a in kernel.inputs]
    results = body.new_results(node)
    _append(body, kernel, args, results, node)
    return list(results) if isinstance(node.meta["val"], (tuple, list)) else results[0]


def _listed(val: Any) -> list[Any]:
    return list(val) if isinstance(val, (tuple, list)) else [val]


_OF_EXPERTS = (
    "aten.histc.default",
    "aten._grouped_mm.default",
    "transformers.grouped_mm_fallback.default",
)
"""What transformers calls for a mixture of experts, unless it is told to do otherwise.
"""
_HINTS = {
    **dict.fromkeys(
        _OF_EXPERTS,
        "experts of transformers do without:"
        ' model.set_experts_implementation("batched_mm") before the export',
    ),
    "aten._int_mm.default": (
        "torchao's Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int8,"
        " weight_granularity=PerAxis(0)) does the same without, and xnnpack takes it"
    ),
}
"""What does without an operator for which no runtime has a kernel."""


def _emit_decomposed(body: Body, node: Node, text: str) -> Result:
    """Emit what a node that no kernel computes consists of."""
    hint = (
        "use another operator there, give it to a backend, or name a kernel set that"
        " has one (option kernels)"
    )
    hint = _HINTS.get(str(node.target), hint)
    try:
        module, inputs = (
            decompose(node) if node.target not in body.decomposing else (None, [])
        )
        if module is not None:
            return _emit_instead(body, node, module, inputs)
    except Unsupported as e:
        raise unsupported(
            node,
            f"{text}, and it cannot be put together from others: {e.message}",
            hint,
        ) from e
    raise unsupported(node, text, hint)


def _emit_instead(
    body: Body, node: Node, module: GraphModule, inputs: Sequence[Node]
) -> Result:
    """Emit a graph in place of a node; the graph reads what ``inputs`` became."""
    nested = body.nested(module, [body.item(i) for i in inputs])
    nested.decomposing |= {node.target}
    nested.emit()
    items = [nested.item(r) for r in nested.results]
    return items if isinstance(node.meta["val"], (tuple, list)) else items[0]


def _append(
    body: Body, kernel: Kernel, args: Sequence[int], results: Sequence[Item], node: Node
) -> None:
    """Kernels get their results as arguments, and again as what they return, several of
    them as a list.
    """
    positions = [body.position(r) for r in results]
    listed = "List" in str(kernel.outputs[0].real_type)
    outs = (
        [body.assembler.values.references(TensorList, positions)]
        if listed
        else positions
    )
    several = listed or len(positions) > 1
    returned = (
        body.assembler.values.references(TensorList, positions)
        if several
        else positions[0]
    )
    body.assembler.kernel(kernel.name, kernel.overload, [*args, *outs, returned])


def _with_number(node: Node) -> OpOverload:
    """The overload for numbers, where a number stands for a tensor: ``add(x, 1)`` is an
    ``add.Tensor``, too.
    """
    target = node.target
    assert isinstance(target, OpOverload)
    given = _arguments(target, node)
    other = given.get("other")
    number = isinstance(other, (int, float)) or (
        isinstance(other, Node) and not _is_tensor(other)
    )
    twin = {"Tensor": "Scalar", "Tensor_mode": "Scalar_mode"}.get(target._overloadname)
    if number and twin is not None and twin in target.overloadpacket.overloads():
        return getattr(target.overloadpacket, twin)  # type: ignore[no-any-return]
    return target


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _arguments(target: OpOverload, node: Node) -> dict[str, Any]:
    """Arguments by name, defaults filled in."""
    given = dict(node.kwargs)
    for schema, value in zip(target._schema.arguments, node.args, strict=False):
        given[schema.name] = value
    for schema in target._schema.arguments:
        if schema.name not in given:
            given[schema.name] = schema.default_value
    return given


def _position(body: Body, node: Node, schema: Any, value: Any) -> int:
    """The position of an argument's value, of the type that the schema says."""
    kind = schema.type
    if isinstance(kind, torch.OptionalType):
        if value is None:
            return body.assembler.values.constant(None)
        kind = kind.getElementType()
    if isinstance(kind, torch.ListType):
        return _list_position(body, kind.getElementType(), value, schema)
    if isinstance(kind, torch.TensorType):
        return _tensor_position(body, node, value)
    return _scalar_position(body, kind, value, schema.name)


def _list_position(body: Body, kind: Any, value: Any, schema: Any) -> int:
    values = body.assembler.values
    listed = (
        list(value) if isinstance(value, (tuple, list)) else [value] * (schema.N or 1)
    )
    if isinstance(kind, torch.OptionalType):
        return values.references(
            OptionalTensorList, [body.position(body.item(v)) for v in listed]
        )
    if isinstance(kind, torch.TensorType):
        return values.references(
            TensorList, [body.position(body.item(v)) for v in listed]
        )
    if isinstance(kind, torch.FloatType):
        return values.numbers(DoubleList, [float(v) for v in listed])
    if isinstance(kind, torch.BoolType):
        return values.numbers(BoolList, [bool(v) for v in listed])
    return values.references(IntList, [_scalar_position(body, kind, v) for v in listed])


def _tensor_position(body: Body, node: Node, value: Any) -> int:
    item = body.item(value)
    if isinstance(item, (bool, int, float)):  # a number where the kernel takes a tensor
        return body.position(constant_tensor(torch.tensor(item)))
    if isinstance(item, ScalarValue):
        raise unsupported(
            node,
            f"{node.target} takes a tensor, and is given a number that is known at run"
            " time only",
        )
    return body.position(item)


def _scalar_position(body: Body, kind: Any, value: Any, name: str = "") -> int:
    item = body.item(value)
    if name == "non_blocking":  # kernels run one after the other
        return body.assembler.values.constant(False)
    if isinstance(item, torch.dtype):
        return body.assembler.values.constant(CODES[item])
    if isinstance(item, (torch.memory_format, torch.layout, torch.device)):
        return body.assembler.values.constant(None)  # every tensor is dense, in C order
    if isinstance(kind, torch.FloatType) and isinstance(item, int):
        return body.assembler.values.constant(float(item))
    if isinstance(kind, torch.BoolType) and isinstance(item, int):
        return body.assembler.values.constant(bool(item))
    return body.position(item)


def copy_tensor(body: Body, source: TensorValue, target: TensorValue) -> None:
    """Copy a tensor into another one's memory."""
    _append_named(body, aten.clone.default, {"self": source}, target)


def _append_named(
    body: Body, target: OpOverload, given: dict[str, Any], result: TensorValue
) -> None:
    kernel = find_kernel(target, body.context.kernels)
    if kernel is None:
        text = (
            f"the kernels of {body.context.kernels.runtime} lack {target}, which a"
            " program needs to copy tensors"
        )
        raise unsupported(next(iter(body.module.graph.nodes)), text)
    args = [body.position(given.get(a.name)) for a in kernel.inputs]
    position = body.position(result)
    body.assembler.kernel(kernel.name, kernel.overload, [*args, position, position])
