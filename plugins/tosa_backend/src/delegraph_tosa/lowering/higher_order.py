"""Operators whose arguments are graphs, and what lowers each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from ..ir.graph import Undecided, Value
from .control import cond, while_loop
from .hints import undecided
from .repeated import map_impl, scan
from .torch_types import refused

if TYPE_CHECKING:
    from .interpreter import Interpreter

CONTROL: dict[Any, Callable[[Interpreter, Node], tuple[Value, ...]]] = {
    torch.ops.higher_order.cond: cond,
    torch.ops.higher_order.while_loop: while_loop,
    torch.ops.higher_order.map_impl: map_impl,
    torch.ops.higher_order.scan: scan,
}
"""Higher-order operators that are lowered with their subgraphs."""


def lower_control(outer: Interpreter, call: Node) -> tuple[Value, ...]:
    """The results of such a call; Unsupported says why it has none."""
    try:
        return CONTROL[call.target](outer, call)
    except Undecided as why:
        raise refused(undecided(str(why))) from why
