"""Reads the schemas and tags of operators: arguments by name, views, randomness."""

from __future__ import annotations

from functools import cache
from operator import attrgetter
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node


def overloads(names: str) -> frozenset[Any]:
    """Return ATen overloads by their names: ``overloads("view.default select.int")``."""
    return frozenset(attrgetter(name)(torch.ops.aten) for name in names.split())


def bound_arguments(node: Node) -> dict[str, Any]:
    """Return the arguments of a call by name, in the schema's order, defaults included."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    defaults = {a.name: a.default_value for a in schema}
    return defaults | dict(zip(defaults, node.args, strict=False)) | node.kwargs


def is_view(node: Node) -> bool:
    """Return whether a call returns its first argument or a view of it, by its schema."""
    if not isinstance(node.target, OpOverload):
        return False
    arguments = node.target._schema.arguments
    return bool(arguments) and arguments[0].alias_info is not None


def is_random(node: Node) -> bool:
    """Return whether a call draws random numbers, apart from its subgraphs.

    Attention and dropout draw none if their probability is 0 or ``training`` is false.
    """
    if not isinstance(node.target, OpOverload) or not may_be_random(node.target):
        return False
    arguments = bound_arguments(node)
    # Attention names the probability ``dropout_p``, recurrent layers ``dropout``, and
    # dropouts ``p``. In other operators, such as ``bernoulli``, ``p`` is no probability
    # of dropping; they always draw.
    p = arguments.get("p") if "dropout" in node.target._schema.name else None
    probability = arguments.get("dropout_p", arguments.get("dropout", p))
    is_training = arguments.get("train", arguments.get("training")) is not False
    return is_training and probability != 0


@cache
def may_be_random(target: Any) -> bool:
    """Return whether torch tags an operator as one that may draw random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())
