"""Making large pictures smaller: stretches of the graph become one box each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from .picture import Box, Kind, Picture, Wire, layers_of

LARGEST = 1000
"""Boxes that are drawn one by one."""
STRETCHES = 300
"""Boxes of a picture that was condensed into stretches."""
SMALL = 40
"""Boxes of a picture that needs no overview."""
_ISLANDS = 60
"""Boxes that an overview draws apart from each other only because no wire joins them.
"""
_ENDS = 4
"""Inputs that an overview draws one by one, and outputs."""
_OWNERS = 4
"""Owners that the box of several others names."""
_CROSSED = 6
"""Wires that cross a layer, for each box, which are still drawn."""


def condense(picture: Picture) -> tuple[Picture, str]:
    """Return the picture, small enough to draw, and a note about the omitted parts.

    The note is "" if the picture is complete.
    """
    if _fits(picture, LARGEST):
        return picture, ""
    size = 1
    while True:
        size = max(2 * size, len(picture.boxes) // STRETCHES)
        groups = _stretches(picture.boxes, size)
        if len(set(groups)) > 2 * STRETCHES:
            continue
        small = _merge(picture, groups)
        if _fits(small, 2 * STRETCHES):
            how = f"stretches of up to {size:,} operators are one box each"
            return (
                small,
                (
                    f"Condensed from {len(picture.boxes):,} boxes to"
                    f" {len(small.boxes):,}: {how}."
                ),
            )


def overview(picture: Picture) -> Picture | None:
    """Delegates one by one, and one box for all that the host computes between them;
    None where that leaves as much.

    Boxes of the host are joined where as many delegates come before them, on the
    longest path: no wire leads up then.
    """
    orders = _orders(picture)
    groups = _islands(picture, orders)
    if len(set(groups)) > _ISLANDS + sum(
        box.kind == "backend" for box in picture.boxes
    ):
        groups = [
            i if picture.boxes[i].kind == "backend" else -order
            for i, order in enumerate(orders)
        ]
    small = _merge(picture, groups, dict(zip(groups, orders, strict=True)).__getitem__)
    return (
        small
        if len(picture.boxes) > SMALL and len(small.boxes) < len(picture.boxes)
        else None
    )


def _orders(picture: Picture) -> list[int]:
    """A number for each box that no wire lowers: inputs, host, delegates, host below
    those, and so on, outputs.
    """
    above = [0] * len(picture.boxes)  # delegates on the longest path to each box
    for wire in sorted(picture.wires, key=lambda w: w.source):
        passed = above[wire.source] + (picture.boxes[wire.source].kind == "backend")
        for target in wire.targets:
            above[target] = max(above[target], passed)
    ends = {"input": 1, "output": 2 * len(above) + 4}
    orders = [
        2 * depth + 2 + (box.kind == "backend")
        for depth, box in zip(above, picture.boxes, strict=True)
    ]
    return [
        ends.get(box.owner, order)
        for box, order in zip(picture.boxes, orders, strict=True)
    ]


def _islands(picture: Picture, orders: Sequence[int]) -> list[int]:
    """The group of each box: those of one order that wires join, inputs and outputs
    where they are many.
    """
    groups = list(range(len(picture.boxes)))

    def root(i: int) -> int:
        while groups[i] != i:
            groups[i] = i = groups[groups[i]]
        return i

    for wire in picture.wires:
        for target in wire.targets:
            if orders[wire.source] == orders[target]:
                groups[root(target)] = root(wire.source)
    for end in ("input", "output"):
        ends = [i for i, box in enumerate(picture.boxes) if box.owner == end]
        for i in ends[1:] if len(ends) > _ENDS else ():
            groups[i] = ends[0]
    return [root(i) for i in range(len(groups))]


def _fits(picture: Picture, largest: int) -> bool:
    """Whether boxes, wires, and the layers that wires cross, are few enough for a page."""
    if len(picture.boxes) > largest:
        return False
    layers = layers_of(len(picture.boxes), picture.wires)
    crossed = sum(
        max([layers[w.source], *(layers[t] for t in w.targets)]) - layers[w.source]
        for w in picture.wires
    )
    return crossed + sum(len(w.targets) for w in picture.wires) <= _CROSSED * largest


def _stretches(boxes: Sequence[Box], size: int) -> list[int]:
    """The group of each box: ``size`` boxes in order are one.

    Inputs and outputs do not mix with calls.
    """
    groups: list[int] = []
    start = 0
    for i, box in enumerate(boxes):
        border = box.kind == "border"
        # single inputs and outputs tell more than calls do, so they are joined only
        # where short stretches did not do
        if (
            i - start >= size
            or border != (boxes[start].kind == "border")
            or (border and size < 8)
        ):
            start = i
        groups.append(start)
    return groups


def _merge(
    picture: Picture, groups: Sequence[int], order: Callable[[int], int] = lambda _: 0
) -> Picture:
    """A picture with a box for each group, in the order of their first boxes or first
    of all in ``order``.
    """
    members: dict[int, list[Box]] = {}
    for group, box in zip(groups, picture.boxes, strict=True):
        members.setdefault(group, []).append(box)
    members = {group: members[group] for group in sorted(members, key=order)}
    place = {group: k for k, group in enumerate(members)}
    leaving: dict[int, tuple[dict[int, None], list[Wire]]] = {}
    for wire in picture.wires:
        source = place[groups[wire.source]]
        ends = [end for t in wire.targets if (end := place[groups[t]]) != source]
        if ends:
            targets, joined = leaving.setdefault(source, ({}, []))
            targets.update(dict.fromkeys(ends))
            joined.append(wire)
    wires = [
        Wire(source, tuple(ends), _merge_labels(joined))
        for source, (ends, joined) in leaving.items()
    ]
    return Picture([_merge_boxes(boxes) for boxes in members.values()], wires)


def _merge_labels(wires: list[Wire]) -> str | Callable[[], str]:
    """Return the label of one wire in place of several from the same box."""
    if len(wires) == 1:
        return wires[0].label
    return lambda: f"{wires[0].tell()}, and {len(wires) - 1} more"


def _merge_boxes(boxes: list[Box]) -> Box:
    """One box for several: how many calls each owner has, and the most frequent of
    them.
    """
    if len(boxes) == 1:
        return boxes[0]
    owners = Counter[str]()
    for box in boxes:
        owners[box.owner] += box.count
    counts = [f"{n} {owner}{'s' if n > 1 else ''}" for owner, n in owners.most_common()]
    titles = Counter(box.lines[0] for box in boxes).most_common()
    names = ", ".join(f"{n} x {title}" if n > 1 else title for title, n in titles[:3])
    rest = (
        [f"and {sum(n for _, n in titles[20:])} more of {len(titles[20:])} kinds"]
        if titles[20:]
        else []
    )
    kinds = {b.kind for b in boxes}
    tones = {b.tone for b in boxes}
    delegates = [b for b in boxes if b.kind in ("backend", "mixed")]
    kind: Kind = "mixed" if delegates else "several"
    return Box(
        lines=(*counts[:_OWNERS], names + (", …" if len(titles) > 3 else "")),
        tooltip=(*counts, *(f"{n} x {title}" for title, n in titles[:20]), *rest),
        kind=boxes[0].kind if len(kinds) == len(tones) == len(owners) == 1 else kind,
        tone=delegates[0].tone if delegates else 0,
        marked=any(b.marked for b in boxes),
        owner=boxes[0].owner if len(owners) == 1 else "several",
        count=sum(owners.values()),
        heat=max(b.heat for b in boxes),
        about=tuple(dict.fromkeys(a for b in boxes for a in b.about)),
    )
