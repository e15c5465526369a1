"""Random numbers come from one generator, so that the order in which calls draw them shows in the results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import torch
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import Node

from ...program.delegates import DelegateInfo
from ..subgraphs import all_nodes, subgraphs_of


def draws(node: Node) -> bool:
    """Whether a call draws random numbers, itself or in its bodies."""
    if isinstance(node.target, OpOverload):
        return _is_seeded(node.target)
    return any(map(draws, (n for body in subgraphs_of(node) for n in all_nodes(body))))


@cache
def _is_seeded(op: OpOverload) -> bool:
    return torch.Tag.nondeterministic_seeded in op.tags


def random_notes(programs: Mapping[str, ExportedProgram], delegates: Sequence[DelegateInfo]) -> Iterator[str]:
    """What a seed does not give as in eager."""
    for delegate in delegates:
        if any(map(draws, delegate.nodes)):
            place = f"{delegate.name} of {delegate.method}"
            yield f"{place} draws random numbers by itself: a seed does not give those of eager"
    for method, program in programs.items():
        order = [n.meta.get("debug_handle", 0) for n in program.graph.nodes if draws(n)]
        if order != sorted(order):
            yield f"{method} draws random numbers in another order than eager: a seed does not give those of eager"
