"""Operators that no kernel computes, as graphs of simpler ones: PyTorch's own decompositions."""

from __future__ import annotations

from typing import Any

import torch
from delegraph.errors import Unsupported
from delegraph.source import source_of
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree

from ..kernels import kernel_name

aten = torch.ops.aten
_COMPOSITE = "CompositeImplicitAutograd"


def decompose(node: Node) -> tuple[GraphModule | None, list[Node]]:
    """(graph, nodes that are its inputs) of what a node computes; None if PyTorch has no decomposition of it.

    Raises Unsupported if the decomposition does not work for these arguments.
    """
    function = _decomposition(node.target)
    if function is None:
        return None, []
    leaves, structure = pytree.tree_flatten((node.args, node.kwargs))
    inputs = [leaf for leaf in leaves if isinstance(leaf, Node)]

    def call(*given: Any) -> Any:
        values = iter(given)
        args, kwargs = pytree.tree_unflatten([next(values) if isinstance(v, Node) else v for v in leaves], structure)
        result = function(*args, **kwargs)
        if result is NotImplemented:
            raise NotImplementedError("it does not know arguments of these types")
        return result

    vals = [n.meta["val"] for n in inputs]
    known = [*vals, *pytree.tree_leaves(node.meta["val"])]
    mode = next((v.fake_mode for v in known if isinstance(v, FakeTensor)), None)
    if mode is None:
        return None, []
    try:
        with mode, torch.no_grad():
            return make_fx(call)(*vals), inputs
    except (NotImplementedError, RecursionError, RuntimeError, GuardOnDataDependentSymNode) as e:
        text = f"PyTorch's decomposition of {node.target} fails here: {str(e).splitlines()[0] if str(e) else repr(e)}"
        raise Unsupported("unsupported", text, node, source_of(node)) from e


def _remainder(self: Any, other: Any) -> torch.Tensor:
    """Of integers: the rest of the division, moved to the divisor's side of zero."""
    rest = aten.fmod.Tensor(self, other) if isinstance(other, torch.Tensor) else aten.fmod.Scalar(self, other)
    wrong = (rest != 0) & ((rest < 0) != (other < 0))
    return torch.where(wrong, rest + other, rest)


def _promoted(target: Any) -> Any:
    """The same with the tensor cast first, by the overload that is not being decomposed."""
    packet = target.overloadpacket
    twin = packet.Scalar if target is packet.Tensor else packet.Tensor

    def call(self: torch.Tensor, other: Any, alpha: Any = 1) -> Any:
        cast = self.to(torch.result_type(self, other))
        return twin(cast, other, alpha) if twin is packet.Scalar else twin(cast, other, alpha=alpha)

    return call


_OWN: dict[Any, Any] = {
    aten.remainder.Scalar: _remainder,
    aten.remainder.Tensor: _remainder,
    **{target: _promoted(target) for p in (aten.add, aten.sub) for target in (p.Scalar, p.Tensor)},
}
"""For what kernels are known to get wrong; PyTorch decomposes none of these."""


def _decomposition(target: Any) -> Any:
    if not isinstance(target, OpOverload):
        return None
    if target in _OWN:
        return _OWN[target]
    name = kernel_name(target._schema.name, target._schema.overload_name)
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(name, _COMPOSITE)
    return decomposition_table.get(target) or (target.decompose if composite else None)
