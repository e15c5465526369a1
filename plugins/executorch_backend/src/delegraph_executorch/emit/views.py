"""Operators whose result has the elements of their argument in the same order: they
need neither memory nor a kernel.

A tensor of a program file is dense and in C order, so what is a view to PyTorch is one
here only if that order stays. Views of constants are constants, also those that reorder
elements: the file has the result.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from ..memory.storage import Home
from ..program.tables import IntList
from .body import Body, Item
from .values import TensorValue, constant_tensor

aten = torch.ops.aten
SAME_ORDER = frozenset(
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
MAY_REORDER = frozenset(
    {aten.permute.default, aten.transpose.int, aten.t.default, aten.expand.default}
)
"""Operators that keep the order of elements for some shapes."""
OF_CONSTANTS = SAME_ORDER | MAY_REORDER - {aten.expand.default}
"""Operators that are computed here if their argument is a constant: the result is as
large as the argument.
"""
EMPTY_VIEW = "executorch_prim::et_view.default"
_SIZED = frozenset(
    {
        aten.view.default,
        aten._unsafe_view.default,
        aten.reshape.default,
        aten.view_copy.default,
    }
)


def emit_view(body: Body, node: Node) -> Item:
    """What a node is without computing anything; None if it has to be computed."""
    if node.target not in SAME_ORDER | MAY_REORDER or not isinstance(
        node.args[0], Node
    ):
        return None
    source = body.tensor(node.args[0])
    if (
        source.constant is not None
        and not source.name
        and node.target in OF_CONSTANTS
        and _all_known(node)
    ):
        return constant_tensor(_computed(node, source.constant))
    if (node, 0) in body.targets or source.storage.home in (Home.CONSTANT, Home.GIVEN):
        return None
    if source.varies:
        return _dynamic_view(body, node, source) if node.target in _SIZED else None
    val = node.meta["val"]
    if not _keeps_order(node, source, val):
        return None
    return TensorValue(val.dtype, tuple(int(s) for s in val.shape), source.storage)


def _all_known(node: Node) -> bool:
    return not any(
        isinstance(a, Node)
        for a in torch.fx.node.map_arg(node.all_input_nodes[1:], lambda n: n)
    )


def _computed(node: Node, constant: torch.Tensor) -> torch.Tensor:
    target: Any = node.target
    plain = {aten.clone.default, aten.lift_fresh_copy.default}
    if target in plain:
        return constant
    with torch.no_grad():
        result: torch.Tensor = (aten.reshape.default if target in _SIZED else target)(
            constant, *node.args[1:]
        )
    return result


def _keeps_order(node: Node, source: TensorValue, val: torch.Tensor) -> bool:
    if val.dtype != source.dtype or math.prod(int(s) for s in val.shape) != math.prod(
        source.sizes
    ):
        return False
    if node.target in SAME_ORDER or math.prod(source.sizes) == 0:
        return True
    numbers = torch.arange(len(source.sizes)).tolist()
    target: Any = node.target
    if target is aten.expand.default:
        return True
    moved = target(torch.empty(source.sizes, device="meta"), *node.args[1:])
    dense = torch.empty(source.sizes, device="meta").stride()
    order = [d for d in numbers if moved.shape[d] > 1]
    return [moved.stride(d) for d in order] == [
        s for s, n in zip(dense, source.sizes, strict=True) if n > 1
    ]


def _dynamic_view(body: Body, node: Node, source: TensorValue) -> Item:
    """A view whose sizes the runtime computes; it shares the memory of its argument all
    the same.
    """
    if EMPTY_VIEW not in body.context.kernels:
        return None
    made = body.new_value(node.meta["val"], node)
    assert isinstance(made, TensorValue)
    made.storage = source.storage
    sizes = [body.position(body.item(s)) for s in node.args[1]]  # type: ignore[union-attr]
    args = [
        body.position(source),
        body.assembler.values.references(IntList, sizes),
        body.position(made),
    ]
    name, _, overload = EMPTY_VIEW.rpartition(".")
    body.assembler.kernel(name, overload, args)
    return made
