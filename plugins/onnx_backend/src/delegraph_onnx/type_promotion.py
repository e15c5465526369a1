"""Write torch's implicit casts of operands as calls: ONNX has none.

For example, ``torch.add(floats, ints)`` casts the integers. The rules are those of
torch.onnx. Its own pass is not used: it computes the program again, and keeps it in
memory afterwards.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.onnx._internal.fx.passes.type_promotion import (
    TypePromotionTable,
    get_type_promotion_rule,
)

_CAST = torch.ops.prims.convert_element_type.default


def insert_casts(graph: Graph) -> None:
    """Insert a cast before each call for each operand that torch casts itself."""
    for node in list(graph.nodes):
        rule = get_type_promotion_rule(node, _table())
        if node.op != "call_function" or rule is None:
            continue
        args, kwargs = torch.fx.map_arg(
            (node.args, node.kwargs), lambda operand: operand.meta["val"]
        )
        promoted = rule.preview_type_promotion(args, kwargs)
        node.args = tuple(
            _cast(node, arg, promoted.args_dtypes.get(k))
            for k, arg in enumerate(node.args)
        )
        node.kwargs = {
            name: _cast(node, arg, promoted.kwargs_dtypes.get(name))
            for name, arg in node.kwargs.items()
        }


@cache
def _table() -> TypePromotionTable:
    return TypePromotionTable()


def _cast(node: Node, arg: Any, dtype: torch.dtype | None) -> Any:
    """Return ``arg`` of ``node`` as an operand of type ``dtype``; None: as it is."""
    if dtype is None:
        return arg
    if isinstance(arg, (list, tuple)):
        return [_cast(node, element, dtype) for element in arg]
    if isinstance(arg, (bool, int, float)):
        return _number(arg, dtype)
    if not isinstance(arg, Node) or not isinstance(arg.meta["val"], torch.Tensor):
        return arg
    if arg.meta["val"].dtype is dtype:
        return arg
    with node.graph.inserting_before(node):
        cast = node.graph.call_function(_CAST, (arg, dtype))
    cast.meta["val"] = arg.meta["val"].to(dtype)
    return cast


def _number(number: bool | int | float, dtype: torch.dtype) -> bool | int | float:
    """Return a number as one of the kind of ``dtype``."""
    if dtype.is_floating_point:
        return float(number)
    return number if dtype is torch.bool or isinstance(number, float) else int(number)
