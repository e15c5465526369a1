"""Partitions that need their own results are split."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from torch.fx import Node


def without_cycles(
    calls: Sequence[Node], tags: Mapping[Node, str | None]
) -> tuple[dict[Node, str | None], dict[str, str]]:
    """Tags of ``calls`` such that no partition needs its own result, and by each of
    them the tag that it was.

    ``calls`` are in graph order; a call without a tag stays on the host. Partitions
    that lie on no cycle stay whole.
    """
    split = dict(tags)
    was = {tag: tag for tag in tags.values() if tag is not None}
    while on_cycle := _tags_on_a_cycle(calls, split):
        levels = _levels(calls, split, on_cycle)
        parts = {
            tag: sorted({levels[n] for n in calls if split[n] == tag})
            for tag in on_cycle
        }
        for node in calls:
            tag = split[node]
            # the first part keeps the tag
            if tag in parts and (k := parts[tag].index(levels[node])):
                split[node] = f"{tag}.{k}"
                was[f"{tag}.{k}"] = was[tag]
    return split, was


def _tags_on_a_cycle(
    calls: Sequence[Node], tags: Mapping[Node, str | None]
) -> set[str]:
    """The tags of one cycle of partitions and untagged calls; none if these have an
    order.
    """
    sorter: TopologicalSorter[Any] = TopologicalSorter()
    for node in calls:
        unit = tags[node] or node
        needed = (tags[i] or i for i in node.all_input_nodes if i in tags)
        sorter.add(unit, *(other for other in needed if other != unit))
    try:
        sorter.prepare()
    except CycleError as e:
        # argument 1 of the error is the cycle
        return {unit for unit in e.args[1] if isinstance(unit, str)}
    return set()


def _levels(
    calls: Sequence[Node], tags: Mapping[Node, str | None], split: Collection[str]
) -> dict[Node, int]:
    """How often at most a path to each call leaves one of the partitions ``split``.

    Parts of equal tag and level have an order: a path that leaves one goes on at higher
    levels. What only one partition uses, such as the dequantization of a weight, has
    the lowest level of a use, and so stays with it.
    """
    level: dict[Node, int] = {}
    for node in calls:
        before = (i for i in node.all_input_nodes if i in level)
        level[node] = max(
            (level[i] + (tags[i] in split and tags[i] != tags[node]) for i in before),
            default=0,
        )
    for node in reversed(calls):
        if (
            tags[node] in split
            and node.users
            and all(tags.get(user) == tags[node] for user in node.users)
        ):
            level[node] = min(level[user] for user in node.users)
    return level
