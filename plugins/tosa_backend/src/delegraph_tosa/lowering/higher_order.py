"""Operators whose arguments are graphs, and what lowers each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from ..ir.graph import Value
from .control import cond, while_loop
from .repeated import map_impl, scan

if TYPE_CHECKING:
    from .interpreter import Interpreter

CONTROL: dict[Any, Callable[[Interpreter, Node], tuple[Value, ...]]] = {
    torch.ops.higher_order.cond: cond,
    torch.ops.higher_order.while_loop: while_loop,
    torch.ops.higher_order.map_impl: map_impl,
    torch.ops.higher_order.scan: scan,
}
"""Higher-order operators that are lowered with their subgraphs."""
