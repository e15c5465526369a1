"""Replaces operators that lowering decomposes, such as glu and einsum, by their parts.

The quantizer does not quantize an operator without a rule. It does quantize the parts,
and the values between them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from ..lowering import has_rule
from ..lowering.interpret.quantized_calls import computes_in_integers
from .calls import is_float

aten = torch.ops.aten
_UNFIT = frozenset(
    {
        torch.Tag.nondeterministic_seeded,
        torch.Tag.data_dependent_output,
        torch.Tag.dynamic_output_shape,
    }
)
"""Tags of operators that draw random numbers or cannot be traced."""
PART_OF = "delegraph_tosa.part_of"
"""Key in the metadata of a part: the operator that it is a part of."""


def is_decomposed(target: Any) -> bool:
    """Return whether an operator has no rule, but is composed of others."""
    if not isinstance(target, OpOverload) or has_rule(target):
        return False
    if target._schema.is_mutable or not _UNFIT.isdisjoint(target.tags):
        return False
    if target in _OWN or target in _decompositions():
        return True
    can_decompose: bool = target._can_decompose()
    return can_decompose


@cache
def _decompositions() -> Mapping[Any, Callable[..., Any]]:
    """Return torch's decompositions of the operators that have no rule."""
    table: Any = torch.export.default_decompositions()
    return {op: step for op, step in table.items() if not has_rule(op)}


def _lerp(self: Tensor, end: Tensor, weight: float) -> Tensor:
    """Return self + weight * (end - self).

    torch's own decomposition makes a tensor of ``weight``, to be exact at both ends.
    """
    return torch.add(self, end - self, alpha=weight)


def _cosine_similarity(
    x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8
) -> Tensor:
    """Return the sum of products of unit vectors.

    torch's own decomposition writes their lengths in place.
    """
    x1, x2 = aten.broadcast_tensors.default([x1, x2])
    unit_vectors = _unit_vectors(x1, dim, eps) * _unit_vectors(x2, dim, eps)
    return torch.sum(unit_vectors, dim)


def _unit_vectors(x: Tensor, dim: int, eps: float) -> Tensor:
    """Return x divided by its lengths along ``dim``, which are at least ``eps``."""
    lengths: Tensor = torch.linalg.vector_norm(x, 2, dim, True)
    return x / lengths.clamp_min(eps)


def _copy(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    """Return ``src`` in the shape of ``self``.

    torch's own decomposition allocates a tensor.
    """
    return src.expand(self.shape)


_OWN: dict[OpOverload, Callable[..., Tensor]] = {
    aten.lerp.Scalar: _lerp,
    aten.cosine_similarity.default: _cosine_similarity,
}
"""Decompositions in place of torch's, which integers cannot compute."""


def _div_mode(self: Tensor, other: Tensor, rounding_mode: str | None) -> Tensor:
    quotient = torch.div(self, other)
    if rounding_mode == "floor":
        return torch.floor(quotient)
    if rounding_mode == "trunc":
        return torch.trunc(quotient)
    return quotient


def _floor_divide(self: Tensor, other: Tensor) -> Tensor:
    return torch.floor(torch.div(self, other))


def _remainder(self: Tensor, other: Tensor) -> Tensor:
    return self - torch.floor(torch.div(self, other)) * other


def _fmod(self: Tensor, other: Tensor) -> Tensor:
    return self - torch.trunc(torch.div(self, other)) * other


_OF_TWO: dict[OpOverload, Callable[..., Tensor]] = {
    aten.div.Tensor_mode: _div_mode,
    aten.divide.Tensor_mode: _div_mode,
    aten.floor_divide.default: _floor_divide,
    aten.remainder.Tensor: _remainder,
    aten.fmod.Tensor: _fmod,
    aten.copy.default: _copy,
}
"""Operators that integers compute in parts if both operands are tensors.

With a number as second operand, the whole operator becomes a TABLE.
"""


def _is_of_two(node: Node) -> bool:
    """Return whether a call of ``_OF_TWO`` has two float tensors."""
    if node.target not in _OF_TWO:
        return False
    return len([operand for operand in node.all_input_nodes if is_float(operand)]) == 2


def write_out(model: GraphModule, chosen: Callable[[Node], bool]) -> None:
    """Replace ``chosen`` calls by their parts, if integers compute all parts."""
    for node in list(model.graph.nodes):
        if node.op != "call_function" or not is_float(node):
            continue
        has_parts = is_decomposed(node.target) or _is_of_two(node)
        if has_parts and chosen(node):
            parts = _parts(node)
            if parts is not None:
                _inline(node, parts)
    model.recompile()


def _parts(call: Node) -> Graph | None:
    """Trace ``call`` to a graph with its operands as placeholders.

    None if a part of it stays in floats.
    """
    leaves, structure = pytree.tree_flatten((call.args, call.kwargs))
    # positions of the operands that are tensors
    positions = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Node)]
    target: Any = call.target
    decomposition = _OWN.get(target) or _OF_TWO.get(target, target)

    def compute(*operands: Any) -> Any:
        """Call the operator, or a decomposition of this module, on other operands."""
        replaced = list(leaves)
        for position, operand in zip(positions, operands, strict=True):
            replaced[position] = operand
        args, kwargs = pytree.tree_unflatten(replaced, structure)
        return decomposition(*args, **kwargs)

    values = [leaves[position].meta.get("val") for position in positions]
    if any(value is None for value in values):
        return None
    try:
        with torch.no_grad():
            trace = make_fx(compute, dict(_decompositions()))
            graph = trace(*values).graph
    except Exception:
        # errors of torch's decompositions; lowering tries the same, and its report has
        # the reason
        return None
    if not all(map(_needs_no_floats, graph.nodes)):
        return None
    return graph


def _needs_no_floats(part: Node) -> bool:
    """Return whether integers compute a part, or it has no float operands."""
    if part.op != "call_function":
        return part.op != "get_attr"
    if isinstance(part.target, OpOverload) and part.target._schema.is_mutable:
        return False
    if computes_in_integers(part.target):
        return True
    return not any(map(is_float, part.all_input_nodes))


def _inline(call: Node, parts: Graph) -> None:
    """Replace ``call`` by ``parts``, which inherit its module and line.

    Only the last part inherits the metadata ``custom``, with the name of the layer.
    """
    graph = call.graph
    leaves = pytree.tree_leaves((call.args, call.kwargs))
    operands = [leaf for leaf in leaves if isinstance(leaf, Node)]
    copies = dict(zip(parts.find_nodes(op="placeholder"), operands, strict=True))
    own = ("custom", "val", "tensor_meta")
    inherited = {key: value for key, value in call.meta.items() if key not in own}
    with graph.inserting_before(call):
        for part in parts.nodes:
            if part.op == "call_function":
                copy = graph.node_copy(part, copies.__getitem__)
                copy.meta = inherited | {"val": part.meta["val"], PART_OF: call.target}
                copies[part] = copy
    (result,) = parts.output_node().all_input_nodes
    last = copies[result]
    if result.op == "call_function" and "custom" in call.meta:
        last.meta["custom"] = call.meta["custom"]
    call.replace_all_uses_with(last)
    graph.erase_node(call)
