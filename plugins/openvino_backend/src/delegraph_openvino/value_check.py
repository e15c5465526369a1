"""Parts of support checks about values: ``ValueCheck``, for engines whose integers have
32 bits; quantized values.
"""

from __future__ import annotations

from collections.abc import Collection
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
"""Where an operator takes indices."""
_CASTS = ("_to_copy", "to", "type_as")
_MOVES = frozenset(
    "view reshape flatten _unsafe_view permute transpose t squeeze unsqueeze expand"
    " slice select cat stack unbind clone split split_with_sizes alias lift_fresh_copy"
    " detach gather index index_select embedding flip roll repeat constant_pad_nd where"
    " masked_fill scatter slice_scatter select_scatter tril triu full_like zeros_like"
    " ones_like new_full new_zeros new_ones".split()
)
"""Operators that compute no new integers, whatever their elements are."""


class ValueCheck:
    """A ``why_not`` that keeps what an engine has no values for on the host, and
    integers that it computes otherwise.

    The engine has tensors of ``dtypes``, whose sizes may depend on inputs, but not on
    elements of tensors; and sizes as integers. Its int64 has 32 bits, and integers stop
    at the ends of their range, where torch's wrap. So int64 is taken as an index, and
    as a place that is found among floats: both fit, or are wrong in eager as well.
    ``engine``: its name, for the reasons.
    """

    def __init__(self, engine: str, dtypes: Collection[torch.dtype]) -> None:
        self.engine = engine
        self.dtypes = dtypes

    def __call__(self, node: Node) -> str | None:
        """Why ``node`` stays on the host; None if its values are no reason."""
        if (why := why_subgraph(node, self.engine)) is not None:
            return why
        for value in (*node.all_input_nodes, node):
            for val in _leaves(value):
                if (why := self._why_no_value(value, val)) is not None:
                    return why
        if is_random(node):
            return "it draws random numbers, which are the host's"
        return self._why_not_integers(node)

    def _why_no_value(self, node: Node, val: Any) -> str | None:
        """Why the engine has no value like ``val``, one of those of ``node``."""
        if not isinstance(val, torch.Tensor):
            if isinstance(val, (torch.SymInt, int)) and not isinstance(val, bool):
                return None
            return (
                f"{node.name} is {_kind(val)}, and {self.engine} computes tensors and"
                " sizes"
            )
        if val.dtype not in self.dtypes:
            given: dict[str, Any] = (
                {"unless": torch.float32} if val.dtype is torch.float64 else {}
            )
            text = f"{node.name} is {val.dtype}, which {self.engine} does not compute"
            return Reason(text, cause=str(val.dtype), of=node, **given)
        if any(
            not isinstance(size, int) for size in val.shape
        ) and free_unbacked_symbols(val):
            return (
                f"the size of {node.name} depends on values, which {self.engine} cannot"
                " be given"
            )
        return None

    def _why_not_integers(self, node: Node) -> str | None:
        """Why the engine computes other integers than torch does; None if it does not.

        Quantize and dequantize are left to the backend, which has to know what the
        engine makes of them.
        """
        if getattr(node.target, "namespace", "") == "quantized_decomposed":
            return None
        read = [d for value in node.all_input_nodes for d in _integers(value)]
        made = _integers(node)
        name = getattr(node.target, "__name__", str(node.target)).partition(".")[0]
        if name in _INDEX_AT:
            indices = pytree.tree_leaves(node.args[_INDEX_AT[name]])
            read = [
                d
                for value in node.all_input_nodes
                if value not in indices
                for d in _integers(value)
            ]
        is_cast = name in _CASTS
        of_floats = is_cast and node.all_input_nodes[0].meta["val"].is_floating_point()
        if torch.int64 in read or (torch.int64 in made and of_floats):
            return Reason(f"{self.engine} computes int64 in 32 bits", cause="int64")
        if name in _MOVES:
            return None
        if large := [
            number for number in _literals(node) if not -(2**31) <= number < 2**31
        ]:
            return f"{self.engine} computes in 32 bits, which {large[0]} exceeds"
        if (
            read
            and made
            and not (
                is_cast
                and min(m.itemsize for m in made) >= max(r.itemsize for r in read)
            )
        ):
            text = (
                f"{self.engine} lets integers stop at the ends of their range, where"
                " torch wraps"
            )
            return Reason(text, cause="integers")
        return None


def _kind(val: Any) -> str:
    """Return the words of PyTorch's users for a value that is no tensor and no size."""
    if val is None:
        return "None"
    if isinstance(val, (torch.SymBool, bool)):
        return "a bool"
    if isinstance(val, (torch.SymFloat, float)):
        return "a float"
    return f"a {type(val).__name__}"


def dequantized_parts(node: Node) -> list[Node]:
    """What ``node`` concatenates, if it does and each part is dequantized in this
    program; else nothing.
    """
    if node.target is not torch.ops.aten.cat.default:
        return []
    parts: Any = node.args[0]
    return list(parts) if all(map(is_dequantized, parts)) else []


def is_dequantized(node: Node) -> bool:
    """Whether ``node`` dequantizes a tensor, as quantizers of torch write it."""
    return str(node.target).startswith("quantized_decomposed.dequantize")


def _integers(node: Node) -> list[torch.dtype]:
    """The types of integer tensors among the values of a node."""
    types = [val.dtype for val in _leaves(node) if isinstance(val, torch.Tensor)]
    return [
        dtype
        for dtype in types
        if not dtype.is_floating_point and dtype is not torch.bool
    ]


def _literals(node: Node) -> list[int]:
    """The integers among the arguments of a call, and in lists there: schemas of torch
    nest no deeper.
    """
    arguments = (*node.args, *node.kwargs.values())
    lists = (a if isinstance(a, (list, tuple)) else (a,) for a in arguments)
    return [number for some in lists for number in some if type(number) is int]


def _leaves(node: Node) -> list[Any]:
    """The values of a node. Most have one tensor, and walking a tree takes far longer."""
    val = node.meta.get("val")
    return [val] if isinstance(val, torch.Tensor) else pytree.tree_leaves(val)
