"""Check the delegation contract: exactly the tagged calls are delegated."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch.fx import Node
from torch.utils import _pytree as pytree

from ..backend_under_test import BackendUnderTest
from ..check import check
from ..check_result import Figures
from ..failures import CheckFailed, CheckSkipped
from ..lowering_attempt import LoweringAttempt, Phase


@check
def input_program_unmodified(backend: BackendUnderTest) -> Figures:
    """Lowering leaves the graph, the metadata and the tensors of the caller's program
    unchanged.
    """
    for attempt in backend.samples:
        if attempt.changed:
            text = f"lowering changed {attempt.changed[0]} of the caller's program"
            advice = (
                "graphs and meta dictionaries are copies that you may change; copy the"
                " objects that they refer to before changing them"
            )
            raise CheckFailed(text, attempt.program, advice, more=attempt.changed[1:])
    return {"programs": len(backend.samples)}


@check
def only_tagged_nodes_lowered(backend: BackendUnderTest) -> Figures:
    """Exactly the tagged nodes are delegated, and the rest of the graph is
    unchanged.
    """
    nodes = 0
    for attempt in backend.samples:
        why = _difference(attempt)
        if why is not None:
            advice = (
                "a partitioner sets meta['delegation_tag'] of the nodes that it"
                " accepts; it may also set meta['no_copy'], the marks of indices, and"
                " keys that begin with the name of its package"
            )
            raise CheckFailed(why, attempt.program, advice)
        nodes += len(attempt.calls)
    if not backend.samples:
        raise CheckSkipped("torch can export none of the sample programs")
    return {"programs": len(backend.samples), "calls": nodes}


def _difference(attempt: LoweringAttempt) -> str | None:
    if attempt.phase is Phase.CONTRACT:
        return f"the backend broke the delegation contract: {attempt.error}"
    if attempt.recording is not None and attempt.recording.changed:
        return f"the partitioner changed {attempt.recording.changed[0]}"
    # after a refusal by the compiler, fewer nodes are delegated than tagged
    if attempt.lowered is None or attempt.lowered.report.given_back:
        return None
    tagged = {
        n.meta["debug_handle"] for n in attempt.calls if n.meta.get("delegation_tag")
    }
    lowered = {
        n.meta["debug_handle"] for d in attempt.lowered.delegates for n in d.nodes
    }
    unpacking = {
        n.meta["debug_handle"]
        for n in attempt.calls
        if getattr(n.target, "__name__", "") == "getitem"
    }
    if lowered - unpacking != tagged - unpacking:
        odd = (lowered ^ tagged) - unpacking
        names = [n.name for n in attempt.calls if n.meta["debug_handle"] in odd]
        return f"tagged and delegated nodes differ: {', '.join(names)}"
    left = [
        n
        for n in attempt.calls
        if n.meta["debug_handle"] not in unpacking and _stays(n)
    ]
    on_host = [n for n in attempt.host_calls if n.meta["debug_handle"] not in unpacking]
    return _host_change(left, on_host)


def _stays(node: Node) -> bool:
    """Return whether the host computes ``node``.

    It is untagged, or a constant of which the host has a copy.
    """
    tag = node.meta.get("delegation_tag")
    return not tag or (isinstance(tag, tuple) and tag[0] is None)


def _host_change(left: list[Node], on_host: list[Node]) -> str | None:
    """Describe a call of the host that was not left to it, or has other arguments.

    The host may decompose its calls. The new calls have the debug handle of the old
    one.
    """
    handles = {n.meta["debug_handle"] for n in left}
    calls = {_call(n) for n in left}
    same = {(call.handle, call.target) for call in calls}
    for node in on_host:
        call = _call(node)
        if call.handle not in handles:
            return (
                f"the host computes {node.name} ({node.target}), but the partitioner"
                " did not leave this call to it"
            )
        if (call.handle, call.target) in same and call not in calls:
            return (
                f"the host calls {node.target} with other arguments than before:"
                f" {node.format_node()}"
            )
    return None


class _Call(NamedTuple):
    """A call without names of operands, which delegation may change."""

    handle: Any
    target: str
    literals: str


def _call(node: Node) -> _Call:
    literals = pytree.tree_map(
        lambda a: "node" if isinstance(a, Node) else repr(a), (node.args, node.kwargs)
    )
    return _Call(node.meta["debug_handle"], str(node.target), str(literals))
