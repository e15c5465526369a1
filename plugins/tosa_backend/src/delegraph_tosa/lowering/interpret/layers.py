"""Equal layers of a program: which calls they are, and the program with three of them in place of all.

A layer is lowered for what it reads: types of values, attributes, and which values are constants. So layers that do
the same with constants of the same types lower to the same operators. ``layers_of`` finds them in the program, where
comparing two calls takes a fiftieth of the time of a rule and the passes. Of what it finds, the first layer is lowered
(it reads what comes before), the second and the last (what comes after reads it). Between these two,
``delegraph_tosa.repeated`` puts copies of the second, once the passes are done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from operator import eq
from typing import Any, NamedTuple

import torch
from delegraph.exported import WITHIN
from delegraph.exported_program import constant_placeholders, written_values
from torch.export import ExportedProgram
from torch.fx import Node

from ...ir.graph import Value
from ..ranges.carried import CARRIED
from .interpreter import LeftOut, constants_of, returned_nodes
from .saturation import saturates

aten = torch.ops.aten

LEAST = 5
"""The fewest layers of which copies are made: with fewer, looking for them costs what it saves."""
_RUN = 6
"""How many calls in a row make a place in the program that is recognized where it comes again."""
_STEP = 7
"""At every so manieth call the way to the next equal place is measured; a prime, so that all parts of layers count."""
_MOVED = frozenset({torch.float32, torch.float16, torch.bfloat16, torch.bool})
"""Element types of what may go from layer to layer: of them a rule reads the type alone, of integers also the range."""
_INSIDE = _MOVED | {torch.int8, torch.int16, torch.int32, torch.int64}
"""Element types of what a layer computes for itself: its integers have equal ranges in all layers."""


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
    before: list[list[Node]]
    """For each layer, the calls before all layers that only this one reads, the same ones in the same order.

    The list of the first layer is empty."""
    passed: list[int]
    """The positions of what a layer passes to the next one."""
    returned: list[Node]
    """What the program returns; of each layer but the first the same calls, or only of the last one."""

    def layer(self, number: int) -> list[Node]:
        """The calls of one layer; -1 is the last."""
        begin = self.start + number % self.times * self.period
        return self.calls[begin : begin + self.period]

    def left_out(self) -> LeftOut:
        """The calls of all layers but the first, the second and the last.

        What the last layer reads in their place is the same call of the second layer.
        """
        nodes = self.calls[self.start + 2 * self.period : self.start + (self.times - 1) * self.period]
        nodes += [node for calls in self.before[2:-1] for node in calls]
        stand_ins = zip(self.layer(self.times - 2), self.layer(1), strict=True)
        # a layer that computes integers has their ranges
        has_integers = not all(_is_moved(node.meta.get("val")) for node in (*self.layer(1), *self.before[1]))
        return LeftOut({**dict.fromkeys(nodes), **dict(stand_ins)}, has_integers)


def layers_of(program: ExportedProgram) -> Layers | None:
    """The equal layers of ``program``; None if it has too few, or if they differ in more than their constants."""
    if program.range_constraints or written_values(program):
        return None
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    found = _stretch(calls)
    if found is None or saturates(calls):
        return None
    start, period, count = found
    index = {node: position for position, node in enumerate(calls)}
    layers = Layers(calls, start, period, count, [{}], [[]], [], returned_nodes(program))
    pattern = _Pattern(layers, index)
    if not pattern.is_usable or not _leaves_alone(layers, index) or not _return_alike(layers, index):
        return None
    for number in range(1, count):
        alone = pattern.read_alone(number)
        if alone is None or alone[0].keys() != pattern.own:
            return None
        layers.own.append(alone[0])
        layers.before.append(alone[1])
    layers.passed.extend(pattern.passed)
    own = [node for mapping in layers.own for node in mapping.values()]
    constant = constant_placeholders(program)
    is_usable = all(node in constant or _is_plain_input(node) for node in own)
    return layers if is_usable and len(own) == len(set(own)) else None


def _leaves_alone(layers: Layers, index: dict[Node, int]) -> bool:
    """Whether what follows the layers reads the last one alone, and none of its integers."""
    begin, last = layers.start, layers.start + (layers.times - 1) * layers.period
    end = last + layers.period
    for node in layers.calls[end:]:
        for operand in node.all_input_nodes:
            place = index.get(operand, -1)
            if begin <= place < end and (place < last or not _is_moved(operand.meta["val"])):
                return False
    return True


def _return_alike(layers: Layers, index: dict[Node, int]) -> bool:
    """Whether the program returns the same calls of each layer but the first, each once, or those of the last alone.

    And no integers.
    """
    returned: list[list[int]] = [[] for _ in range(layers.times)]
    for node in layers.returned:
        layer, position = divmod(index.get(node, -1) - layers.start, layers.period)
        if 0 <= layer < layers.times:
            if not _is_moved(node.meta["val"]):
                return False
            returned[layer].append(position)
    _, second, *others, last = returned
    if any(sorted(positions) != sorted(second) for positions in others) or len(second) != len(set(second)):
        return False
    return not second or sorted(last) == sorted(second)


def _is_plain_input(node: Node) -> bool:
    """Whether rules read nothing of an input but its type."""
    return WITHIN not in node.meta and CARRIED not in node.meta and _is_moved(node.meta["val"])


def _stretch(calls: list[Node]) -> tuple[int, int, int] | None:
    """(start, period, count) of the longest stretch of ``calls`` whose operators repeat."""
    operators = [id(node.target) for node in calls]
    letters = {operator: chr(k) for k, operator in enumerate(dict.fromkeys(operators))}
    text = "".join(map(letters.__getitem__, operators))
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


_SAME = frozenset({aten.clone.default, aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default})
"""Operators whose result is their operand."""


def _root(node: Node) -> Node:
    """The node of which ``node`` is a clone, or a clone of one, and so on; else itself."""
    while node.target in _SAME and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


class _Pattern:
    """What the second layer reads, to be compared with the others.

    The arguments of all calls of a layer are one list, in which each layer has the same things in the same places:
    thousands of calls are compared, and lists are compared without a step of Python for each element.
    """

    def __init__(self, layers: Layers, index: dict[Node, int]) -> None:
        self._layers, self._index = layers, index
        begin = layers.start + layers.period
        second = layers.layer(1)
        end = begin + layers.period
        read = {node for node in second for node in node.all_input_nodes}
        outside = {node: _root(node) for node in read if index.get(node, -1) < layers.start}
        self.own = {
            root
            for root in outside.values()
            if root.op == "placeholder" and all(begin <= place < end for place in self._uses(root))
        }
        """Placeholders that only the second layer reads, perhaps by clones that are made before all layers."""
        self._roots = {node: root if root in self.own else node for node, root in outside.items()}
        self._alone: set[Node] = set()
        """Calls before all layers that only the second layer reads, perhaps by others of them."""
        for node in reversed(layers.calls[: layers.start]):
            places = [place for user in node.users for place in [index.get(user, -1)] if user not in self._alone]
            if node.users and all(begin <= place < end for place in places) and _root(node) not in self.own:
                self._alone.add(node)
        passed = [node for node in read if layers.start <= index.get(node, -1) < begin]
        self.passed = sorted(index[node] - layers.start for node in passed)
        """The positions of what the second layer reads of the first."""
        self._sort(second)
        self._integers = [k for k, node in enumerate(second) if not _is_moved(node.meta.get("val"))]
        self._carried = [second[k].meta.get(CARRIED) for k in self._integers]
        self.is_usable = all(_is_moved(node.meta.get("val")) for node in passed) and all(
            _is_moved(second[k].meta.get("val"), _INSIDE) for k in self._integers
        )

    def _uses(self, node: Node) -> Iterator[int]:
        """The places of the calls that read ``node`` or a clone of it that is made before all layers."""
        for user in node.users:
            place = self._index.get(user, -1)
            if user.target in _SAME and 0 <= place < self._layers.start:
                yield from self._uses(user)
            else:
                yield place

    def _sort(self, second: list[Node]) -> None:
        """Sort the arguments of the second layer's calls by what they are compared with."""
        self._lengths, arguments = _arguments_in(second)
        self._inside: list[int] = []
        """Positions in the list of arguments, of calls of this layer and the one before."""
        self._calls: list[int] = []
        """The places of these calls."""
        self._outside: list[tuple[int, Node]] = []
        """(position, node) of what is computed before all layers."""
        self._lists: list[tuple[int, int]] = []
        """(position, length) of lists with nodes, whose elements are put behind all arguments."""
        self._others: list[int] = []
        """Positions of what is no node."""
        for k, argument in enumerate(arguments):  # which grows
            if isinstance(argument, Node):
                place = self._index.get(argument, -1)
                if place < self._layers.start:
                    self._outside.append((k, argument))
                else:
                    self._inside.append(k)
                    self._calls.append(place)
            elif isinstance(argument, (list, tuple)) and any(isinstance(x, (Node, list, tuple)) for x in argument):
                self._lists.append((k, len(argument)))
                arguments += argument
            else:
                self._others.append(k)
        self._text = self._text_of(arguments)

    def _text_of(self, arguments: list[Any]) -> str:
        """What is no node, as text: 0.0 and -0.0 are equal numbers, and so are 1 and True."""
        return repr([arguments[k] for k in self._others])

    def read_alone(self, number: int) -> tuple[dict[Node, Node], list[Node]] | None:
        """What layer ``number`` reads alone; None if it differs from the second layer.

        That are placeholders, as placeholder that only the second layer reads -> what this one reads in its place, and
        calls before all layers, in the order in which the second layer reads its own.
        """
        placeholders: dict[Node, Node] = {}
        alike: dict[Node, Node] = {}
        calls = self._layers.layer(number)
        lengths, arguments = _arguments_in(calls)
        shift = (number - 1) * self._layers.period
        if lengths != self._lengths or not self._are_equal(arguments, shift, placeholders, alike):
            return None
        if self._integers and [calls[k].meta.get(CARRIED) for k in self._integers] != self._carried:
            return None
        # types are compared with the constants
        if not all(its.op == "placeholder" and len(mine.users) == len(its.users) for mine, its in placeholders.items()):
            return None
        return (placeholders, list(alike.values())) if self._are_alone(alike, number) else None

    def _are_alone(self, alike: dict[Node, Node], number: int) -> bool:
        """Whether the calls before all layers to which ``alike`` maps those of the second are read by this layer alone.

        And all calls that the second layer reads alone are among them.
        """
        begin = self._layers.start + number * self._layers.period
        its = set(alike.values())
        for node in its:
            for user in node.users:
                if user not in its and not begin <= self._index.get(user, -1) < begin + self._layers.period:
                    return False
        return len(its) == len(alike) and alike.keys() == self._alone

    def _are_equal(
        self, arguments: list[Any], shift: int, placeholders: dict[Node, Node], alike: dict[Node, Node]
    ) -> bool:
        """Whether the calls of another layer have ``arguments`` in the place of those of the second layer.

        ``shift``: how far the calls of that layer are behind. ``placeholders`` and ``alike`` are filled: placeholders
        and calls before all layers that the second layer reads -> what that layer reads.
        """
        for k, length in self._lists:
            its = arguments[k]
            if not isinstance(its, (list, tuple)) or len(its) != length:
                return False
            arguments += its
        read = [arguments[k] for k in self._inside]
        # what is no node may not be hashable
        if {*map(type, read)} - {Node} or [*map(self._index.get, read)] != [place + shift for place in self._calls]:
            return False
        if self._text_of(arguments) != self._text:
            return False
        for k, node in self._outside:
            its, root = arguments[k], self._roots[node]
            if root in self.own:
                if not isinstance(its, Node) or placeholders.setdefault(root, other := _root(its)) is not other:
                    return False
            elif not self._are_computed_alike(node, its, alike):
                return False
        return True

    def _are_computed_alike(self, mine: Any, its: Any, alike: dict[Node, Node]) -> bool:
        """Whether two values from outside of the layers are one, or the same calls of the same values.

        Such calls, of which only one layer reads the result, are added to ``alike``.
        """
        if not isinstance(mine, Node):
            return type(mine) is type(its) and repr(mine) == repr(its)
        if not isinstance(its, Node):
            return False
        if mine in self._alone:
            if mine in alike:
                return alike[mine] is its
            if mine.target is not its.target or not 0 <= self._index.get(its, -1) < self._layers.start:
                return False
            left, right = _arguments_of(mine), _arguments_of(its)
            alike[mine] = its
            return len(left) == len(right) and all(
                self._are_computed_alike(*pair, alike) for pair in zip(left, right, strict=True)
            )
        return mine is its


