"""Groups of calls that share a partition or have none, on random graphs, against a
plain fixed-point computation.
"""

import operator

import pytest
import torch
from delegraph.errors import ContractViolation
from delegraph.partitioner.fewest_groups import (
    flatten,
    group_by_level,
    levels,
    move_to_users,
    size,
    split_by_size,
)
from delegraph_engines.groups import Groups, fewest_partitions
from hypothesis import given, settings
from hypothesis import strategies as st

from core.tests.support.counting import count_calls
from core.tests.support.random_graphs import graphs, is_acyclic


@st.composite
def cases(draw):
    """Calls of a graph (some return a pair, unpacked), the accepted ones, and groups of
    accepted ones.
    """
    calls, accepted = draw(graphs(fewest=2, most=30, accepts=(True, True, False)))
    listed = [n for n in calls if n in accepted]
    some = (
        st.lists(st.sampled_from(listed), min_size=2, max_size=4)
        if listed
        else st.nothing()
    )
    return calls, accepted, draw(st.lists(some, max_size=4)) if listed else []


def settle(calls, accepted, named, largest=None):
    """Parts, and the calls that groups kept out of them."""
    named_groups = Groups(named, calls, largest)
    refused = {}
    while True:
        listed, apart = named_groups.units(calls, accepted - set(refused))
        if not apart:
            break
        refused.update(apart)
        refused.update(named_groups.broken(refused))
    inside = accepted - set(refused)
    level = levels(listed, inside)
    move_to_users(listed, level, inside)
    parts = group_by_level(listed, level, inside)
    if largest is not None:
        parts = [piece for part in parts for piece in split_by_size(part, largest)]
    position = {n: k for k, n in enumerate(calls)}
    return [flatten(part, position) for part in parts], refused


def fixed_point(calls, accepted, named):
    """The lowest levels under which no group is torn apart; None if there are none."""
    tied = [list(group) for group in named]
    tied += [[n, n.args[0]] for n in calls if n.target is operator.getitem]
    level = dict.fromkeys(calls, 0)
    for _ in range(2 * len(calls) ** 2):
        before = dict(level)
        for n in calls:
            steps = (
                level[i] + (i in accepted and n not in accepted)
                for i in n.all_input_nodes
                if i in level
            )
            level[n] = max(level[n], *steps, 0)
        for group in tied:
            level.update(dict.fromkeys(group, max(level[n] for n in group)))
        if level == before:
            return level
        if max(level.values()) > len(calls):
            return None
    return None


def in_one_part(group, parts):
    homes = {
        next((k for k, part in enumerate(parts) if n in part), None) for n in group
    }
    return len(homes) == 1


@given(cases())
@settings(max_examples=150, deadline=None)
def test_groups_share_a_partition_or_have_none(case):
    calls, accepted, named = case
    parts, refused = settle(calls, accepted, named)
    assert {n for part in parts for n in part} == accepted - set(refused)
    assert is_acyclic(calls, parts)
    assert all(in_one_part(group, parts) for group in named)
    lowest = fixed_point(calls, accepted, named)
    assert (lowest is not None) == (not refused)
    if lowest is not None:
        assert len(parts) <= len({lowest[n] for n in accepted})
    assert fewest_partitions(calls, accepted, named) == (None if refused else parts)


@given(cases(), st.integers(1, 5))
@settings(max_examples=80, deadline=None)
def test_groups_with_a_largest_size(case, largest):
    calls, accepted, named = case
    parts, refused = settle(calls, accepted, named, largest)
    assert is_acyclic(calls, parts)
    assert all(in_one_part(group, parts) for group in named)
    assert all(size(part) <= largest for part in parts)
    assert {n for part in parts for n in part} == accepted - set(refused)


def make_chain(*targets):
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    calls = [node := graph.call_function(target, (node,)) for target in targets]
    graph.output(node)
    return calls


def test_a_path_through_the_host_keeps_a_group_apart():
    relu, _, tanh = calls = make_chain(torch.relu, torch.sort, torch.tanh)
    parts, refused = settle(calls, {relu, tanh}, [[tanh, relu]])
    assert parts == []
    text = (
        "its group (relu, tanh) cannot be one partition: it would need its own result"
        " through sort"
    )
    assert refused == {relu: text, tanh: text}


def test_calls_between_a_group_join_its_part():
    relu, neg, tanh = calls = make_chain(torch.relu, torch.neg, torch.tanh)
    assert settle(calls, set(calls), [[relu, tanh]], largest=3) == (
        [[relu, neg, tanh]],
        {},
    )
    parts, refused = settle(calls, set(calls), [[relu, tanh]], largest=2)
    assert parts == [[neg]]
    assert set(refused.values()) == {
        "its group (relu, tanh) takes a partition of 3 operators; the largest has 2"
    }


def test_wider_of_two_conflicting_groups_is_dropped():
    """Each alone is convex, but each needs a result of the other through the host."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    a1 = graph.call_function(torch.relu, (x,))
    host = graph.call_function(torch.sort, (a1,))
    b1 = graph.call_function(torch.tanh, (host,))
    b2 = graph.call_function(torch.abs, (x,))
    a2 = graph.call_function(torch.neg, (b2,))
    calls = [a1, host, b1, b2, a2]
    accepted = set(calls) - {host}
    assert (
        settle(calls, accepted, [[a1, a2]])[1]
        == {}
        == settle(calls, accepted, [[b1, b2]])[1]
    )
    parts, refused = settle(calls, accepted, [[a1, a2], [b1, b2]])
    assert parts == [[b1, b2]]
    assert set(refused) == {a1, a2}


def test_groups_that_overlap_are_one():
    calls = make_chain(torch.relu, torch.sort, torch.tanh, torch.neg)
    relu, _, tanh, neg = calls
    assert settle(calls, {relu, tanh, neg}, [[neg, tanh]]) == (
        [[relu], [tanh, neg]],
        {},
    )
    assert set(settle(calls, {relu, tanh, neg}, [[neg, tanh], [tanh, relu]])[1]) == {
        relu,
        tanh,
        neg,
    }


def test_a_group_names_calls_of_the_program():
    relu, tanh = make_chain(torch.relu, torch.tanh)
    with pytest.raises(
        ContractViolation, match="a group names tanh, which is no call of the program"
    ):
        Groups([[tanh]], [relu])


def count_python_calls(size):
    """How many Python calls it takes to settle a chain with a group of two in each ten
    calls, one in two impossible.
    """
    calls = make_chain(*[torch.relu] * size)
    accepted = {n for k, n in enumerate(calls) if k % 10 != 5}
    named = [
        [calls[k], calls[k + (1 if k % 20 else 9)]] for k in range(0, size - 10, 10)
    ]
    results = []
    count = count_calls(lambda: results.append(settle(calls, accepted, named)))
    [(parts, refused)] = results
    assert len(refused) == size // 10
    assert is_acyclic(calls, parts)
    return count


def test_the_work_grows_with_the_graph():
    assert count_python_calls(4000) < 4.2 * count_python_calls(1000)
