"""Which calls OpenVINO takes: those that its frontend converts to the type and shape that the program records."""

from __future__ import annotations

from typing import Any

import torch
from delegraph.partitioner import Asking, CapabilityPartitioner, Reason
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from .frontend import KNOWN_AS, NO_RULE, TYPES, Draft, dequantized_parts, is_dequantized
from .options import Options
from .quantized import RULES

INDEX_AT = {"embedding": 1, "gather": 2, "index_select": 2, "index": 1, "index_put": 1, "scatter": 2}
"""Where an operator takes indices."""
COMPARES = ("eq", "ne", "lt", "le", "gt", "ge")
CASTS = ("_to_copy", "to", "type_as")
MOVES = frozenset(
    "view reshape _unsafe_view permute transpose t squeeze unsqueeze expand slice select cat stack unbind clone split "
    "split_with_sizes alias lift_fresh_copy detach gather index index_select embedding flip roll repeat "
    "constant_pad_nd where masked_fill scatter slice_scatter select_scatter tril triu full_like zeros_like ones_like "
    "new_full new_zeros new_ones".split()
)
"""Operators that compute no new integers: all that is taken on integers for integer results."""
ASKED = Asking(lambda program: Draft(program).convert())
"""The frontend's answers: it takes a millisecond or more for a call."""
_WITHOUT_RULE: set[Any] = set()
"""Operators for which the frontend has no rule, whatever the types and shapes, so that it is asked once about each."""


class OpenVINOPartitioner(CapabilityPartitioner):
    """``device``, ``precision`` and ``properties`` are described in ``plugin``."""

    def __init__(self, device: str = "CPU", precision: str = "f32", properties: str | None = None) -> None:
        options = Options(device, precision, properties or "")
        super().__init__(why_not, "OpenVINOBackend", options.to_compile_specs())


def why_not(node: Node) -> str | None:
    """Why OpenVINO does not take this call; None if it does."""
    for value in (*node.all_input_nodes, node):
        reason = _why_no_value(value)
        if reason is not None:
            return reason
    if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
        return "it draws random numbers, which are the host's"
    if _name(node) in ("group_norm", "native_group_norm"):
        return "OpenVINO's compiler crashes where it is multiplied by a tensor"
    if str(node.target) in RULES:
        scales = [value for value in node.all_input_nodes[1:] if value.op == "call_function"]
        return f"OpenVINO has fixed scales, and {scales[0].name} is computed" if scales else None
    if _name(node) in COMPARES and any(map(is_dequantized, node.all_input_nodes)):
        return "OpenVINO computes a dequantized 0 as a number that is nearly 0, which a comparison tells apart"
    parts = dequantized_parts(node)
    if parts and ("channel" in str(parts[0].target) or len({part.args[1:] for part in parts}) > 1):
        return "OpenVINO concatenates quantized tensors right if they have one scale and one zero point"
    reason = _why_not_integers(node)
    if reason is not None:
        return reason
    answer = NO_RULE if node.target in _WITHOUT_RULE else ASKED(node)
    if answer == NO_RULE and node.target not in KNOWN_AS:
        _WITHOUT_RULE.add(node.target)
    return answer


def _why_no_value(value: Node) -> str | None:
    """Why OpenVINO has no such value."""
    for val in _leaves(value):
        if isinstance(val, torch.Tensor) and val.dtype not in TYPES:
            given: dict[str, Any] = {"unless": torch.float32} if val.dtype is torch.float64 else {}
            text = f"{value.name} is {val.dtype}, which OpenVINO does not compute"
            return Reason(text, cause=str(val.dtype), of=value, **given)
        varies = isinstance(val, torch.Tensor) and any(not isinstance(size, int) for size in val.shape)
        if varies and free_unbacked_symbols(val):
            return f"the size of {value.name} depends on values, and OpenVINO's CPU crashes where that is 0"
        if not isinstance(val, (torch.Tensor, torch.SymInt, int)) or isinstance(val, bool):
            return f"{value.name} is a {type(val).__name__}, and OpenVINO computes tensors and sizes"
    return None


def _name(node: Node) -> str:
    """What the operator is called, without its overload."""
    return getattr(node.target, "__name__", str(node.target)).partition(".")[0]


def _why_not_integers(node: Node) -> str | None:
    """Why a call is not taken on integers: OpenVINO's CPU has int32 and floats for them, and stops at their ends.

    int64 is taken as an index, and as a place that is found among floats: both fit, or are wrong in eager as well.
    """
    name = _name(node)
    indices = pytree.tree_leaves(node.args[INDEX_AT[name]]) if name in INDEX_AT else []
    values = [v for v in node.all_input_nodes if v not in indices]
    read, made = [d for v in values for d in _integers(v)], _integers(node)
    if torch.int64 in read or (torch.int64 in made and name in CASTS and values[0].meta["val"].is_floating_point()):
        return Reason("OpenVINO computes int64 in 32 bits", cause="int64")
    if name in MOVES:
        return None
    literals = [a for a in pytree.tree_leaves((node.args, node.kwargs)) if type(a) is int and not -(2**31) <= a < 2**31]
    if literals:
        return f"OpenVINO computes in 32 bits, which {literals[0]} exceeds"
    if read and made and not (name in CASTS and min(m.itemsize for m in made) >= max(r.itemsize for r in read)):
        return Reason("OpenVINO lets integers stop at the ends of their range, where torch wraps", cause="integers")
    return None


def _integers(node: Node) -> list[torch.dtype]:
    """The types of integer tensors among the values of a node."""
    vals = [v for v in _leaves(node) if isinstance(v, torch.Tensor)]
    return [v.dtype for v in vals if not v.dtype.is_floating_point and v.dtype is not torch.bool]


def _leaves(node: Node) -> list[Any]:
    """The values of a node."""
    val = node.meta.get("val")
    return [val] if isinstance(val, torch.Tensor) else pytree.tree_leaves(val)
