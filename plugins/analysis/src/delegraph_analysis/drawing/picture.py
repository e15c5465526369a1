"""Describe a picture: boxes, and values that lead from one box to others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

HEATS = 4
"""Degrees of ``Box.heat``."""
Kind = Literal["border", "host", "backend", "several", "mixed"]


@dataclass(slots=True)  # frozen ones take four times as long to make
class Box:
    """One rectangle, with its text, tooltip and look.

    The first line of ``lines`` is the title. ``more`` returns the lines after them, and
    ``tooltip`` may be a function, too: in large graphs, most boxes are joined, and only
    drawn ones need their texts. ``kind``: ``border`` is an input or output of the graph,
    ``several`` joins boxes of different owners, and ``mixed`` also delegates. ``tone``
    is the number of the backend, for its color. ``marked``: its operator was refused.
    ``about``: the ids of the page's elements that describe the box and link to it.
    ``link``: the id to which the box links, by default the first of ``about``.
    ``owner`` (a noun) and ``count`` label joined boxes: ``3 host operators``. ``heat``:
    the degree of its error or time, from 1 to ``HEATS``; 0 if unknown.
    """

    lines: tuple[str, ...]
    tooltip: tuple[str, ...] | Callable[[], Iterable[str]] = ()
    kind: Kind = "host"
    tone: int = 0
    marked: bool = False
    link: str = ""
    owner: str = "operator"
    count: int = 1
    heat: int = 0
    about: tuple[str, ...] = ()
    more: Callable[[], Iterable[str]] | None = None

    def shown(self) -> tuple[str, ...]:
        """Return the lines of the box."""
        return (*self.lines, *self.more()) if self.more else self.lines

    def tell(self) -> tuple[str, ...]:
        """Return the lines of its tooltip, by default the lines of the box."""
        tooltip = self.tooltip() if callable(self.tooltip) else self.tooltip
        return tuple(tooltip) or self.shown()


class Wire(NamedTuple):
    """A value: the box that makes it, the boxes that use it, and its label.

    The label may be a function, which is called if the wire is drawn.
    """

    source: int
    targets: tuple[int, ...]
    label: str | Callable[[], str] = ""

    def tell(self) -> str:
        """Return the label."""
        return self.label() if callable(self.label) else self.label


@dataclass(frozen=True)
class Picture:
    """A graph. Every wire leads from a box to boxes that come later in ``boxes``."""

    boxes: Sequence[Box]
    wires: Sequence[Wire]


def layers_of(boxes: int, wires: Sequence[Wire]) -> list[int]:
    """Return the layer of each box: below all boxes that it uses.

    A box that uses nothing, such as an input, is right above its first user.
    """
    layers = [0] * boxes
    has_operands = [False] * boxes
    # each box comes after those that it uses, so their layers are known
    for wire in sorted(wires, key=lambda wire: wire.source):
        for target in wire.targets:
            layers[target] = max(layers[target], layers[wire.source] + 1)
            has_operands[target] = True
    first_users: dict[int, int] = {}
    for wire in wires:
        for target in wire.targets:
            first = first_users.get(wire.source, layers[target])
            first_users[wire.source] = min(first, layers[target])
    for box, first in first_users.items():
        if not has_operands[box]:
            layers[box] = first - 1
    return layers
