"""Calls that stay in floats: where they come from, and how a user selects them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import PurePath
from typing import Any, NamedTuple

from delegraph.errors import InputError, OptionError
from delegraph_programs import Source, source_of
from torch._ops import OpOverload, OpOverloadPacket
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from .batch_norms import follows_layer
from .unscaled import (
    bodies,
    compute_in_floats,
    leaves_program,
    observer_calls,
    with_joined_calls,
)

LAYER = "delegraph.layer"
"""Key in the ``custom`` metadata of a quantized node: its name before quantization."""


class CallPlace(NamedTuple):
    """A call of the exported program: its name, operator, module and line.

    ``module``: the path of the innermost module that calls it; "" for the model itself.
    ``of_torch``: that module is one of torch's, such as ``nn.Conv2d``.
    """

    name: str
    operator: str
    module: str
    of_torch: bool
    source: Source | None

    @property
    def line(self) -> str:
        """Return ``net.py:31``; "" if no line of the user is known."""
        if self.source is None or not self.source.is_users:
            return ""
        return f"{PurePath(self.source.file).name}:{self.source.line}"

    def is_selected(self, selector: str) -> bool:
        """Return whether an item of ``floats`` selects this call."""
        packet = self.operator.rpartition(".")[0]
        if selector in (self.name, self.operator, packet, self.line):
            return True
        if self.module == selector or self.module.startswith(f"{selector}."):
            return bool(selector)
        if not self.line or self.source is None:
            return False
        # a longer path of the line, such as ``models/net.py:31``
        place = f"{PurePath(self.source.file).as_posix()}:{self.source.line}"
        return place.endswith(f"/{selector}") or place == selector


def call_places(exported: ExportedProgram) -> dict[str, CallPlace]:
    """Return the places of the calls of a program by name."""
    return {
        node.name: place_of(node)
        for node in exported.graph.nodes
        if node.op == "call_function"
    }


def place_of(node: Node) -> CallPlace:
    """Return the place of a call."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path, kind = stack[-1] if stack else ("", "")
    if isinstance(kind, type):
        kind = f"{kind.__module__}.{kind.__qualname__}"
    return CallPlace(
        name=node.name,
        operator=str(node.target),
        module=str(path).replace("L['self'].", "", 1).partition("@")[0],
        of_torch=str(kind).startswith("torch.nn."),
        source=source_of(node),
    )


def select(places: Mapping[str, CallPlace], floats: Any) -> set[str]:
    """Return the names of the calls that ``floats`` selects: one item, or several.

    Raises OptionError for an item without calls.
    """
    is_item = isinstance(floats, (str, OpOverload, OpOverloadPacket))
    items = [floats] if is_item else floats
    if not isinstance(items, Iterable):
        raise _no_item(items)
    chosen = set[str]()
    for item in items:
        if not item or not isinstance(item, (str, OpOverload, OpOverloadPacket)):
            raise _no_item(item)
        text = str(item)
        found = {name for name, place in places.items() if place.is_selected(text)}
        if not found:
            raise _no_call(text, places.values())
        chosen |= found
    return chosen


_ITEMS = (
    'items are operators (torch.ops.aten.log.default, or "aten.log"), lines'
    ' ("net.py:31"), and names of modules or of calls'
)


def _no_item(item: object) -> OptionError:
    """Return the error for an object that is no item of ``floats``."""
    return OptionError(
        "option-invalid",
        f"floats contains {item!r:.100}, which is no valid item",
        hint=_ITEMS,
    )


def _no_call(text: str, places: Iterable[CallPlace]) -> OptionError:
    """Return the error for an item that selects no call, with similar known items."""
    known = dict[str, None]()
    for place in places:
        names = (place.operator, place.line, place.module, place.name)
        known.update(dict.fromkeys(filter(None, names)))
    near = get_close_matches(text, list(known), n=3, cutoff=0.3)
    shown = f"; near it: {', '.join(near)}" if near else ""
    return OptionError(
        "option-invalid",
        f"floats: no call of the program matches {text!r}{shown}",
        hint=_ITEMS,
    )


def layer_of(node: Node) -> str:
    """Return the name that a call of a prepared program has in the exported one.

    A quantizer may write an operator as several calls. Only the last of them has the
    name, so this follows the users of ``node``. "" if none of them has a name.
    """
    seen = set[Node]()
    while node not in seen:
        seen.add(node)
        name = node.meta.get("custom", {}).get(LAYER, "")
        if name:
            return str(name)
        # observers are calls of modules
        users = [user for user in node.users if user.op != "output"]
        node = users[0] if users else node
    return ""


def calls_in_floats(
    prepared: GraphModule, exported: ExportedProgram, names: set[str]
) -> set[str]:
    """Return the names of all calls in floats if the calls ``names`` are.

    These are also the calls before them up to the nearest observers, and convolutions
    into which a batch norm of ``names`` was folded.
    """
    layers = {
        node: layer_of(node)
        for node in prepared.graph.nodes
        if node.op == "call_function"
    }
    found = set(names)
    for node in exported.graph.nodes:
        is_folded = follows_layer(node) and node.name not in layers.values()
        if is_folded and node.name in names:
            found.add(node.args[0].name)
    calls = [node for node, layer in layers.items() if layer in found]
    return found | {layers[node] for node in with_joined_calls(calls)}


def is_any_quantized(prepared: GraphModule, names: set[str]) -> bool:
    """Return whether a call takes integers if the calls ``names`` stay in floats.

    ``names``: those of ``calls_in_floats``.
    """
    users: list[Node] = []
    for body in bodies(prepared):
        for observer in observer_calls(body):
            users += observer.users
    return any(
        user.op == "call_function"
        and not leaves_program(user)
        and layer_of(user) not in names
        for user in users
    )


def leave_calls_in_floats(prepared: GraphModule, names: set[str]) -> None:
    """Let calls of a calibrated program compute in floats.

    ``names``: those of ``calls_in_floats``. Raises InputError if nothing is left that
    could be quantized.
    """
    calls = {
        node
        for node in prepared.graph.nodes
        if node.op == "call_function" and layer_of(node) in names
    }
    compute_in_floats(prepared, calls, set())
    if not any(map(observer_calls, bodies(prepared))):
        raise InputError(
            "input-invalid",
            "nothing is quantized: all calls are left in floats",
            hint="select fewer calls in floats=",
        )
