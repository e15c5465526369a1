"""Leaves values in floats if calibration found no scale for them.

Such values were NaN or infinite. The calls around them stay in floats, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple

import torch
from delegraph.errors import InputError
from delegraph_programs import Source, source_of
from torch.fx import GraphModule, Node


class Unscaled(NamedTuple):
    """The first value of a chain without a scale: its node, and why it has none."""

    value: Node
    why: str

    @property
    def source(self) -> Source | None:
        """The user's line of the value; for an input, that of the first call of it."""
        return next(filter(None, map(source_of, (self.value, *self.value.users))), None)

    def __str__(self) -> str:
        place = "" if self.source is None else f" ({self.source.place})"
        return f"{self.value} {self.why}{place}"


class _Guard(torch.nn.Module):
    """Replaces an observer, shows it finite values, and records whether others came."""

    def __init__(self, observer: Any) -> None:
        super().__init__()
        self.observer = observer
        self.refused = False

    def forward(self, x: torch.Tensor) -> Any:
        # aminmax returns NaN if an element is NaN
        if x.numel() and not all(limit.isfinite() for limit in x.aminmax()):
            self.refused = True
            return x
        return self.observer(x)


@contextmanager
def watched(prepared: GraphModule) -> Iterator[set[Node]]:
    """Yield a set that has, after the block, the observers that saw NaN or infinity.

    The set contains their calls.
    """
    refused = set[Node]()
    guards = [
        (body, node, _Guard(body.get_submodule(node.target)))
        for body in bodies(prepared)
        for node in observer_calls(body)
    ]
    for body, node, guard in guards:
        setattr(body, node.target, guard)
    try:
        yield refused
    finally:
        for body, node, guard in guards:
            setattr(body, node.target, guard.observer)
        refused.update(node for _, node, guard in guards if guard.refused)


def bodies(module: GraphModule) -> list[GraphModule]:
    """Return the program, and the bodies of its loops and branches."""
    return [part for part in module.modules() if isinstance(part, GraphModule)]


def observer_calls(body: GraphModule) -> Sequence[Any]:
    """Return the calls of observers."""
    return body.graph.find_nodes(op="call_module")


def leave_in_floats(prepared: GraphModule, refused: set[Node]) -> list[Unscaled]:
    """Remove the observers of values without a scale, and of calls that use such
    values.

    Returns the values where this began. Raises InputError if calibration never showed a
    value, or if nothing is left that could be quantized.
    """
    found = list[Unscaled]()
    for body in bodies(prepared):
        reasons: dict[Node, str] = {}
        for node in observer_calls(body):
            reason = _why_no_scale(body, node, refused, body is prepared)
            if reason:
                reasons[node] = reason
        found += _origins(body, reasons)
        if reasons:
            remove_observers(body, set(reasons))
    if found and not any(map(observer_calls, bodies(prepared))):
        hint = "leave out the batches with such values, or change the line"
        text = f"no call of the program can be quantized: {found[0]}"
        raise InputError("input-invalid", text, source=found[0].source, hint=hint)
    return found


def _why_no_scale(
    body: GraphModule, node: Node, refused: set[Node], is_main_graph: bool
) -> str:
    """Return why an observer's value has no scale; "" if it has one.

    ``node`` is the call of the observer in the graph of ``body``. Raises InputError if
    a value of the main graph was never computed.
    """
    if node in refused:
        return "was NaN or infinite during calibration"
    observer: Any = body.get_submodule(str(node.target))
    observer = getattr(observer, "activation_post_process", observer)
    low = getattr(observer, "min_val", None)
    high = getattr(observer, "max_val", None)
    if not isinstance(low, torch.Tensor) or not isinstance(high, torch.Tensor):
        return ""
    if low.numel() == 0 or (low > high).any():  # no value was observed
        if not is_main_graph:
            return "was never computed during calibration, in a loop or a branch"
        raise InputError(
            "input-invalid",
            f"calibration never computed a value of {node.args[0]}",
            hint="use batches with elements: empty batches determine no scales",
        )
    if (high - low).isfinite().all():
        return ""
    return "has a range that float32 cannot represent"


def _origins(body: GraphModule, why: dict[Node, str]) -> list[Unscaled]:
    """Return the values without a scale that do not follow from others without one."""
    found = dict[Node, Unscaled]()
    # observers of values without a scale, and all that is computed from these values
    affected = set[Node]()
    for node in body.graph.nodes:
        if node in why and node.args[0] not in affected:
            found.setdefault(node.args[0], Unscaled(node.args[0], why[node]))
        if node in why or not affected.isdisjoint(node.all_input_nodes):
            affected.add(node)
    return list(found.values())


def remove_observers(body: GraphModule, without: set[Node]) -> None:
    """Remove the observers ``without``, and give the calls around them float operands.

    These are the calls that make or take such values.
    """
    takers = chain.from_iterable(observer.users for observer in without)
    calls = {*map(observed, without)}
    calls.update(node for node in takers if node.op == "call_function")
    compute_in_floats(body, calls, without)


def with_joined_calls(calls: Iterable[Node]) -> set[Node]:
    """Return calls, with all before them that are computed together with them.

    For example, a convolution and a limit after it have no observer between them.
    """
    pending = [*calls]
    found = set[Node]()
    while pending:
        call = pending.pop()
        if call not in found:
            found.add(call)
            pending += [n for n in call.all_input_nodes if n.op == "call_function"]
    return found


def compute_in_floats(body: GraphModule, calls: set[Node], without: set[Node]) -> None:
    """Give ``calls`` float operands and results, and remove the observers ``without``.

    Unused observers are dropped. If another call computes an operand in integers, it is
    dequantized for this call.
    """
    observers = set(observer_calls(body))
    floats = with_joined_calls(calls)
    for observer in observers:
        value = observed(observer)
        # torchao's observer of a bias, whose scale follows from those of the operands
        is_derived = hasattr(body.get_submodule(str(observer.target)), "obs_or_fqs")
        # no call computes this value in integers, so floats need no dequantization
        is_plain = value in floats or value.op != "call_function" or is_derived
        for user in list(observer.users):
            in_floats = user in floats or (leaves_program(user) and value in floats)
            if observer in without or (in_floats and is_plain):
                user.replace_input_with(observer, value)
    for node in reversed(list(body.graph.nodes)):
        if node in observers and not node.users:
            body.graph.erase_node(node)
    body.recompile()


def leaves_program(user: Node) -> bool:
    """Return whether a user of a value returns it, or writes it to a buffer."""
    return user.op == "output" or user.target is torch.ops.aten.copy_.default


def observed(observer: Node) -> Node:
    """Return the node that an observer sees; a value may have two observers."""
    value = observer.args[0]
    assert isinstance(value, Node)
    # the observed value may be the result of another observer
    return observed(value) if value.op == "call_module" else value
