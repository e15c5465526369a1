"""Split partitions that depend on their own results.

Example: a partition has ``a`` and ``c``, and the host computes ``b`` from ``a``, and
``c`` needs ``b``. It becomes two partitions: one with ``a``, one with ``c``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

from torch.fx import Node


class SplitTags(NamedTuple):
    """The tag of each call, and the original tag of each tag that is in use."""

    tags: dict[Node, str | None]
    original_tag: dict[str, str]


def split_cycles(calls: Sequence[Node], tags: Mapping[Node, str | None]) -> SplitTags:
    """Return tags without cycles: ``tag`` becomes ``tag``, ``tag.1``, ``tag.2``, ...

    ``calls`` are in graph order; calls without a tag stay on the host. Partitions that
    are on no cycle stay whole.
    """
    split = dict(tags)
    original_tag = {tag: tag for tag in tags.values() if tag is not None}
    # Each round splits the partitions of one cycle.
    on_cycle = _tags_on_a_cycle(calls, split)
    tag: str | None
    while on_cycle:
        levels = _levels(calls, split, on_cycle)
        levels_of_tag: dict[str, list[int]] = {}
        for tag in on_cycle:
            levels_of_tag[tag] = sorted({levels[n] for n in calls if split[n] == tag})
        for node in calls:
            tag = split[node]
            if tag is None or tag not in on_cycle:
                continue
            part_number = levels_of_tag[tag].index(levels[node])
            # part 0 keeps the tag
            if part_number > 0:
                new_tag = f"{tag}.{part_number}"
                split[node] = new_tag
                original_tag[new_tag] = original_tag[tag]
        on_cycle = _tags_on_a_cycle(calls, split)
    return SplitTags(split, original_tag)


def _tags_on_a_cycle(
    calls: Sequence[Node], tags: Mapping[Node, str | None]
) -> set[str]:
    """Return the tags on one cycle of partitions and untagged calls, if there is one."""
    # the sorter's units are tags for partitions, and nodes for untagged calls
    sorter: TopologicalSorter[Any] = TopologicalSorter()
    for node in calls:
        unit = tags[node] or node
        sorter.add(unit)
        for source in node.all_input_nodes:
            if source not in tags:
                continue  # a placeholder
            source_unit = tags[source] or source
            if source_unit != unit:
                sorter.add(unit, source_unit)
    try:
        sorter.prepare()
    except CycleError as e:
        # The error's arguments are a text and the list of units on the cycle.
        return {unit for unit in e.args[1] if isinstance(unit, str)}
    return set()


def _levels(
    calls: Sequence[Node], tags: Mapping[Node, str | None], split: Collection[str]
) -> dict[Node, int]:
    """Return the level of each call: the most partitions that a path to it leaves.

    Only partitions in ``split`` count. All calls of a partition with one level can run
    together, before those of the next level. A call that only its own partition uses,
    such as the dequantize of a weight, gets the lowest level of its users.
    """
    level: dict[Node, int] = {}
    for node in calls:
        level[node] = 0
        for source in node.all_input_nodes:
            if source in level:
                leaves = tags[source] in split and tags[source] != tags[node]
                level[node] = max(level[node], level[source] + int(leaves))
    for node in reversed(calls):
        is_inner = all(tags.get(user) == tags[node] for user in node.users)
        if tags[node] in split and node.users and is_inner:
            level[node] = min(level[user] for user in node.users)
    return level
