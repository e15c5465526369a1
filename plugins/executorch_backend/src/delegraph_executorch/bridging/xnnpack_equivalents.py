"""Express calls by operators that ExecuTorch's partitioner for XNNPACK takes.

XNNPACK moves values by slices, views and transposes only. A select, a split or an
unsqueeze equals slices and views. If such a call stays on the host, it cuts a delegate
in two. A cut takes as long as two slices (0.7 microseconds), so calls that need more
operators stay on the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from delegraph_engines import quietly
from torch.export import ExportedProgram
from torch.fx import Node

from .edge import calls_of

with quietly():
    from executorch.exir.dialects._ops import ops

edge_aten = ops.edge.aten
_FLOATS = (torch.float32, torch.float16)
MOVED = "delegraph_executorch_moved"
"""Key of a call's meta: the call replaces another one that only moves values."""
_MOST_USED_PARTS = 2
"""A split with more used parts is not replaced: its slices would cost more than the cut."""


def express_by_slices_and_views(program: ExportedProgram) -> None:
    """Replace calls of a program in edge dialect by equal slices and views.

    XNNPACK slices floats of fixed sizes, and views floats with at most one dynamic
    size. Calls on other tensors are not replaced.
    """
    for node in calls_of(program):
        replace = _EQUIVALENTS.get(getattr(node.target, "__name__", ""))
        if replace is not None and _is_of_floats(node.args[0]):
            replace(node)


def _is_of_floats(operand: Any) -> bool:
    """Return whether ``operand`` is a tensor of a type that XNNPACK moves."""
    val = operand.meta.get("val")
    return isinstance(val, torch.Tensor) and val.dtype in _FLOATS


def may_be_viewed(shape: Sequence[int | torch.SymInt]) -> bool:
    """Return whether the result of a view in XNNPACK can have this shape."""
    fixed = _fixed_sizes(shape)
    return 0 not in fixed and len(fixed) >= len(shape) - 1


def _fixed_sizes(shape: Sequence[int | torch.SymInt]) -> list[int]:
    return [size for size in shape if type(size) is int]


def _expand(node: Node) -> None:
    """Replace an expand to the same shape."""
    operand: Any = node.args[0]
    # An expand to dynamic sizes has numbers as inputs, which delegates cannot take.
    if _is_static(node) and node.meta["val"].shape == operand.meta["val"].shape:
        _as_view(node)


def _as_view(node: Node) -> None:
    """Replace a call that only changes the shape."""
    shape = node.meta["val"].shape
    if may_be_viewed(shape):
        operand: Any = node.args[0]
        _replace(node, _view(node, operand, shape))


def _select(node: Node) -> None:
    """Replace a select by a slice of one element and a view."""
    operand: Any = node.args[0]
    dim: Any = node.args[1]
    index: Any = node.args[2]
    if not _may_be_sliced(operand):
        return
    start = index % operand.meta["val"].shape[dim]
    element = _slice(node, operand, dim, start, start + 1)
    _replace(node, _view(node, element, node.meta["val"].shape))


def _split(node: Node) -> None:
    """Replace a split by slices."""
    operand: Any = node.args[0]
    dim: Any = node.args[2] if len(node.args) > 2 else 0
    sizes = [part.shape[dim] for part in node.meta["val"]]
    if not _may_be_sliced(operand) or 0 in sizes or len(node.users) > _MOST_USED_PARTS:
        return
    for item in list(node.users):
        index: Any = item.args[1]
        start = sum(sizes[:index])
        _replace(item, _slice(item, operand, dim, start, start + sizes[index]))
    node.graph.erase_node(node)


def _may_be_sliced(operand: Node) -> bool:
    return _is_static(operand) and 0 not in operand.meta["val"].shape


def _is_static(node: Node) -> bool:
    """Return whether the sizes of a tensor are fixed."""
    shape = node.meta["val"].shape
    return len(_fixed_sizes(shape)) == len(shape)


def _prelu(node: Node) -> None:
    """Compute a prelu of another rank than 4 on a view of rank 4, and view the result."""
    operand: Any = node.args[0]
    shape = operand.meta["val"].shape
    image_shape = shape_for_prelu(shape)
    if len(shape) == 4 or image_shape is None:
        return
    image = _view(node, operand, image_shape)
    result = _call(node, node.target, image, *node.args[1:])
    final = _view(node, result, shape)
    for call in (image, result, final):
        # ``_call`` has set this mark of replaced moves, but a prelu computes.
        del call.meta[MOVED]
    _replace(node, final)


def shape_for_prelu(shape: Sequence[Any]) -> tuple[Any, ...] | None:
    """Return [N, C, H*W, 1] for a tensor [N, C, H, W, ...]; None if there is no view."""
    if len(shape) < 2:
        return None
    image_shape = *shape[:2], math.prod(shape[2:]), 1
    is_view = may_be_viewed(image_shape) and may_be_viewed(shape)
    return image_shape if is_view else None


_EQUIVALENTS: dict[str, Callable[[Node], None]] = {
    "aten.expand_copy.default": _expand,
    "aten.select_copy.int": _select,
    "aten.split_copy.Tensor": _split,
    "aten.split_with_sizes_copy.default": _split,
    **dict.fromkeys(
        (
            "aten.squeeze_copy.default",
            "aten.squeeze_copy.dim",
            "aten.squeeze_copy.dims",
            "aten.unsqueeze_copy.default",
        ),
        _as_view,
    ),
    "aten.prelu.default": _prelu,
}
"""Operator -> the function that replaces a call of it."""


def _slice(node: Node, operand: Node, dim: Any, start: int, end: int) -> Node:
    return _call(node, edge_aten.slice_copy.Tensor, operand, dim, start, end)


def _view(node: Node, operand: Node, shape: Sequence[Any]) -> Node:
    """Insert a view with at most one dynamic size."""
    sizes = [size if type(size) is int else -1 for size in shape]
    view = _call(node, edge_aten.view_copy.default, operand, sizes)
    view.meta["val"] = edge_aten.view_copy.default(operand.meta["val"], list(shape))
    return view


def _call(node: Node, target: Any, operand: Node, *rest: Any) -> Node:
    """Insert a call before ``node`` as part of its replacement, and return the call."""
    with node.graph.inserting_before(node):
        call = node.graph.call_function(target, (operand, *rest))
    call.meta = {**node.meta, MOVED: True}
    values = [n.meta["val"] if isinstance(n, Node) else n for n in call.args]
    call.meta["val"] = target(*values)
    return call


def _replace(node: Node, equivalent: Node) -> None:
    """Replace ``node`` by ``equivalent``, under the same name: outputs refer to names."""
    node.replace_all_uses_with(equivalent)
    node.graph.erase_node(node)
    equivalent.name = node.name
