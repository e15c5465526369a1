"""Operators that no kernel computes, as graphs of simpler ones: PyTorch's own decompositions."""

from __future__ import annotations

from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from ..kernels import kernel_name

_COMPOSITE = "CompositeImplicitAutograd"


def decompose(node: Node) -> tuple[GraphModule, list[Node]] | None:
    """(graph, nodes that are its inputs) of what a node computes; None if PyTorch has no decomposition of it."""
    function = _decomposition(node.target)
    if function is None:
        return None
    leaves, structure = pytree.tree_flatten((node.args, node.kwargs))
    inputs = [leaf for leaf in leaves if isinstance(leaf, Node)]

    def call(*given: Any) -> Any:
        values = iter(given)
        args, kwargs = pytree.tree_unflatten([next(values) if isinstance(v, Node) else v for v in leaves], structure)
        return function(*args, **kwargs)

    vals = [n.meta["val"] for n in inputs]
    mode = next(
        (v.fake_mode for v in [*vals, *pytree.tree_leaves(node.meta["val"])] if isinstance(v, FakeTensor)), None
    )
    if mode is None:
        return None
    with mode, torch.no_grad():
        return make_fx(call)(*vals), inputs


def _decomposition(target: Any) -> Any:
    if not isinstance(target, OpOverload):
        return None
    name = kernel_name(target._schema.name, target._schema.overload_name)
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(name, _COMPOSITE)
    return decomposition_table.get(target) or (target.decompose if composite else None)
