"""Laying out boxes in rows from top to bottom, with every wire leading down, in n log n
of boxes and crossed rows.

The steps are those of Sugiyama, Tagawa and Toda (1981): layers, order within them,
coordinates. A wire that crosses a row has a place of its own there, which all uses of
one value share, so that no wire runs through a box.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

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
"""Room for a wire that passes a row."""
_SWEEPS = 2
_STIFF = 1000.0
_LOOSE = 1.0
"""Weights of boxes and of passing wires below the boxes they use: wires give way."""


@dataclass(frozen=True, slots=True)
class Place:
    """A rectangle; x and y are of its upper left corner."""

    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Leg:
    """A section of a wire: from (x1, y1) straight down by ``drop``, to the end of its
    row; then to (x2, y2).

    That is the top of the next row, where a box is if ``end``.
    """

    x1: int
    y1: int
    drop: int
    x2: int
    y2: int
    end: bool


@dataclass(frozen=True)
class Layout:
    """A place for each box, legs for each wire, and the size of the whole."""

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
    """Items in rows: first the boxes by their number, then the passages of wires."""

    boxes: int
    wires: Sequence[Wire]
    rows: list[list[int]] = field(init=False)
    above: list[list[int]] = field(init=False)
    below: list[list[int]] = field(init=False)
    trunks: list[dict[int, int]] = field(init=False)

    def __post_init__(self) -> None:
        self.layers = layers_of(self.boxes, self.wires)
        self.rows = [[] for _ in range(max(self.layers, default=-1) + 1)]
        self.above = [[] for _ in self.layers]
        self.below = [[] for _ in self.layers]
        for i, layer in enumerate(self.layers):
            self.rows[layer].append(i)
        self.trunks = [self._trunk(w) for w in self.wires]

    def _trunk(self, wire: Wire) -> dict[int, int]:
        """Row -> the item at which the wire is there, from its source to the row before
        its last use.
        """
        start = self.layers[wire.source]
        at = {start: wire.source}
        for row in range(
            start + 1, max((self.layers[t] for t in wire.targets), default=0)
        ):
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
        """Sort each row by the mean place of the neighbours above, then below, and so
        on: fewer wires cross.
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
        if len(row) == 1:  # as most rows of a network
            place[row[0]] = 0.0
            return
        wanted = {
            i: sum(place[n] for n in near[i]) / len(near[i]) if near[i] else place[i]
            for i in row
        }
        row.sort(key=wanted.__getitem__)
        for k, item in enumerate(row):
            # from the middle, so that rows of different lengths compare
            place[item] = k - (len(row) - 1) / 2

    def width(self, item: int) -> int:
        return WIDTH if item < self.boxes else _PASSING

    def positions(self) -> list[float]:
        """The middle of each item: near its neighbours, and as far from the next in its
        row as both need.
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
        if len(row) == 1:
            x[row[0]] = self._wanted(row[0], near[row[0]], x)
            return
        wanted = [self._wanted(i, near[i], x) for i in row]
        weights = [
            (_STIFF if i < self.boxes else _LOOSE) if near[i] else 0.1 for i in row
        ]
        for item, middle in zip(
            row, _apart(wanted, weights, [self.width(i) for i in row]), strict=True
        ):
            x[item] = middle

    def _wanted(self, item: int, near: Sequence[int], x: Sequence[float]) -> float:
        """Return the middle of the boxes near an item, or of wires if there are none.

        Boxes come first, so that the main line of a network is straight.
        """
        if len(near) == 1:
            return x[near[0]]
        chosen = [n for n in near if n < self.boxes] or near
        return sum(x[n] for n in chosen) / len(chosen) if chosen else x[item]


def _apart(
    wanted: Sequence[float], weights: Sequence[float], widths: Sequence[int]
) -> Iterator[float]:
    """Yield middles near ``wanted`` (weighted squares) that keep order and distance.

    With each item's offset subtracted this is isotonic regression, by pooling: an item
    beyond the place of the next one shares a mean with it.
    """
    offsets = [0.0]
    for one, other in pairwise(widths):
        offsets.append(offsets[-1] + (one + other) / 2 + BESIDE)
    pools: list[tuple[float, float, int]] = []
    for want, weight, offset in zip(wanted, weights, offsets, strict=True):
        mean = want - offset
        total = weight
        count = 1
        while pools and pools[-1][0] >= mean:
            before, heavy, many = pools.pop()
            mean = (before * heavy + mean * total) / (heavy + total)
            total = heavy + total
            count = many + count
        pools.append((mean, total, count))
    means = [mean for mean, _, count in pools for _ in range(count)]
    return (mean + offset for mean, offset in zip(means, offsets, strict=True))


class _Routes:
    """From positions to whole pixels, and from rows to legs."""

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

        arriving: list[tuple[int, int, float]] = []
        leaving = []
        for number, wire in enumerate(self.wires):
            leaving.append((wire.source, number, self._heading(number)))
            for target in wire.targets:
                passed = grid.trunks[number][grid.layers[target] - 1]
                arriving.append((target, number, self.middle[passed]))
        self.arrivals = _spread(arriving)
        self.departures = _spread(leaving)

    def _heading(self, wire: int) -> float:
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
        """Down the trunk, then from it to each box."""
        source = self.wires[wire].source
        trunk = self.grid.trunks[wire]
        legs = [
            self._leg(wire, row - 1, self.middle[i], False)
            for row, i in trunk.items()
            if i != source
        ]
        for target in self.wires[wire].targets:
            x = self.middle[target] + self.arrivals[target, wire]
            legs.append(self._leg(wire, self.grid.layers[target] - 1, x, True))
        return legs

    def _leg(self, wire: int, row: int, x: int, end: bool) -> Leg:
        """From where the wire is in ``row`` to ``x`` at the top of the next."""
        item = self.grid.trunks[wire][row]
        top = self.tops[row]
        if item >= self.grid.boxes:
            return Leg(
                self.middle[item], top, self.heights[row], x, self.tops[row + 1], end
            )
        height = self.height[item]
        start = self.middle[item] + self.departures[item, wire]
        return Leg(
            start, top + height, self.heights[row] - height, x, self.tops[row + 1], end
        )


def _spread(ends: list[tuple[int, int, float]]) -> dict[tuple[int, int], int]:
    """(Box, wire) -> how far from the box's middle the wire meets it, for (box, wire,
    where it comes from).
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
