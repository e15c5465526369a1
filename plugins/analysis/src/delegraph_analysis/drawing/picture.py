"""What a picture shows: boxes, and values that lead from one box to others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

HEATS = 4
"""Degrees of ``Box.heat``."""
Kind = Literal["border", "host", "backend", "several", "mixed"]


@dataclass(slots=True)  # frozen ones take four times as long to make
class Box:
    """One rectangle: its lines, of which the first is its title, the lines of its
    tooltip, and how it looks.

    ``more`` makes the lines after those in ``lines``, and ``tooltip`` may be a function
    too: most boxes of a large graph are joined to others, and only of those that are
    drawn the words are needed. ``border`` is an input or output of the graph;
    ``several`` holds boxes of different owners, and ``mixed`` has delegates among them.
    ``tone`` numbers the backend, for its colour. A ``marked`` box is one to look at:
    its operator was refused. ``link`` is the id of the element of the page that tells
    more; without one it is the first of ``about``, the ids of the elements that tell
    about the box and can lead back to it. ``owner`` (a noun) and ``count`` say what the
    box stands for when several are drawn as one: ``3 host operators``. ``heat``, from 1
    to ``HEATS``, colours it by how wrong its value is; 0 is not known.
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
        """The lines in it."""
        return (*self.lines, *self.more()) if self.more else self.lines

    def tell(self) -> tuple[str, ...]:
        """The lines of its tooltip; those in it if it has no others."""
        return (
            tuple(self.tooltip()) if callable(self.tooltip) else self.tooltip
        ) or self.shown()


class Wire(NamedTuple):
    """A value: the box that makes it, the boxes that use it, and what is said of it, or
    what says it if it is drawn.
    """

    source: int
    targets: tuple[int, ...]
    label: str | Callable[[], str] = ""

    def tell(self) -> str:
        """What is said of it."""
        return self.label() if callable(self.label) else self.label


@dataclass(frozen=True)
class Picture:
    """A graph. Every wire leads from a box to boxes that come later in ``boxes``."""

    boxes: Sequence[Box]
    wires: Sequence[Wire]


def layers_of(boxes: int, wires: Sequence[Wire]) -> list[int]:
    """The layer of each of so many boxes: below all it uses. What uses nothing stands
    right above what uses it.
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
