"""Make large pictures smaller by joining boxes.

``condense`` joins each stretch of consecutive boxes. ``overview`` joins the boxes of the
host between delegates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from .picture import Box, Kind, Picture, Wire, layers_of

LARGEST = 1000
"""The most boxes of a picture that is not condensed."""
STRETCHES = 300
"""The wanted number of boxes of a condensed picture."""
SMALL = 40
"""The most boxes of a picture that needs no overview."""
_ISLANDS = 60
"""The most boxes of the host in an overview, unless they are joined by order."""
_ENDS = 4
"""The most inputs, and the most outputs, that an overview draws one by one."""
_OWNERS = 4
"""The most owners that a joined box names."""
_CROSSED = 6
"""The most wire sections for each box of a picture; see ``_fits``."""


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
            note = (
                f"Condensed from {len(picture.boxes):,} boxes to"
                f" {len(small.boxes):,}: stretches of up to {size:,} operators are one"
                " box each."
            )
            return small, note


def overview(picture: Picture) -> Picture | None:
    """Return a picture of the delegates, with the host's boxes between them joined.

    Boxes of the host are joined if equally many delegates come before them, on the
    longest path (``_orders``), and wires connect them. If too many boxes remain, they
    are joined without wires, too. Returns None if the result is not smaller.
    """
    if len(picture.boxes) <= SMALL:
        return None
    orders = _orders(picture)
    groups = _islands(picture, orders)
    delegates = sum(box.kind == "backend" for box in picture.boxes)
    if len(set(groups)) > _ISLANDS + delegates:
        groups = []
        for i, box in enumerate(picture.boxes):
            # negative numbers differ from those of delegates
            groups.append(i if box.kind == "backend" else -orders[i])
    order_of_group = dict(zip(groups, orders, strict=True))
    small = _merge(picture, groups, order_of_group.__getitem__)
    return small if len(small.boxes) < len(picture.boxes) else None


def _orders(picture: Picture) -> list[int]:
    """Return a number for each box; no wire leads to a lower number.

    The order is: inputs, host, delegates, host below these, and so on, outputs.
    """
    above = [0] * len(picture.boxes)  # delegates on the longest path to each box
    for wire in sorted(picture.wires, key=lambda wire: wire.source):
        passed = above[wire.source]
        if picture.boxes[wire.source].kind == "backend":
            passed += 1
        for target in wire.targets:
            above[target] = max(above[target], passed)
    orders = []
    for depth, box in zip(above, picture.boxes, strict=True):
        if box.owner == "input":
            order = 1
        elif box.owner == "output":
            order = 2 * len(above) + 4
        elif box.kind == "backend":
            order = 2 * depth + 3
        else:
            order = 2 * depth + 2
        orders.append(order)
    return orders


def _islands(picture: Picture, orders: Sequence[int]) -> list[int]:
    """Return the group of each box.

    A wire between boxes of the same order joins their groups. If there are many inputs,
    or many outputs, they are one group.
    """
    # union-find: each box refers to another of its group, the root of a group to itself
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
        if len(ends) > _ENDS:
            for i in ends[1:]:
                groups[i] = ends[0]
    return [root(i) for i in range(len(groups))]


def _fits(picture: Picture, largest: int) -> bool:
    """Return whether a picture is small enough for a page.

    It has at most ``largest`` boxes, and not too many wire sections: one for each use of
    a value, and one for each layer that a wire crosses.
    """
    if len(picture.boxes) > largest:
        return False
    layers = layers_of(len(picture.boxes), picture.wires)
    size = 0
    for wire in picture.wires:
        start = layers[wire.source]
        end = max([start, *(layers[target] for target in wire.targets)])
        size += len(wire.targets) + end - start
    return size <= _CROSSED * largest


def _stretches(boxes: Sequence[Box], size: int) -> list[int]:
    """Return the group of each box: ``size`` consecutive boxes are one group.

    Inputs and outputs do not mix with calls.
    """
    groups: list[int] = []
    start = 0
    for i, box in enumerate(boxes):
        is_border = box.kind == "border"
        is_full = i - start >= size
        is_other = is_border != (boxes[start].kind == "border")
        # inputs and outputs are more useful than calls, so short groups keep them
        is_kept = is_border and size < 8
        if is_full or is_other or is_kept:
            start = i
        groups.append(start)
    return groups


def _merge(
    picture: Picture, groups: Sequence[int], order: Callable[[int], int] = lambda _: 0
) -> Picture:
    """Return a picture with one box for each group.

    The boxes are sorted by ``order``, a function of the group, then by their first box.
    """
    members: dict[int, list[Box]] = {}
    for group, box in zip(groups, picture.boxes, strict=True):
        members.setdefault(group, []).append(box)
    members = {group: members[group] for group in sorted(members, key=order)}
    place = {group: k for k, group in enumerate(members)}
    targets: dict[int, list[int]] = {}
    joined: dict[int, list[Wire]] = {}
    for wire in picture.wires:
        source = place[groups[wire.source]]
        ends = [place[groups[target]] for target in wire.targets]
        ends = [end for end in ends if end != source]
        if ends:
            targets.setdefault(source, []).extend(ends)
            joined.setdefault(source, []).append(wire)
    wires = []
    for source, ends in targets.items():
        label = _merge_labels(joined[source])
        wires.append(Wire(source, tuple(dict.fromkeys(ends)), label))
    return Picture([_merge_boxes(boxes) for boxes in members.values()], wires)


def _merge_labels(wires: list[Wire]) -> str | Callable[[], str]:
    """Return the label of one wire in place of several from the same box."""
    if len(wires) == 1:
        return wires[0].label
    return lambda: f"{wires[0].tell()}, and {len(wires) - 1} more"


def _merge_boxes(boxes: list[Box]) -> Box:
    """Return one box for several: the calls of each owner, and the most frequent ones."""
    if len(boxes) == 1:
        return boxes[0]

    owners = Counter[str]()
    about: list[str] = []
    for box in boxes:
        owners[box.owner] += box.count
        about += box.about
    counts = [f"{n} {owner}{'s' if n > 1 else ''}" for owner, n in owners.most_common()]

    titles = Counter(box.lines[0] for box in boxes).most_common()
    names = [f"{n} x {title}" if n > 1 else title for title, n in titles[:3]]
    if len(titles) > 3:
        names.append("…")
    tooltip = [*counts, *(f"{n} x {title}" for title, n in titles[:20])]
    if len(titles) > 20:
        others = titles[20:]
        calls = sum(n for _, n in others)
        tooltip.append(f"and {calls} more of {len(others)} kinds")

    delegates = [box for box in boxes if box.kind in ("backend", "mixed")]
    kind: Kind = "mixed" if delegates else "several"
    if len({(box.kind, box.tone, box.owner) for box in boxes}) == 1:
        kind = boxes[0].kind
    return Box(
        lines=(*counts[:_OWNERS], ", ".join(names)),
        tooltip=tuple(tooltip),
        kind=kind,
        tone=delegates[0].tone if delegates else 0,
        marked=any(box.marked for box in boxes),
        owner=boxes[0].owner if len(owners) == 1 else "several",
        count=owners.total(),
        heat=max(box.heat for box in boxes),
        about=tuple(dict.fromkeys(about)),
    )
