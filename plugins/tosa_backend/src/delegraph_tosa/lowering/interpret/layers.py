"""Equal layers of a program: which calls they are, and the program with three of them in place of all.

A layer is lowered for what it reads: types of values, attributes, and which values are constants. So layers that do
the same with constants of the same types lower to the same operators. ``layers_of`` finds them in the program, where
comparing two calls takes a fiftieth of the time of a rule and the passes. Of what it finds, the first layer is lowered
(it reads what comes before), the second and the last (what comes after reads it). Between these two,
``delegraph_tosa.repeated`` puts copies of the second, once the passes are done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from operator import eq
from typing import Any, NamedTuple

import torch
from delegraph.exported import WITHIN
from delegraph.exported_program import constant_placeholders, written_values
from torch.export import ExportedProgram
from torch.fx import Node

from ...ir.graph import Value
from ..ranges.carried import CARRIED
from .interpreter import constants_of, returned_nodes

LEAST = 5
"""The fewest layers of which copies are made: with fewer, looking for them costs what it saves."""
_RUN = 6
"""How many calls in a row make a place in the program that is recognized where it comes again."""
_STEP = 7
"""At every so manieth call the way to the next equal place is measured; a prime, so that all parts of layers count."""
_MOVED = frozenset({torch.float32, torch.float16, torch.bfloat16, torch.bool})
"""Element types of what a layer computes: of them a rule reads the type alone, of integers also the range."""


class Layers(NamedTuple):
    """A stretch of a program's calls that does the same, ``times`` times, in ``period`` calls each."""

    calls: list[Node]
    """All calls of the program, in their order."""
    start: int
    """Where in ``calls`` the first layer begins."""
    period: int
    times: int
    own: list[dict[Node, Node]]
    """For each layer, the placeholders that only the second one reads -> those that this one reads in their place."""
    returned: list[Node]
    """What the program returns; of each layer but the first the same calls, or only of the last one."""

    def layer(self, number: int) -> list[Node]:
        """The calls of one layer."""
        begin = self.start + number * self.period
        return self.calls[begin : begin + self.period]

    def left_out(self) -> dict[Node, Node | None]:
        """The calls of all layers but the first, the second and the last -> what the last layer reads in their place.

        That is the same call of the second layer.
        """
        nodes = self.calls[self.start + 2 * self.period : self.start + (self.times - 1) * self.period]
        stand_ins = zip(self.layer(self.times - 2), self.layer(1), strict=True)
        return {**dict.fromkeys(nodes), **dict(stand_ins)}


def layers_of(program: ExportedProgram) -> Layers | None:
    """The equal layers of ``program``; None if it has too few, or if they differ in more than their constants."""
    if program.range_constraints or written_values(program):
        return None
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    found = _stretch(calls)
    if found is None:
        return None
    start, period, count = found
    layers = Layers(calls, start, period, count, [{}], returned_nodes(program))
    index = {node: position for position, node in enumerate(calls)}
    # what follows reads the last layer alone
    before_last = start + (count - 1) * period
    for node in calls[start + count * period :]:
        for operand in node.all_input_nodes:
            if start <= index.get(operand, -1) < before_last:
                return None
    pattern = _Pattern(layers, index)
    if not pattern.is_usable or not _return_alike(layers, index):
        return None
    for number in range(1, count):
        mapping = pattern.placeholders_of(number)
        if mapping is None or mapping.keys() != pattern.own:
            return None
        layers.own.append(mapping)
    own = [node for mapping in layers.own for node in mapping.values()]
    constant = constant_placeholders(program)
    is_usable = all(node in constant or _is_plain_input(node) for node in own)
    return layers if len(own) == len(set(own)) and is_usable else None


def _return_alike(layers: Layers, index: dict[Node, int]) -> bool:
    """Whether the program returns the same calls of each layer but the first, each once, or those of the last alone."""
    returned: list[list[int]] = [[] for _ in range(layers.times)]
    for node in layers.returned:
        layer, position = divmod(index.get(node, -1) - layers.start, layers.period)
        if 0 <= layer < layers.times:
            returned[layer].append(position)
    _, second, *others, _ = returned
    if any(sorted(positions) != sorted(second) for positions in others) or len(second) != len(set(second)):
        return False
    return not second or sorted(returned[-1]) == sorted(second)


def _is_plain_input(node: Node) -> bool:
    """Whether rules read nothing of an input but its type."""
    return WITHIN not in node.meta and CARRIED not in node.meta and _is_moved(node.meta["val"])


def _stretch(calls: list[Node]) -> tuple[int, int, int] | None:
    """(start, period, count) of the longest stretch of ``calls`` whose operators repeat."""
    letters: dict[int, str] = {}
    text = "".join([letters.setdefault(id(node.target), chr(len(letters))) for node in calls])
    places = range(0, len(text) - _RUN, _STEP)
    gaps = Counter([text.find(text[place : place + _RUN], place + 1) - place for place in places])
    best = None
    for period, _ in gaps.most_common(3):
        if period <= 0:
            continue
        # the longest range in which each call has the operator of the call one period later
        begin = 0
        for same in bytes(map(eq, text, text[period:])).split(b"\0"):
            count = len(same) // period + 1
            if count >= LEAST and (best is None or count * period > best[1] * best[2]):
                best = begin, period, count
            begin += len(same) + 1
    return best