def _arguments_in(calls: list[Node]) -> tuple[list[int], list[Any]]:
    """How many arguments each of ``calls`` has, and the arguments of all, one call after the other."""
    rows = [node.args for node in calls]
    for k, named in enumerate([node.kwargs for node in calls]):
        if named:
            rows[k] = (*rows[k], *named, *named.values())
    return [*map(len, rows)], [*chain.from_iterable(rows)]


def _arguments_of(node: Node) -> Any:
    """The arguments of a call, with those that it has by name behind."""
    named = node.kwargs  # a property, which is asked once
    return (*node.args, *named, *named.values()) if named else node.args


def _is_moved(val: Any, dtypes: frozenset[torch.dtype] = _MOVED) -> bool:
    """Whether what a call computes has only element types among ``dtypes``."""
    if isinstance(val, (list, tuple)):
        return all(_is_moved(one, dtypes) for one in val)
    return isinstance(val, torch.Tensor) and val.dtype in dtypes


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
    own: list[dict[Value, Value]] = [{}]
    inputs: list[dict[str, str]] = [{}]
    for mapping in layers.own[1:]:
        pairs = [(node, its, value(node), value(its)) for node, its in mapping.items()]
        inputs.append({node.name: its.name for node, its, mine, _ in pairs if mine is None})
        own.append({mine: other for _, _, mine, other in pairs if mine is not None and other is not None})
        are_alike = all(a.type == b.type for a, b in own[-1].items())
        are_inputs_alike = all(_type(node) == _type(its) for node, its, mine, _ in pairs if mine is None)
        if not are_alike or not are_inputs_alike or len(own[-1]) + len(inputs[-1]) != len(mapping):
            return None
    found = [v for mapping in own for v in mapping.values()]
    others = [value(node) for node in program.graph.find_nodes(op="placeholder") if node not in placeholders]
    if len(set(found)) != len(found) or not set(found).isdisjoint(others):
        return None
    return Constants(value, own, inputs)


def _type(node: Node) -> tuple[torch.Size, torch.dtype]:
    return node.meta["val"].shape, node.meta["val"].dtype
