"""Checks of values for engines with 32-bit integers, and of quantized values."""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from delegraph.partitioner import Reason
from delegraph_engines import why_subgraph
from delegraph_programs import is_random
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from torch.fx import Node

_INDEX_AT = {
    "embedding": 1,
    "gather": 2,
    "index_select": 2,
    "index": 1,
    "index_put": 1,
    "scatter": 2,
}
"""Operator -> the position of its argument with indices."""
_CASTS = ("_to_copy", "to", "type_as")
_MOVES = frozenset(
    "view reshape flatten _unsafe_view permute transpose t squeeze unsqueeze expand"
    " slice select cat stack unbind clone split split_with_sizes alias lift_fresh_copy"
    " detach gather index index_select embedding flip roll repeat constant_pad_nd where"
    " masked_fill scatter slice_scatter select_scatter tril triu full_like zeros_like"
    " ones_like new_full new_zeros new_ones".split()
)
"""Operators whose results contain only elements of their operands, or constants."""


class ValueCheck:
    """A check (``why_not``) of the types and sizes that a call reads and computes.

    The engine has tensors of ``dtypes``, and sizes as integers. Sizes of tensors may
    depend on inputs, but not on elements of tensors. Its int64 has 32 bits, and its
    integers saturate, where torch's wrap. So int64 is accepted only for indices, and
    for positions such as the result of an argmax. These fit 32 bits, or are wrong in
    eager as well. ``engine``: its name, for the reasons.
    """

    def __init__(self, engine: str, dtypes: Collection[torch.dtype]) -> None:
        self.engine = engine
        self.dtypes = dtypes

    def __call__(self, node: Node) -> str | None:
        """Return why the values of ``node`` keep it on the host, or None."""
        why = why_subgraph(node, self.engine)
        if why is not None:
            return why
        for value in (*node.all_input_nodes, node):
            for val in _recorded(value):
                why = self._why_no_value(value, val)
                if why is not None:
                    return why
        if is_random(node):
            return "it draws random numbers, which only the host does"
        return self._why_not_integers(node)

    def _why_no_value(self, node: Node, val: Any) -> str | None:
        """Return why the engine cannot represent ``val``, a value of ``node``, or None."""
        if not isinstance(val, torch.Tensor):
            if isinstance(val, (torch.SymInt, int)) and not isinstance(val, bool):
                return None
            return (
                f"{node.name} is {_kind(val)}, and {self.engine} computes only tensors"
                " and sizes"
            )
        if val.dtype not in self.dtypes:
            text = f"{node.name} is {val.dtype}, which {self.engine} does not compute"
            if val.dtype is torch.float64:
                return Reason(text, cause=str(val.dtype), of=node, unless=torch.float32)
            return Reason(text, cause=str(val.dtype), of=node)
        is_dynamic = not all(isinstance(size, int) for size in val.shape)
        if is_dynamic and free_unbacked_symbols(val):
            return (
                f"the size of {node.name} depends on elements of tensors, which"
                f" {self.engine} does not support"
            )
        return None

    def _why_not_integers(self, node: Node) -> str | None:
        """Return why the engine computes other integers than torch does, or None.

        Quantize and dequantize operators are left to the backend, which knows how the
        engine compiles them.
        """
        if getattr(node.target, "namespace", "") == "quantized_decomposed":
            return None
        name = getattr(node.target, "__name__", str(node.target)).partition(".")[0]
        operands = node.all_input_nodes
        if name in _INDEX_AT:
            indices = pytree.tree_leaves(node.args[_INDEX_AT[name]])
            operands = [value for value in operands if value not in indices]
        read = list(chain.from_iterable(map(_integer_types, operands)))
        made = _integer_types(node)
        is_cast = name in _CASTS
        of_floats = is_cast and operands[0].meta["val"].is_floating_point()
        if torch.int64 in read or (torch.int64 in made and of_floats):
            return Reason(f"{self.engine} computes int64 in 32 bits", cause="int64")
        if name in _MOVES:
            return None
        for number in _literals(node):
            if not -(2**31) <= number < 2**31:
                return f"{self.engine} computes in 32 bits, which {number} exceeds"
        if not read or not made:
            return None
        smallest_made = min(dtype.itemsize for dtype in made)
        largest_read = max(dtype.itemsize for dtype in read)
        if is_cast and smallest_made >= largest_read:
            return None
        text = (
            f"in {self.engine}, integers saturate at the ends of their range; in torch"
            " they wrap"
        )
        return Reason(text, cause="integers")


def _kind(val: Any) -> str:
    """Return a name for a value that is neither a tensor nor a size."""
    if val is None:
        return "None"
    if isinstance(val, (torch.SymBool, bool)):
        return "a bool"
    if isinstance(val, (torch.SymFloat, float)):
        return "a float"
    return f"a {type(val).__name__}"


def dequantized_parts(node: Node) -> list[Node]:
    """Return the operands of a concatenation if all are dequantized, else nothing."""
    if node.target is not torch.ops.aten.cat.default:
        return []
    parts: Any = node.args[0]
    return list(parts) if all(map(is_dequantized, parts)) else []


def is_dequantized(node: Node) -> bool:
    """Return whether ``node`` dequantizes a tensor in the form of torch's quantizers."""
    return str(node.target).startswith("quantized_decomposed.dequantize")


def _integer_types(node: Node) -> list[torch.dtype]:
    """Return the types of integer tensors among the values of a node."""
    types = [val.dtype for val in _recorded(node) if isinstance(val, torch.Tensor)]
    return [
        dtype
        for dtype in types
        if not dtype.is_floating_point and dtype is not torch.bool
    ]


def _literals(node: Node) -> list[int]:
    """Return the integers among the arguments of a call, and in lists there.

    Schemas of torch nest lists no deeper.
    """
    arguments = (*node.args, *node.kwargs.values())
    numbers: list[Any] = []
    for argument in arguments:
        if isinstance(argument, (list, tuple)):
            numbers += argument
        else:
            numbers.append(argument)
    return [number for number in numbers if type(number) is int]


def _recorded(node: Node) -> list[Any]:
    """Return the recorded values of a node."""
    val = node.meta.get("val")
    # walking a tree takes far longer
    return [val] if isinstance(val, torch.Tensor) else pytree.tree_leaves(val)
