"""Lay out boxes in rows from top to bottom, so that every wire leads down.

The steps are those of Sugiyama, Tagawa and Toda (1981): assign boxes to rows (layers),
order each row, and compute coordinates. If a wire crosses a row, it has an item of its
own there, a passage, so that it does not run through a box. All uses of one value share
it. The time is n log n for n boxes and passages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from .picture import Picture, Wire, layers_of

WIDTH = 220
LINE = 15
PADDING = 4
"""Width of a box; height of a line in it; space above and below the lines.

All in pixels.
"""
BESIDE = 18
BELOW = 24
MARGIN = 12
"""Free space between neighbours, between rows, and around the picture."""
_PASSING = 6
"""The width of a passage."""
_SWEEPS = 2
"""How often ordering and aligning go through all rows, in both directions."""
_STIFF = 1000.0
_LOOSE = 1.0
_FREE = 0.1
"""Weights of boxes, of passages, and of items without neighbours.

If items of a row need more room, those of less weight move.
"""


@dataclass(frozen=True, slots=True)
class Place:
    """A rectangle; x and y belong to its upper left corner."""

    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Leg:
    """A section of a wire, from one row to the next.

    It leads from (x1, y1) straight down by ``drop``, to the lower end of the row, then
    to (x2, y2), at the top of the next row. ``end``: a box is there.
    """

    x1: int
    y1: int
    drop: int
    x2: int
    y2: int
    end: bool


@dataclass(frozen=True)
class Layout:
    """A place for each box, legs for each wire (``routes``), and the size of all."""

    places: list[Place]
    routes: list[list[Leg]]
    width: int
    height: int


def lay_out(picture: Picture) -> Layout:
    """Place boxes in rows without overlap; each box is below all boxes that it uses."""
    heights = [2 * PADDING + LINE * len(box.shown()) for box in picture.boxes]
    grid = _Grid(len(heights), picture.wires)
    grid.order()
    return _Routes(heights, grid, grid.positions()).layout()


@dataclass
class _Grid:
    """Items in rows. Items are numbers: first those of boxes, then those of passages."""

    boxes: int
    wires: Sequence[Wire]
    rows: list[list[int]] = field(init=False)
    """The items of each row, from left to right."""
    above: list[list[int]] = field(init=False)
    """The items in the row above to which wires connect each item."""
    below: list[list[int]] = field(init=False)
    """The items in the row below to which wires connect each item."""
    trunks: list[dict[int, int]] = field(init=False)
    """For each wire: row -> its item there, see ``_trunk``."""

    def __post_init__(self) -> None:
        self.layers = layers_of(self.boxes, self.wires)
        self.rows = [[] for _ in range(max(self.layers, default=-1) + 1)]
        self.above = [[] for _ in self.layers]
        self.below = [[] for _ in self.layers]
        for i, layer in enumerate(self.layers):
            self.rows[layer].append(i)
        self.trunks = [self._trunk(w) for w in self.wires]

    def _trunk(self, wire: Wire) -> dict[int, int]:
        """Add the passages of a wire; return row -> its item there.

        The first item is its source, and the last one is in the row before its last use.
        """
        start = self.layers[wire.source]
        last = max((self.layers[target] for target in wire.targets), default=0)
        at = {start: wire.source}
        for row in range(start + 1, last):
            at[row] = len(self.above)
            self.above.append([])
            self.below.append([])
            self.rows[row].append(at[row])
            self._join(at[row - 1], at[row])
        for target in wire.targets:
            self._join(at[self.layers[target] - 1], target)
        return at

    def _join(self, upper: int, lower: int) -> None:
        self.below[upper].append(lower)
        self.above[lower].append(upper)

    def order(self) -> None:
        """Sort each row so that few wires cross: by the mean place of the neighbours.

        These are the neighbours above, then below, and so on.
        """
        place = [0.0] * len(self.above)
        for row in self.rows:
            self._sort(row, self.above, place)
        for _ in range(_SWEEPS):
            for row in reversed(self.rows):
                self._sort(row, self.below, place)
            for row in self.rows:
                self._sort(row, self.above, place)

    def _sort(
        self, row: list[int], near: Sequence[Sequence[int]], place: list[float]
    ) -> None:
        """Sort a row by the mean place of the items in ``near``; update ``place``."""
        if len(row) == 1:  # quick, since most rows of a network have one item
            place[row[0]] = 0.0
            return
        wanted = {}
        for item in row:
            neighbours = [place[other] for other in near[item]]
            wanted[item] = place[item]
            if neighbours:
                wanted[item] = sum(neighbours) / len(neighbours)
        row.sort(key=wanted.__getitem__)
        for k, item in enumerate(row):
            # counted from the middle, since rows have different lengths
            place[item] = k - (len(row) - 1) / 2

    def width(self, item: int) -> int:
        return WIDTH if item < self.boxes else _PASSING

    def positions(self) -> list[float]:
        """Return the x coordinate of each item's middle.

        It is near those of its neighbours, but items of a row do not overlap.
        """
        x = [0.0] * len(self.above)
        for _ in range(_SWEEPS):
            for row in self.rows:
                self._align(row, self.above, x)
            for row in reversed(self.rows):
                self._align(row, self.below, x)
        for row in self.rows:
            self._align(row, self.above, x)
        return x

    def _align(
        self, row: list[int], near: Sequence[Sequence[int]], x: list[float]
    ) -> None:
        """Move the items of a row near those in ``near``; update ``x``."""
        if len(row) == 1:
            x[row[0]] = self._wanted(row[0], near[row[0]], x)
            return
        wanted = []
        weights = []
        for item in row:
            wanted.append(self._wanted(item, near[item], x))
            if not near[item]:
                weights.append(_FREE)
            else:
                weights.append(_STIFF if item < self.boxes else _LOOSE)
        widths = [self.width(item) for item in row]
        for item, middle in zip(row, _apart(wanted, weights, widths), strict=True):
            x[item] = middle

    def _wanted(self, item: int, near: Sequence[int], x: Sequence[float]) -> float:
        """Return the mean x of the boxes in ``near``; without boxes, of the passages.

        Boxes come first, so that the main line of a network is straight.
        """
        if len(near) == 1:
            return x[near[0]]
        chosen = [n for n in near if n < self.boxes] or near
        return sum(x[n] for n in chosen) / len(chosen) if chosen else x[item]


def _apart(
    wanted: Sequence[float], weights: Sequence[float], widths: Sequence[int]
) -> Iterator[float]:
    """Yield middles near ``wanted`` that keep the order of items, and do not overlap.

    They minimize the sum of the weighted squares of the distances to ``wanted``. This is
    isotonic regression by pooling: items that would overlap become a pool, which moves
    as a whole to the weighted mean of their wishes.
    """
    # the distance of each item from the first one if all items touch
    offsets = [0.0]
    for one, other in pairwise(widths):
        offsets.append(offsets[-1] + (one + other) / 2 + BESIDE)
    pools: list[_Pool] = []
    for want, weight, offset in zip(wanted, weights, offsets, strict=True):
        pool = _Pool(want - offset, weight, 1)
        while pools and pools[-1].mean >= pool.mean:
            left = pools.pop()
            total = left.weight + pool.weight
            mean = (left.mean * left.weight + pool.mean * pool.weight) / total
            pool = _Pool(mean, total, left.items + pool.items)
        pools.append(pool)
    means: list[float] = []
    for pool in pools:
        means += [pool.mean] * pool.items
    return (mean + offset for mean, offset in zip(means, offsets, strict=True))


class _Pool(NamedTuple):
    """Items that touch: the mean of ``wanted - offset``, their weight and number."""

    mean: float
    weight: float
    items: int


class _Routes:
    """Turns the positions of items into whole pixels, and wires into legs."""

    def __init__(
        self, heights: Sequence[int], grid: _Grid, middles: Sequence[float]
    ) -> None:
        self.height = heights
        self.grid = grid
        self.wires = grid.wires
        edges = [middle - grid.width(item) / 2 for item, middle in enumerate(middles)]
        left = min(edges, default=0.0) - MARGIN
        self.middle = [round(middle - left) for middle in middles]

        self.heights: list[int] = []
        self.tops = [MARGIN]
        for row in grid.rows:
            boxes = [item for item in row if item < grid.boxes]
            height = max((heights[box] for box in boxes), default=0)
            self.heights.append(height)
            self.tops.append(self.tops[-1] + height + BELOW)

        arriving: list[_End] = []
        leaving: list[_End] = []
        for number, wire in enumerate(self.wires):
            leaving.append(_End(wire.source, number, self._heading(number)))
            for target in wire.targets:
                passed = grid.trunks[number][grid.layers[target] - 1]
                arriving.append(_End(target, number, self.middle[passed]))
        self.arrivals = _spread(arriving)
        self.departures = _spread(leaving)

    def _heading(self, wire: int) -> float:
        """Return the mean x of the items to which a wire leads from its source."""
        items = self.grid.below[self.wires[wire].source]
        if not items:
            return 0.0
        return sum(self.middle[item] for item in items) / len(items)

    def layout(self) -> Layout:
        places = []
        for box, layer in enumerate(self.grid.layers):
            x = self.middle[box] - WIDTH // 2
            places.append(Place(x, self.tops[layer], WIDTH, self.height[box]))
        routes = [self._legs(wire) for wire in range(len(self.wires))]
        ends = [place.x + place.width for place in places]
        ends += self.middle[self.grid.boxes :]
        width = max(ends, default=0) + MARGIN
        height = self.tops[-1] - BELOW + MARGIN
        return Layout(places, routes, width, height)

    def _legs(self, wire: int) -> list[Leg]:
        """Return the legs of a wire: down its passages, then from them to each box."""
        source = self.wires[wire].source
        legs = []
        for row, item in self.grid.trunks[wire].items():
            if item != source:
                legs.append(self._leg(wire, row - 1, self.middle[item], end=False))
        for target in self.wires[wire].targets:
            x = self.middle[target] + self.arrivals[target, wire]
            row = self.grid.layers[target] - 1
            legs.append(self._leg(wire, row, x, end=True))
        return legs

    def _leg(self, wire: int, row: int, x: int, end: bool) -> Leg:
        """Return the leg from a wire's item in ``row`` to ``x`` at the next row's top."""
        item = self.grid.trunks[wire][row]
        start = self.middle[item]
        height = 0  # of a passage
        if item < self.grid.boxes:
            height = self.height[item]
            start += self.departures[item, wire]
        drop = self.heights[row] - height
        return Leg(start, self.tops[row] + height, drop, x, self.tops[row + 1], end)


class _End(NamedTuple):
    """An end of a wire at a box, and the x from which the wire comes."""

    box: int
    wire: int
    x: float


def _spread(ends: list[_End]) -> dict[tuple[int, int], int]:
    """Return (box, wire) -> how far right of the box's middle the wire meets the box.

    Wires of one box are spread in the order of the x from which they come.
    """
    by_box: dict[int, list[tuple[float, int]]] = {}
    for box, wire, x in ends:
        by_box.setdefault(box, []).append((x, wire))
    shares = {}
    for box, wires in by_box.items():
        step = min(24, (WIDTH - 40) // len(wires))
        for k, (_, wire) in enumerate(sorted(wires)):
            shares[box, wire] = round((k - (len(wires) - 1) / 2) * step)
    return shares
