"""Whether two graphs are the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.fx import GraphModule, Node

Twin = Callable[[Node], Node | None]
"""The node of the other graph that a node corresponds to."""


def is_identical_graph(left: GraphModule, right: GraphModule) -> bool:
    """Whether both graphs have the same nodes in the same order: operations, targets and all arguments, literals too.

    Names and metadata do not count; branches and loop bodies do. Takes time linear in the graphs and keeps nothing.
    """
    ours, theirs = list(left.graph.nodes), list(right.graph.nodes)
    twins = dict(zip(ours, theirs, strict=False))
    return len(ours) == len(theirs) and all(_alike(a, b, twins.get) and _same_body(a, b) for a, b in twins.items())


def _alike(ours: Node, theirs: Node, twin: Twin) -> bool:
    if ours.op != theirs.op or (ours.op != "output" and ours.target != theirs.target):
        return False
    return same_arguments(ours.args, theirs.args, twin) and same_arguments(ours.kwargs, theirs.kwargs, twin)


def same_arguments(ours: Any, theirs: Any, twin: Twin = lambda node: node) -> bool:
    """Python compares 1, 1.0 and True equal, and 0.0 and -0.0; programs compute different things with them."""
    if isinstance(ours, Node):
        return twin(ours) is theirs
    if isinstance(ours, (list, tuple)):
        same_kind = isinstance(theirs, (list, tuple)) and len(ours) == len(theirs)
        return same_kind and all(same_arguments(a, b, twin) for a, b in zip(ours, theirs, strict=True))
    if isinstance(ours, Mapping):
        same_keys = isinstance(theirs, Mapping) and list(ours) == list(theirs)
        return same_keys and all(same_arguments(a, theirs[k], twin) for k, a in ours.items())
    return ours is theirs or (type(ours) is type(theirs) and repr(ours) == repr(theirs))


def _same_body(ours: Node, theirs: Node) -> bool:
    """Whether two ``get_attr`` nodes fetch the same graph, where they fetch graphs."""
    if ours.op != "get_attr":
        return True
    mine, other = _fetched(ours), _fetched(theirs)
    if not isinstance(mine, GraphModule) or not isinstance(other, GraphModule):
        return True
    return is_identical_graph(mine, other)


def _fetched(node: Node) -> Any:
    return getattr(node.graph.owning_module, str(node.target), None)