class _Pattern:
    """What the second layer reads, to be compared with the others."""

    def __init__(self, layers: Layers, index: dict[Node, int]) -> None:
        self._layers, self._index = layers, index
        self._begin = begin = layers.start + layers.period
        second = layers.layer(1)
        end = begin + layers.period
        # for each call the leaves of its arguments: the positions of calls of this layer and the one before, else what
        # the leaves are
        self._leaves: list[list[Any]] = []
        for node in second:
            leaves = _leaves_of(node)
            places = [index.get(leaf, -1) if isinstance(leaf, Node) else -1 for leaf in leaves]
            self._leaves.append([_Inside(p) if p >= layers.start else x for p, x in zip(places, leaves, strict=True)])
        self.own = {n for leaves in self._leaves for n in leaves if isinstance(n, Node) and n.op == "placeholder"
                    and all(begin <= index.get(user, -1) < end for user in n.users)}  # fmt: skip
        """Placeholders that only the second layer reads."""
        self.is_usable = all(_is_moved(node.meta.get("val")) for node in second)

    def placeholders_of(self, number: int) -> dict[Node, Node] | None:
        """Placeholder that only the second layer reads -> what layer ``number`` reads there; None if layers differ."""
        index, own, shift = self._index, self.own, (number - 1) * self._layers.period
        placeholders: dict[Node, Node] = {}
        for leaves, node in zip(self._leaves, self._layers.layer(number), strict=True):
            found = _leaves_of(node)
            if len(found) != len(leaves):
                return None
            for mine, its in zip(leaves, found, strict=True):
                if type(mine) is _Inside:
                    if index.get(its, -1) != mine + shift:
                        return None
                elif mine is its and mine not in own:
                    pass
                elif isinstance(mine, Node):
                    if mine not in own or placeholders.setdefault(mine, its) is not its:
                        return None
                elif type(mine) is not type(its) or repr(mine) != repr(its):
                    return None
        are_alike = all(_are_alike(mine, its) for mine, its in placeholders.items())
        return placeholders if are_alike else None


class _Inside(int):
    """The position of a call of the second layer or the one before."""


def _leaves_of(node: Node) -> list[Any]:
    """What the arguments of a call are, and what they have in their lists, with the lengths of these."""
    leaves: list[Any] = []
    _add_leaves(node.args, leaves)
    if node.kwargs:
        _add_leaves(tuple(node.kwargs.items()), leaves)
    return leaves


def _add_leaves(argument: Any, leaves: list[Any]) -> None:
    for part in argument:
        if isinstance(part, (list, tuple)):
            leaves.append(len(part))
            _add_leaves(part, leaves)
        else:
            leaves.append(part)


def _is_moved(val: Any) -> bool:
    """Whether what a call computes has element types of which rules read the type alone."""
    if isinstance(val, (list, tuple)):
        return all(map(_is_moved, val))
    return isinstance(val, torch.Tensor) and val.dtype in _MOVED


def _are_alike(mine: Node, its: Any) -> bool:
    """Whether two placeholders have the same type and number of users."""
    if not isinstance(its, Node) or its.op != "placeholder":
        return False
    a, b = mine.meta["val"], its.meta["val"]
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor) or len(mine.users) != len(its.users):
        return False
    return a.shape == b.shape and a.dtype is b.dtype and a.stride() == b.stride()


class Constants(NamedTuple):
    """The constants of a program with equal layers."""

    value: Callable[[Node], Value | None]
    """The value of a constant placeholder, and None for other nodes."""
    own: list[dict[Value, Value]]
    """For each layer, the constants that only the second one reads -> those of this layer."""
    inputs: list[dict[str, str]]
    """The same for inputs, which have names."""


def constants_of_layers(program: ExportedProgram, layers: Layers) -> Constants | None:
    """The constants of ``program``; None if two layers share the memory of what each has for itself.

    Raises Unsupported for a constant whose elements cannot be read.
    """
    value = constants_of(program)
    placeholders = {node for mapping in layers.own for node in mapping.values()}
    own: list[dict[Value, Value]] = []
    inputs: list[dict[str, str]] = []
    for mapping in layers.own:
        pairs = [(node, its, value(node), value(its)) for node, its in mapping.items()]
        inputs.append({node.name: its.name for node, its, mine, _ in pairs if mine is None})
        own.append({mine: other for _, _, mine, other in pairs if mine is not None and other is not None})
        if len(own[-1]) + len(inputs[-1]) != len(mapping):
            return None
    found = [v for mapping in own for v in mapping.values()]
    others = [value(node) for node in program.graph.find_nodes(op="placeholder") if node not in placeholders]
    if len(set(found)) != len(found) or not set(found).isdisjoint(others):
        return None
    return Constants(value, own, inputs)
