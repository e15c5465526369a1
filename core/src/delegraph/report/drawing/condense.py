"""Large pictures made smaller: chains become one box, and if that is not enough, stretches of the graph do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .picture import Box, Picture, Wire, layers_of

LARGEST = 1000
"""Boxes that are drawn one by one."""
STRETCHES = 300
"""Boxes of a picture that was condensed into stretches."""
_OWNERS = 4
"""Owners that a box names which stands for several."""
_CROSSED = 6
"""Wires that cross a layer, for each box, which are still drawn."""


def condense(picture: Picture, largest: int = LARGEST, stretches: int = STRETCHES) -> tuple[Picture, str]:
    """The picture, small enough to be drawn, and a sentence on what was left out; it is empty if nothing was."""
    if _fits(picture, largest):
        return picture, ""
    chained = _merged(picture, _chains(picture))
    if _fits(chained, largest):
        return chained, _account(picture, chained, "each chain of operators is one box")
    size = 1
    while True:
        size = max(2 * size, len(picture.boxes) // stretches)
        stretched = _merged(picture, _stretches(picture.boxes, size))
        if _fits(stretched, 2 * stretches):
            return stretched, _account(picture, stretched, f"stretches of up to {size:,} operators are one box each")


def _account(before: Picture, after: Picture, how: str) -> str:
    return f"Condensed from {len(before.boxes):,} boxes to {len(after.boxes):,}: {how}."


def _fits(picture: Picture, largest: int) -> bool:
    """Whether boxes, wires and the layers that these cross are few enough for a page."""
    if len(picture.boxes) > largest:
        return False
    layers = layers_of(picture)
    crossed = sum(max([layers[w.source], *(layers[t] for t in w.targets)]) - layers[w.source] for w in picture.wires)
    return crossed + sum(len(w.targets) for w in picture.wires) <= _CROSSED * largest


def _chains(picture: Picture) -> list[int]:
    """The group of each box: it joins the box before it if nothing else leads in or out between the two."""
    wires_into, wires_from = Counter[int](), Counter[int]()
    feeder: dict[int, int] = {}
    for wire in picture.wires:
        wires_from[wire.source] += len(wire.targets)
        for target in wire.targets:
            wires_into[target] += 1
            feeder[target] = wire.source
    groups = list(range(len(picture.boxes)))
    for i, box in enumerate(picture.boxes):
        if wires_into[i] == 1 and wires_from[feeder[i]] == 1 and _alike(picture.boxes[feeder[i]], box):
            groups[i] = groups[feeder[i]]
    return groups


def _alike(one: Box, other: Box) -> bool:
    """A box that tells more elsewhere, as a delegate does, stays alone."""
    return (one.kind, one.owner) == (other.kind, other.owner) and one.kind != "border" and not one.link + other.link


def _stretches(boxes: Sequence[Box], size: int) -> list[int]:
    """The group of each box: ``size`` boxes in order are one. Inputs and outputs do not mix with calls."""
    groups: list[int] = []
    start = 0
    for i, box in enumerate(boxes):
        if i - start >= size or (box.kind == "border") != (boxes[start].kind == "border") or _few(box, size):
            start = i
        groups.append(start)
    return groups


def _few(box: Box, size: int) -> bool:
    """Inputs and outputs are joined only where even stretches were not enough."""
    return box.kind == "border" and size < 8


def _merged(picture: Picture, groups: Sequence[int]) -> Picture:
    """A picture with a box for each group; a group is named by its first box."""
    members: dict[int, list[Box]] = {}
    for group, box in zip(groups, picture.boxes, strict=True):
        members.setdefault(group, []).append(box)
    place = {group: k for k, group in enumerate(members)}
    found: dict[int, tuple[dict[int, None], list[str]]] = {}
    for wire in picture.wires:
        source = place[groups[wire.source]]
        ends = [end for t in wire.targets if (end := place[groups[t]]) != source]
        if ends:
            targets, labels = found.setdefault(source, ({}, []))
            targets.update(dict.fromkeys(ends))
            labels.append(wire.label)
    wires = [Wire(source, tuple(targets), _label(labels)) for source, (targets, labels) in found.items()]
    return Picture([_one(boxes) for boxes in members.values()], wires)


def _label(labels: list[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{labels[0]}, and {len(labels) - 1} more"


def _one(boxes: list[Box]) -> Box:
    """One box for several: how many calls whose, and the most frequent of them."""
    if len(boxes) == 1:
        return boxes[0]
    owners = Counter[str]()
    for box in boxes:
        owners[box.owner] += box.count
    titles = Counter(box.lines[0] for box in boxes).most_common()
    kinds, tones = {b.kind for b in boxes}, {b.tone for b in boxes}
    return Box(
        lines=(*_owners(owners)[:_OWNERS], _names(titles)),
        tooltip=(*_owners(owners), *(f"{n} x {title}" for title, n in titles[:20]), *_rest(titles[20:])),
        kind=boxes[0].kind if len(kinds) == len(tones) == len(owners) == 1 else "several",
        tone=boxes[0].tone,
        marked=any(b.marked for b in boxes),
        owner=boxes[0].owner if len(owners) == 1 else "several",
        count=sum(owners.values()),
    )


def _owners(owners: Counter[str]) -> list[str]:
    return [f"{n} {owner}{'s' if n > 1 else ''}" for owner, n in owners.most_common()]


def _names(titles: Sequence[tuple[str, int]]) -> str:
    more = ", …" if len(titles) > 3 else ""
    return ", ".join(f"{n} x {title}" if n > 1 else title for title, n in titles[:3]) + more


def _rest(titles: Sequence[tuple[str, int]]) -> list[str]:
    return [f"and {sum(n for _, n in titles)} more of {len(titles)} kinds"] if titles else []
