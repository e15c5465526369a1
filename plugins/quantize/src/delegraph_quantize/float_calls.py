"""Calls that stay in floats: where they come from, and how a user selects them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import PurePath
from typing import Any, NamedTuple

from delegraph.errors import InputError, OptionError
from delegraph_programs import Source, source_of
from torch._ops import OpOverload, OpOverloadPacket
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from .unscaled import bodies, compute_in_floats, observer_calls

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

    @property
    def selector(self) -> str:
        """Return the text that selects this call, and its neighbours in the code.

        That is the module if it is one of torch's, else the line, else the name.
        """
        if self.of_torch and self.module:
            return self.module
        return self.line or self.name

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


def select(places: Mapping[str, CallPlace], selectors: Sequence[Any]) -> set[str]:
    """Return the names of the calls that ``selectors`` select.

    Raises OptionError for a selector without calls.
    """
    chosen = set[str]()
    for selector in selectors:
        text = _text_of(selector)
        found = {name for name, place in places.items() if place.is_selected(text)}
        if not found:
            raise _no_call(text, places.values())
        chosen |= found
    return chosen


def _text_of(selector: Any) -> str:
    if isinstance(selector, (OpOverload, OpOverloadPacket)):
        return str(selector)
    if isinstance(selector, str) and selector:
        return selector
    raise OptionError(
        "option-invalid",
        f"floats has {selector!r}; its items are operators such as"
        " torch.ops.aten.log.default, lines, modules or names of calls",
    )


def _no_call(text: str, places: Iterable[CallPlace]) -> OptionError:
    known = dict[str, None]()
    for place in places:
        names = (place.operator, place.line, place.module, place.name)
        known.update(dict.fromkeys(filter(None, names)))
    near = get_close_matches(text, list(known), n=3, cutoff=0.3)
    shown = f"; near it: {', '.join(near)}" if near else ""
    return OptionError(
        "option-invalid", f"floats: no call of the program is {text!r}{shown}"
    )


def layer_of(node: Node) -> str:
    """Return the name that a call of a prepared program has in the exported one.

    Parts of an operator that a quantizer wrote out belong to its last part, which has
    the name. "" for calls of no name.
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


def leave_calls_in_floats(prepared: GraphModule, names: set[str]) -> None:
    """Let calls of a calibrated program compute in floats.

    ``names``: their names in the exported program. Raises InputError if nothing is left
    that could be quantized.
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
