"""Values without a scale, since calibration showed NaN or infinity: they and the calls
around them stay in floats.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple

import torch
from delegraph.errors import InputError
from delegraph_programs import Source, source_of
from torch.fx import GraphModule, Node


class Unscaled(NamedTuple):
    """A value from which floats without a scale come: the call that made it and why it
    has no scale.
    """

    made: Node
    why: str

    @property
    def source(self) -> Source | None:
        """The user's line; of an input, that of the first call that takes it."""
        return next(filter(None, map(source_of, (self.made, *self.made.users))), None)

    def __str__(self) -> str:
        return f"{self.made} {self.why}" + (
            "" if self.source is None else f" ({self.source.place})"
        )


class _Guard(torch.nn.Module):
    """Stands for an observer: shows it what is finite, and remembers whether anything
    was not.
    """

    def __init__(self, observer: Any) -> None:
        super().__init__()
        self.observer = observer
        self.refused = False

    def forward(self, x: torch.Tensor) -> Any:
        # aminmax hands NaN on
        if x.numel() and not all(limit.isfinite() for limit in x.aminmax()):
            self.refused = True
            return x
        return self.observer(x)


@contextmanager
def watched(prepared: GraphModule) -> Iterator[set[Node]]:
    """A set that has, when the block ends, the calls of observers that came upon NaN or
    infinity.
    """
    refused = set[Node]()
    guards = [
        (body, node, _Guard(body.get_submodule(node.target)))
        for body in bodies(prepared)
        for node in seen(body)
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
    """The program, and what its loops and branches run."""
    return [part for part in module.modules() if isinstance(part, GraphModule)]


def seen(body: GraphModule) -> Sequence[Any]:
    """The calls of observers."""
    return body.graph.find_nodes(op="call_module")


def leave_in_floats(prepared: GraphModule, refused: set[Node]) -> list[Unscaled]:
    """Take away the observers of what has no scale, and of the calls that make or take
    it; where that began.

    Raises InputError if calibration never showed a value, or if nothing is left that
    could be quantized.
    """
    found = list[Unscaled]()
    for body in bodies(prepared):
        why = {
            node: reason
            for node in seen(body)
            if (reason := _why_not(body, node, refused, body is prepared))
        }
        found += _origins(body, why)
        if why:
            take_away(body, set(why))
    if found and not any(map(seen, bodies(prepared))):
        hint = "leave out the batches that show it, or change the line"
        text = f"nothing of the program is quantized: {found[0]}"
        raise InputError("input-invalid", text, source=found[0].source, hint=hint)
    return found


def _why_not(body: GraphModule, node: Node, refused: set[Node], whole: bool) -> str:
    """Why there is no scale for what an observer saw; empty if there is one."""
    if node in refused:
        return "was NaN or infinite during calibration"
    observer: Any = body.get_submodule(str(node.target))
    observer = getattr(observer, "activation_post_process", observer)
    low = getattr(observer, "min_val", None)
    high = getattr(observer, "max_val", None)
    if not isinstance(low, torch.Tensor) or not isinstance(high, torch.Tensor):
        return ""
    if low.numel() == 0 or (low > high).any():  # as it began
        if not whole:
            return "was never computed during calibration, in a loop or a branch"
        text = f"calibration never showed a value of {node.args[0]}"
        raise InputError(
            "input-invalid",
            text,
            hint="batches without elements say nothing about scales",
        )
    return "" if (high - low).isfinite().all() else "spans more than fp32 has"


def _origins(body: GraphModule, why: dict[Node, str]) -> list[Unscaled]:
    """The values without a scale that do not follow from others without one."""
    found = dict[Node, Unscaled]()
    spoiled = set[Node]()
    for node in body.graph.nodes:
        if node in why and node.args[0] not in spoiled:
            found.setdefault(node.args[0], Unscaled(node.args[0], why[node]))
        if node in why or not spoiled.isdisjoint(node.all_input_nodes):
            spoiled.add(node)
    return list(found.values())


def take_away(body: GraphModule, without: set[Node]) -> None:
    """Let the calls that make or take what ``without`` observe have operands in floats,
    and drop unused observers.

    What another call computes in integers stays an operand as it is: this call has it
    dequantized.
    """
    observers = set(seen(body))
    takers = chain.from_iterable(observer.users for observer in without)
    pending = [
        *map(observed, without),
        *(node for node in takers if node.op == "call_function"),
    ]
    floats = set[Node]()
    while pending:
        call = pending.pop()
        if call not in floats:
            floats.add(call)
            # a convolution before a limit, which has no observer between them
            pending += [n for n in call.all_input_nodes if n.op == "call_function"]
    for observer in observers:
        made = observed(observer)
        # a bias, of the operands' scales
        derived = hasattr(body.get_submodule(str(observer.target)), "obs_or_fqs")
        for user in list(observer.users):
            plain = made in floats or made.op != "call_function" or derived
            if observer in without or (user in floats and plain):
                user.replace_input_with(observer, made)
    for node in reversed(list(body.graph.nodes)):
        if node in observers and not node.users:
            body.graph.erase_node(node)
    body.recompile()


def observed(observer: Node) -> Node:
    """What an observer sees; there may be two of them on one value."""
    made = observer.args[0]
    assert isinstance(made, Node)
    return observed(made) if made.op == "call_module" else made
