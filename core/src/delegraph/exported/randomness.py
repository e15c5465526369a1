"""Which calls draw random numbers."""

from __future__ import annotations

from functools import cache

import torch
from torch._ops import OpOverload
from torch.fx import Node


def is_random(node: Node) -> bool:
    """Whether a call draws random numbers itself. Attention and dropout do not where nothing is dropped out."""
    return isinstance(node.target, OpOverload) and _is_seeded(node.target) and not _is_switched_off(node)


@cache
def _is_seeded(op: OpOverload) -> bool:
    return torch.Tag.nondeterministic_seeded in op.tags


def _is_switched_off(node: Node) -> bool:
    """Whether a call that could draw does not: it is not in training, or drops out (in attention too) nothing."""
    schema = node.target._schema  # type: ignore[union-attr]
    given = {a.name: a.default_value for a in schema.arguments}
    given |= dict(zip(given, node.args, strict=False)) | node.kwargs
    chance = given.get("dropout_p", given.get("dropout", given.get("p") if "dropout" in schema.name else None))
    return given.get("train", given.get("training")) is False or chance == 0
