"""Leaves values in floats if calibration found no scale for them.

torchao puts an observer after each value to quantize: a module that the graph calls
with the value, and that records its range. A value that was NaN or infinite gets no
scale. The calls that make or take it stay in floats, too.
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
    """A value without a scale, and why it has none.

    Values that are computed from it may have no scale either; they are not listed.
    """

    value: Node
    why: str

    @property
    def source(self) -> Source | None:
        """The user's line of the value; for an input, that of the first call with it."""
        return next(filter(None, map(source_of, (self.value, *self.value.users))), None)

    def __str__(self) -> str:
        place = "" if self.source is None else f" ({self.source.place})"
        return f"{self.value} {self.why}{place}"


class _Guard(torch.nn.Module):
    """Replaces an observer, and passes it only finite values.

    ``refused``: whether there were others.
    """

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
    """Yield an empty set. When the block ends, it gets the refused observers' calls.

    These observers met NaN or infinity in the block.
    """
    refused = set[Node]()
    guards: list[tuple[GraphModule, Node, _Guard]] = []
    for body in bodies(prepared):
        for call in observer_calls(body):
            guard = _Guard(body.get_submodule(call.target))
            setattr(body, call.target, guard)
            guards.append((body, call, guard))
    try:
        yield refused
    finally:
        for body, call, guard in guards:
            setattr(body, str(call.target), guard.observer)
            if guard.refused:
                refused.add(call)


def bodies(module: GraphModule) -> list[GraphModule]:
    """Return the program, and the bodies of its loops and branches."""
    return [part for part in module.modules() if isinstance(part, GraphModule)]


def observer_calls(body: GraphModule) -> Sequence[Any]:
    """Return the calls of observers."""
    return body.graph.find_nodes(op="call_module")


def leave_in_floats(prepared: GraphModule, refused: set[Node]) -> list[Unscaled]:
    """Let values without a scale, and the calls around them, stay in floats.

    Returns the first such values. ``refused``: the result of ``watched``. Raises InputError if calibration never showed a
    value, or if nothing is left that could be quantized.
    """
    found = list[Unscaled]()
    for body in bodies(prepared):
        reasons: dict[Node, str] = {}
        for node in observer_calls(body):
            is_main_graph = body is prepared
            reason = _why_no_scale(body, node, refused, is_main_graph)
            if reason:
                reasons[node] = reason
        found += _first_values(body, reasons)
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


def _first_values(body: GraphModule, why: dict[Node, str]) -> list[Unscaled]:
    """Return the values without a scale that are not computed from others without one.

    ``why``: observer -> why its value has no scale.
    """
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
    """Remove the observers ``without``.

    The calls that make or take the observed values compute in floats.
    """
    takers = chain.from_iterable(observer.users for observer in without)
    calls = {*map(observed, without)}
    calls.update(node for node in takers if node.op == "call_function")
    compute_in_floats(body, calls, without)


def with_joined_calls(calls: Iterable[Node]) -> set[Node]:
    """Return ``calls``, and all calls before them up to the nearest observers.

    Without an observer in between, calls are computed together in integers. Example: a
    convolution and the ReLU after it.
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

    Observers that nothing uses any more are erased. An operand that another call
    computes in integers keeps its observer: it is dequantized for these calls.
    """
    observers = set(observer_calls(body))
    floats = with_joined_calls(calls)
    for observer in observers:
        value = observed(observer)
        # torchao's observer of a bias, whose scale follows from those of the operands
        is_derived = hasattr(body.get_submodule(str(observer.target)), "obs_or_fqs")
        computed_in_integers = value.op == "call_function" and value not in floats
        for user in list(observer.users):
            in_floats = user in floats or (leaves_program(user) and value in floats)
            needs_observer = computed_in_integers and not is_derived
            if observer in without or (in_floats and not needs_observer):
                user.replace_input_with(observer, value)
    for node in reversed(list(body.graph.nodes)):
        if node in observers and not node.users:
            body.graph.erase_node(node)
    body.recompile()


def leaves_program(user: Node) -> bool:
    """Return whether a user of a value returns it, or writes it to a buffer."""
    return user.op == "output" or user.target is torch.ops.aten.copy_.default


def observed(observer: Node) -> Node:
    """Return the value that an observer records, which is no observer itself.

    A value may have two observers, one after the other.
    """
    value = observer.args[0]
    assert isinstance(value, Node)
    return observed(value) if value.op == "call_module" else value
