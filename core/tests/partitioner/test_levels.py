"""On random graphs, partitions are few, acyclic, and contain exactly the accepted
calls.
"""

import operator

import pytest
import torch
from delegraph.partitioner.fewest_groups import (
    connected_components,
    flatten,
    group_by_level,
    levels,
    move_to_users,
    split_by_size,
    units,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from ..support.random_graphs import graphs, is_acyclic


def partition(calls, accepted, cut=lambda group: [group]):
    listed = units(calls)
    level = levels(listed, accepted)
    move_to_users(listed, level, accepted)
    position = {n: k for k, n in enumerate(calls)}
    return [
        flatten(piece, position)
        for group in group_by_level(listed, level, accepted)
        for piece in cut(group)
    ]


def fewest(calls, accepted):
    """Return the largest number of accepted segments on one path, a lower limit."""
    most = {}
    for n in calls:
        before = [(most[i], i in accepted) for i in n.all_input_nodes if i in most]
        inside = max((c for c, a in before), default=0)
        fresh = max((c + (not a) for c, a in before), default=1)
        most[n] = max(fresh, inside, 1) if n in accepted else inside
    return max((most[n] for n in accepted), default=0)


@given(graphs())
@settings(max_examples=120, deadline=None)
def test_random_graphs_get_the_fewest_acyclic_parts(case):
    calls, accepted = case
    parts = partition(calls, accepted)
    assert {n for part in parts for n in part} == accepted
    assert sum(map(len, parts)) == len(accepted)
    assert is_acyclic(calls, parts)
    assert len(parts) == fewest(calls, accepted)
    for part in parts:
        for node in part:
            if node.target is operator.getitem:
                assert node.args[0] in part, "items are in the part of their call"


@given(graphs(), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_connected_and_limited_parts_stay_acyclic(case, largest):
    calls, accepted = case
    assert is_acyclic(calls, partition(calls, accepted, connected_components))

    def connected_and_small(group):
        pieces = []
        for component in connected_components(group):
            pieces += split_by_size(component, largest)
        return pieces

    small = partition(calls, accepted, connected_and_small)
    assert is_acyclic(calls, small)
    assert {node for part in small for node in part} == accepted

    for part in small:
        operators = [n for n in part if n.target is not operator.getitem]
        assert len(operators) <= largest


def test_a_call_moves_to_the_partition_of_its_user():
    """relu moves behind the host call, so only x crosses the border."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    early = graph.call_function(torch.relu, (x,))
    host = graph.call_function(torch.sort, (x,))
    late = graph.call_function(torch.add, (early, host))
    graph.output(late)
    assert partition([early, host, late], {early, late}) == [[early, late]]


@pytest.mark.parametrize("size", [20_000])
def test_large_graphs_do_not_recurse(size):
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    calls = []
    for _ in range(size):
        node = graph.call_function(torch.relu, (node,))
        calls.append(node)
    graph.output(node)
    accepted = {n for k, n in enumerate(calls) if k % 10}

    assert len(partition(calls, accepted)) == size // 10
