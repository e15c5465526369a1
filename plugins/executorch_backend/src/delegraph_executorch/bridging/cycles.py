"""Split partitions that depend on their own results."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from torch.fx import Node


def split_cycles(
    calls: Sequence[Node], tags: Mapping[Node, str | None]
) -> tuple[dict[Node, str | None], dict[str, str]]:
    """Return tags without cycles, and the original tag of each new tag.

    ``calls`` are in graph order; calls without a tag stay on the host. Partitions that
    are on no cycle stay whole.
    """
    split = dict(tags)
    original_tag = {tag: tag for tag in tags.values() if tag is not None}
    on_cycle = _tags_on_a_cycle(calls, split)
    while on_cycle:
        levels = _levels(calls, split, on_cycle)
        levels_of_tag: dict[str, list[int]] = {
            tag: sorted({levels[n] for n in calls if split[n] == tag})
            for tag in on_cycle
        }
        for node in calls:
            tag = split[node]
            if tag is None or tag not in on_cycle:
                continue
            part = levels_of_tag[tag].index(levels[node])
            # The first part keeps the tag.
            if part > 0:
                new_tag = f"{tag}.{part}"
                split[node] = new_tag
                original_tag[new_tag] = original_tag[tag]
        on_cycle = _tags_on_a_cycle(calls, split)
    return split, original_tag


def _tags_on_a_cycle(
    calls: Sequence[Node], tags: Mapping[Node, str | None]
) -> set[str]:
    """Return the tags on one cycle of partitions and untagged calls, if there is one."""
    sorter: TopologicalSorter[Any] = TopologicalSorter()
    for node in calls:
        unit = tags[node] or node
        needed = (tags[i] or i for i in node.all_input_nodes if i in tags)
        sorter.add(unit, *(other for other in needed if other != unit))
    try:
        sorter.prepare()
    except CycleError as e:
        # Argument 1 of the error is the cycle.
        return {unit for unit in e.args[1] if isinstance(unit, str)}
    return set()


def _levels(
    calls: Sequence[Node], tags: Mapping[Node, str | None], split: Collection[str]
) -> dict[Node, int]:
    """Return how often a path to each call leaves a partition in ``split``, at most.

    Parts of one tag can run in the order of their levels, since a path that leaves a
    part continues at a higher level. A call that only one partition uses, such as the
    dequantize of a weight, gets the lowest level of its users to stay with them.
    """
    level: dict[Node, int] = {}
    for node in calls:
        level[node] = 0
        for source in node.all_input_nodes:
            if source in level:
                leaves = tags[source] in split and tags[source] != tags[node]
                level[node] = max(level[node], level[source] + leaves)
    for node in reversed(calls):
        stays = all(tags.get(user) == tags[node] for user in node.users)
        if tags[node] in split and node.users and stays:
            level[node] = min(level[user] for user in node.users)
    return level
