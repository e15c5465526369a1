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
    drawn ones need their texts. ``border``: an input or output of the graph.
    ``several``: the box has boxes of different owners, ``mixed``: with delegates among
    them. ``tone`` is the number of the backend, for its color. ``marked``: its operator
    was refused. ``link`` is the id of the page's element with details, by default the
    first of ``about``: the ids of elements that describe the box and lead back to it.
    ``owner`` (a noun) and ``count`` label joined boxes: ``3 host operators``. ``heat``,
    from 1 to ``HEATS``, is the degree of the value's error; 0 if unknown.
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
        return (
            tuple(self.tooltip()) if callable(self.tooltip) else self.tooltip
        ) or self.shown()


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

    A box that uses nothing is right above its first user.
    """
    layers = [0] * boxes
    first = [boxes] * boxes
    sources = {t for w in wires for t in w.targets}
    by_source = sorted(wires, key=lambda w: w.source)
    for wire in by_source:
        for target in wire.targets:
            layers[target] = max(layers[target], layers[wire.source] + 1)
    for wire in by_source:
        first[wire.source] = min(
            [first[wire.source], *(layers[t] for t in wire.targets)]
        )
    used = {w.source for w in wires if w.targets}
    return [
        first[i] - 1 if i in used and i not in sources else layer
        for i, layer in enumerate(layers)
    ]
