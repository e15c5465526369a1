"""Emit views: operators that need neither memory nor a kernel.

A tensor of a program file is dense and in C order. So a view of PyTorch is a view in
the file only if its elements keep their order. A view of a constant is computed now, and
stored as a constant. It may reorder elements.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from ..program.pte_tables import IntList
from .graph_emitter import GraphEmitter, Item
from .method_values import TensorValue, constant_tensor

aten = torch.ops.aten
_SAME_ORDER = frozenset(
    {
        aten.view.default,
        aten._unsafe_view.default,
        aten.reshape.default,
        aten.view_copy.default,
        aten.unsqueeze.default,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.flatten.using_ints,
        aten.unflatten.int,
        aten.alias.default,
        aten.detach.default,
        aten.lift_fresh_copy.default,
        aten.clone.default,
    }
)
"""Operators that never reorder elements."""
_MAY_REORDER = frozenset(
    {aten.permute.default, aten.transpose.int, aten.t.default, aten.expand.default}
)
"""Operators that reorder elements for some shapes."""
_COMPUTED_IF_CONSTANT = _SAME_ORDER | _MAY_REORDER - {aten.expand.default}
"""Operators that are computed now for a constant, since their result is no larger."""
_VIEW_KERNEL = "executorch_prim::et_view.default"
"""The runtime's kernel that sets the sizes of a view; it moves no elements."""
_SIZED = frozenset(
    {
        aten.view.default,
        aten._unsafe_view.default,
        aten.reshape.default,
        aten.view_copy.default,
    }
)
"""Operators whose second argument is the list of sizes of the view."""


def emit_view(emitter: GraphEmitter, node: Node) -> Item:
    """Return the value of a view; None if a kernel has to compute it."""
    argument = node.args[0]
    if node.target not in _SAME_ORDER | _MAY_REORDER or not isinstance(argument, Node):
        return None
    source = emitter.tensor(argument)
    has_constant_sizes = len(node.all_input_nodes) == 1
    if (
        source.constant is not None
        and not source.name
        and node.target in _COMPUTED_IF_CONSTANT
        and has_constant_sizes
    ):
        return constant_tensor(_computed(node, source.constant))
    if (node, 0) in emitter.preset_results or not source.storage.is_planned:
        return None
    if source.varies:
        return (
            _emit_dynamic_view(emitter, node, source) if node.target in _SIZED else None
        )
    val = node.meta["val"]
    if not _keeps_order(node, source, val):
        return None
    return TensorValue(val.dtype, tuple(int(s) for s in val.shape), source.storage)


def _computed(node: Node, constant: torch.Tensor) -> torch.Tensor:
    """Return a view of a constant as a new constant."""
    target: Any = node.target
    if target in (aten.clone.default, aten.lift_fresh_copy.default):
        return constant
    if target in _SIZED:
        # Unlike view, reshape takes constants that are not contiguous.
        target = aten.reshape.default
    with torch.no_grad():
        result: torch.Tensor = target(constant, *node.args[1:])
    return result


def _keeps_order(node: Node, source: TensorValue, val: torch.Tensor) -> bool:
    """Return whether a view has the elements of ``source`` in the same order.

    ``val`` is the view as export recorded it.
    """
    count = math.prod(source.sizes)
    if val.dtype != source.dtype or math.prod(int(s) for s in val.shape) != count:
        return False
    if node.target in _SAME_ORDER or count == 0:
        return True
    target: Any = node.target
    if target is aten.expand.default:
        # The number of elements is the same, so nothing is repeated.
        return True
    # The order is the same if only dimensions of size 1 move: their strides don't count.
    dense = torch.empty(source.sizes, device="meta")
    moved = target(dense, *node.args[1:])
    return _strides_of_long_dims(moved) == _strides_of_long_dims(dense)


def _strides_of_long_dims(tensor: torch.Tensor) -> list[int]:
    """Return the strides of the dimensions with more than one element."""
    return [
        stride
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        if size > 1
    ]


def _emit_dynamic_view(emitter: GraphEmitter, node: Node, source: TensorValue) -> Item:
    """Emit a call of ``_VIEW_KERNEL`` for a view with sizes known at run time only.

    Return the view, which has the memory of ``source``. Return None if the runtime
    lacks the kernel.
    """
    if _VIEW_KERNEL not in emitter.context.kernels:
        return None
    view = emitter.new_value(node.meta["val"], node)
    assert isinstance(view, TensorValue)
    view.storage = source.storage
    # all operators in ``_SIZED`` have the sizes as their second argument
    sizes: Any = node.args[1]
    positions_of_sizes = [emitter.position(emitter.item(size)) for size in sizes]
    args = [
        emitter.position(source),
        emitter.assembler.values.references(IntList, positions_of_sizes),
        emitter.position(view),
    ]
    name, _, overload = _VIEW_KERNEL.rpartition(".")
    emitter.assembler.add_kernel_call(name, overload, args)
    return view
