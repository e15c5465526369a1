"""Whether two graphs are the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.fx import GraphModule, Node

Counterpart = Callable[[Node], Node | None]
"""A function from a node of the first graph to its counterpart in the second; None if it has none."""


def is_identical_graph(left: GraphModule, right: GraphModule) -> bool:
    """Whether both graphs have the same nodes in the same order: operations, targets and arguments.

    Names and metadata are not compared; the graphs of branches and loops are. Takes linear time.
    """
    ours, theirs = list(left.graph.nodes), list(right.graph.nodes)
    pairs = dict(zip(ours, theirs, strict=False))
    return len(ours) == len(theirs) and all(_is_alike(a, b, pairs.get) for a, b in pairs.items())


def _is_alike(ours: Node, theirs: Node, counterpart: Counterpart) -> bool:
    """Whether two nodes have the same operation, target, subgraph and arguments; ``counterpart`` maps operands."""
    if ours.op != theirs.op or (ours.op != "output" and ours.target != theirs.target):
        return False
    if ours.op == "get_attr":
        our_module, their_module = (getattr(n.graph.owning_module, str(n.target), None) for n in (ours, theirs))
        graphs = isinstance(our_module, GraphModule) and isinstance(their_module, GraphModule)
        return not graphs or is_identical_graph(our_module, their_module)  # type: ignore[arg-type]
    return same_arguments((ours.args, ours.kwargs), (theirs.args, theirs.kwargs), counterpart)


def same_arguments(ours: Any, theirs: Any, counterpart: Counterpart = lambda node: node) -> bool:
    """Whether two arguments are the same, in type as well: 1, 1.0 and True differ, and so do 0.0 and -0.0.

    Lists and tuples are not told apart. ``counterpart`` maps the nodes in ``ours`` to those in ``theirs``; by default
    both are of one graph.
    """
    if isinstance(ours, Node):
        return counterpart(ours) is theirs
    if isinstance(ours, (list, tuple)):
        same_kind = isinstance(theirs, (list, tuple)) and len(ours) == len(theirs)
        return same_kind and all(same_arguments(a, b, counterpart) for a, b in zip(ours, theirs, strict=True))
    if isinstance(ours, Mapping):
        same_keys = isinstance(theirs, Mapping) and list(ours) == list(theirs)
        return same_keys and all(same_arguments(a, theirs[k], counterpart) for k, a in ours.items())
    return ours is theirs or (type(ours) is type(theirs) and repr(ours) == repr(theirs))
