"""Compares the arguments of two calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.fx import Node

Counterpart = Callable[[Node], Node | None]
"""A function from a node of the first graph to its counterpart in the second, or None.
"""


def same_arguments(
    ours: Any, theirs: Any, counterpart: Counterpart = lambda node: node
) -> bool:
    """Return whether two arguments are equal, also in type.

    1, 1.0 and True differ, and so do 0.0 and -0.0. A list equals a tuple with the same
    items. ``counterpart`` maps nodes in ``ours`` to nodes in ``theirs``; by default
    both belong to one graph.
    """
    if isinstance(ours, Node):
        return counterpart(ours) is theirs
    if isinstance(ours, (list, tuple)):
        same_kind = isinstance(theirs, (list, tuple)) and len(ours) == len(theirs)
        return same_kind and all(
            same_arguments(a, b, counterpart) for a, b in zip(ours, theirs, strict=True)
        )
    if isinstance(ours, Mapping):
        same_keys = isinstance(theirs, Mapping) and list(ours) == list(theirs)
        return same_keys and all(
            same_arguments(a, theirs[k], counterpart) for k, a in ours.items()
        )
    # as texts: for ==, 0.0 equals -0.0, and NaN does not equal itself
    return ours is theirs or (type(ours) is type(theirs) and repr(ours) == repr(theirs))
