"""Casts of integers where they enter delegates: none of the host's values loses its high bits."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ..errors import InputError
from ..exported.call_names import INDEXED, LOW_BITS, WITHIN, operator_name
from ..exported.call_spec import outside
from ..source import source_of

_MARKS = (INDEXED, LOW_BITS, WITHIN)
"""Marks of values that need no check: ``call_spec`` makes it, or the program reads low bits only."""


def narrows(node: Node) -> bool:
    """Whether ``node`` is a cast at a border that may change its operand, an int64 tensor."""
    if "boundary" not in node.meta or node.meta["val"].dtype is not torch.int32:
        return False
    operand = node.all_input_nodes[0]
    if operand.meta["val"].dtype is not torch.int64 or any(mark in operand.meta for mark in _MARKS):
        return False
    # A value that a delegate returned has been int32 before.
    return "boundary" not in operand.meta


def expect_narrow(value: Any, node: Node) -> Any:
    """Return ``value``, the operand of the cast ``node``. Raises InputError if an element does not fit."""
    limits = torch.iinfo(torch.int32)
    found = outside(value, limits.min, limits.max)
    if found is None:
        return value
    operand = node.all_input_nodes[0]
    kind = "an input" if operand.op == "placeholder" else f"a result of {operator_name(operand)}"
    text = f"{operand.name}, {kind}, has an element {found}; it enters a delegate as int32, which does not hold it"
    raise InputError("input-invalid", text, operand, source_of(operand))
