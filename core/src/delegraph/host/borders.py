"""Indices that the host computes and a delegate takes in another type: none changes its value there."""

from __future__ import annotations

from typing import Any

import torch
from delegraph_programs import operator_name, source_of
from delegraph_programs.call_arguments import outside
from delegraph_programs.call_names import INDEXED
from torch.fx import Node

from ..errors import InputError


def narrows(node: Node) -> bool:
    """Whether ``node`` is a cast at a border of indices in int64 that the host computed.

    ``call_spec`` checks those that are inputs of the program.
    """
    if "boundary" not in node.meta or node.meta["val"].dtype is not torch.int32:
        return False
    operand = node.all_input_nodes[0]
    if operand.op != "call_function" or INDEXED not in operand.meta:
        return False
    return operand.meta["val"].dtype is torch.int64


def expect_narrow(value: Any, node: Node) -> Any:
    """Return ``value``, the operand of the cast ``node``. Raises InputError if an index is out of range."""
    operand = node.all_input_nodes[0]
    low, high = operand.meta[INDEXED]
    found = outside(value, low, high)
    if found is None:
        return value
    text = f"an index is out of range: {operand.name}, a result of {operator_name(operand)}, has an element {found}; "
    text += f"{low} to {high} are in range"
    raise InputError("input-invalid", text, operand, source_of(operand))
