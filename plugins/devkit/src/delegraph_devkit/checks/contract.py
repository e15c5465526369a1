"""Check the delegation contract: exactly the tagged calls are delegated."""

from __future__ import annotations

from typing import Any

from torch.fx import Node
from torch.utils import _pytree as pytree

from ..backend_under_test import BackendUnderTest
from ..check import check
from ..check_result import Figures
from ..failures import CheckFailed, CheckSkipped
from ..lowering_attempt import LoweringAttempt, Phase


@check
def input_program_unmodified(backend: BackendUnderTest) -> Figures:
    """The caller's program is left as it was: its graph, its metadata, and the values
    of its tensors.
    """
    for one in backend.samples:
        if one.changed:
            text = f"lowering changed {one.changed[0]} of the caller's program"
            advice = (
                "copy what you change: graphs and meta dictionaries are yours, what"
                " they refer to is not"
            )
            raise CheckFailed(text, one.program, advice, more=one.changed[1:])
    return {"programs": len(backend.samples)}


@check
def only_tagged_nodes_lowered(backend: BackendUnderTest) -> Figures:
    """What the partitioner tagged is delegated, nothing else is, and the rest of the
    graph stays as it was.
    """
    nodes = 0
    for one in backend.samples:
        why = _difference(one)
        if why is not None:
            advice = (
                "a partitioner sets meta['delegation_tag'] of the nodes that it wants;"
                " it may also set meta['no_copy'], the marks of indices, and keys that"
                " begin with its package's name"
            )
            raise CheckFailed(why, one.program, advice)
        nodes += len(one.calls)
    if not backend.samples:
        raise CheckSkipped("none of the sample programs could be exported")
    return {"programs": len(backend.samples), "calls": nodes}


def _difference(one: LoweringAttempt) -> str | None:
    if one.phase is Phase.CONTRACT:
        return f"the delegation contract was broken: {one.error}"
    if one.recording is not None and one.recording.changed:
        return f"the partitioner changed {one.recording.changed[0]}"
    # then less is delegated than was tagged
    if one.lowered is None or one.lowered.report.given_back:
        return None
    tagged = {n.meta["debug_handle"] for n in one.calls if n.meta.get("delegation_tag")}
    lowered = {n.meta["debug_handle"] for d in one.lowered.delegates for n in d.nodes}
    unpacking = {
        n.meta["debug_handle"]
        for n in one.calls
        if getattr(n.target, "__name__", "") == "getitem"
    }
    if lowered - unpacking != tagged - unpacking:
        odd = (lowered ^ tagged) - unpacking
        names = [n.name for n in one.calls if n.meta["debug_handle"] in odd]
        return f"tagged and delegated nodes differ: {', '.join(names)}"
    left = [
        n for n in one.calls if n.meta["debug_handle"] not in unpacking and _stays(n)
    ]
    return _host_change(
        left, [n for n in one.host_calls if n.meta["debug_handle"] not in unpacking]
    )


def _stays(node: Node) -> bool:
    """Return whether the host computes ``node``.

    It is untagged, or a constant of which the host has a copy.
    """
    tag = node.meta.get("delegation_tag")
    return not tag or (isinstance(tag, tuple) and tag[0] is None)


def _host_change(left: list[Node], there: list[Node]) -> str | None:
    """Return a call that the host computes although it should not, or with other
    arguments.

    The host may decompose its calls. The new calls have the debug handle of the old
    one.
    """
    handles = {n.meta["debug_handle"] for n in left}
    calls = {_call(n) for n in left}
    same = {(handle, target) for handle, target, _ in calls}
    for node in there:
        if node.meta["debug_handle"] not in handles:
            return (
                f"the host computes {node.name} ({node.target}), which it was not left"
                " with"
            )
        if _call(node)[:2] in same and _call(node) not in calls:
            return (
                f"the host calls {node.target} with other arguments than before:"
                f" {node.format_node()}"
            )
    return None


def _call(node: Node) -> tuple[Any, str, str]:
    """Describe a call without names of operands, which delegation may change."""
    literals = pytree.tree_map(
        lambda a: "node" if isinstance(a, Node) else repr(a), (node.args, node.kwargs)
    )
    return node.meta["debug_handle"], str(node.target), str(literals)
