"""The calls of a group share a partition, or all stay on the host.

Random graphs are compared with a plain fixed-point computation.
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
    """Return calls of a graph, the accepted ones, and up to four groups of these."""
    # two of three calls are accepted
    calls, accepted = draw(graphs(fewest=2, most=30, accepts=(True, True, False)))
    accepted_in_order = [n for n in calls if n in accepted]
    if not accepted_in_order:
        return calls, accepted, []
    one_group = st.lists(st.sampled_from(accepted_in_order), min_size=2, max_size=4)
    return calls, accepted, draw(st.lists(one_group, max_size=4))


def make_partitions(calls, accepted, groups, largest=None):
    """Partition calls as the partitioner of the core does with these groups.

    Returns the partitions, and the calls of impossible groups with the reasons.
    """
    checked_groups = Groups(groups, calls, largest)
    refused = {}
    while True:
        units, kept_out = checked_groups.units(calls, accepted - set(refused))
        if not kept_out:
            break
        refused.update(kept_out)
        refused.update(checked_groups.broken(refused))
    inside = accepted - set(refused)
    level = levels(units, inside)
    move_to_users(units, level, inside)
    parts = group_by_level(units, level, inside)
    if largest is not None:
        parts = [piece for part in parts for piece in split_by_size(part, largest)]
    position = {n: k for k, n in enumerate(calls)}
    return [flatten(part, position) for part in parts], refused


def lowest_levels(calls, accepted, groups):
    """Return the lowest level of each call, or None if a group is impossible.

    Levels number partitions in order of execution. A host call that reads an accepted
    call is one level higher. The calls of a group have one level.
    """
    tied = [list(group) for group in groups]
    tied += [[n, n.args[0]] for n in calls if n.target is operator.getitem]
    level = dict.fromkeys(calls, 0)
    for _ in range(2 * len(calls) ** 2):
        before = dict(level)
        for n in calls:
            for operand in n.all_input_nodes:
                if operand in level:
                    is_step = operand in accepted and n not in accepted
                    level[n] = max(level[n], level[operand] + is_step)
        for group in tied:
            level.update(dict.fromkeys(group, max(level[n] for n in group)))
        if level == before:
            return level
        if max(level.values()) > len(calls):
            return None
    return None


def in_one_part_or_none(group, parts):
    """Return whether one part has the whole group, or no part has a call of it."""
    whole = any(all(n in part for n in group) for part in parts)
    absent = not any(n in part for part in parts for n in group)
    return whole or absent


@given(cases())
@settings(max_examples=150, deadline=None)
def test_groups_share_a_partition_or_have_none(case):
    calls, accepted, groups = case
    parts, refused = make_partitions(calls, accepted, groups)

    assert {n for part in parts for n in part} == accepted - set(refused)
    assert is_acyclic(calls, parts)
    assert all(in_one_part_or_none(group, parts) for group in groups)


@given(cases())
@settings(max_examples=150, deadline=None)
def test_partitions_are_the_fewest_that_the_groups_allow(case):
    calls, accepted, groups = case
    parts, refused = make_partitions(calls, accepted, groups)
    lowest = lowest_levels(calls, accepted, groups)

    if lowest is None:
        assert refused
        assert fewest_partitions(calls, accepted, groups) is None
    else:
        assert not refused
        assert fewest_partitions(calls, accepted, groups) == parts
        assert len(parts) <= len({lowest[n] for n in accepted})


@given(cases(), st.integers(1, 5))
@settings(max_examples=80, deadline=None)
def test_groups_share_a_partition_within_the_largest_size(case, largest):
    calls, accepted, groups = case
    parts, refused = make_partitions(calls, accepted, groups, largest)

    assert all(size(part) <= largest for part in parts)
    assert {n for part in parts for n in part} == accepted - set(refused)
    assert is_acyclic(calls, parts)
    assert all(in_one_part_or_none(group, parts) for group in groups)


def make_chain(*targets):
    """Return calls of one graph, of which each reads the call before it."""
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    calls = []
    for target in targets:
        node = graph.call_function(target, (node,))
        calls.append(node)
    graph.output(node)
    return calls


def test_a_group_with_a_host_call_in_between_is_refused():
    calls = make_chain(torch.relu, torch.sort, torch.tanh)
    relu, _, tanh = calls

    parts, refused = make_partitions(calls, {relu, tanh}, [[tanh, relu]])

    assert parts == []
    reason = (
        "its group (relu, tanh) cannot be one partition: it would need its own result"
        " through sort"
    )
    assert refused == {relu: reason, tanh: reason}


def test_an_accepted_call_between_calls_of_a_group_joins_them():
    calls = make_chain(torch.relu, torch.neg, torch.tanh)
    relu, neg, tanh = calls

    parts, refused = make_partitions(calls, set(calls), [[relu, tanh]], largest=3)

    assert parts == [[relu, neg, tanh]]
    assert refused == {}


def test_a_group_larger_than_the_largest_partition_is_refused():
    calls = make_chain(torch.relu, torch.neg, torch.tanh)
    relu, neg, tanh = calls

    parts, refused = make_partitions(calls, set(calls), [[relu, tanh]], largest=2)

    # neg is between them, so the group needs a place for three
    assert parts == [[neg]]
    reason = (
        "its group (relu, tanh) takes a partition of 3 operators; the largest has 2"
    )
    assert refused == {relu: reason, tanh: reason}


def test_the_wider_of_two_conflicting_groups_is_refused():
    """Each group alone is possible, but each needs a result of the other."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    a1 = graph.call_function(torch.relu, (x,))
    host = graph.call_function(torch.sort, (a1,))
    b1 = graph.call_function(torch.tanh, (host,))
    b2 = graph.call_function(torch.abs, (x,))
    a2 = graph.call_function(torch.neg, (b2,))
    calls = [a1, host, b1, b2, a2]
    accepted = {a1, b1, b2, a2}
    for group in ([a1, a2], [b1, b2]):
        _, refused = make_partitions(calls, accepted, [group])
        assert refused == {}

    parts, refused = make_partitions(calls, accepted, [[a1, a2], [b1, b2]])

    # a1 and a2 are further apart in the graph
    assert parts == [[b1, b2]]
    assert set(refused) == {a1, a2}


def test_a_possible_group_leaves_other_calls_accepted():
    calls = make_chain(torch.relu, torch.sort, torch.tanh, torch.neg)
    relu, _, tanh, neg = calls

    parts, refused = make_partitions(calls, {relu, tanh, neg}, [[neg, tanh]])

    assert parts == [[relu], [tanh, neg]]
    assert refused == {}


def test_overlapping_groups_are_refused_as_one():
    calls = make_chain(torch.relu, torch.sort, torch.tanh, torch.neg)
    relu, _, tanh, neg = calls

    # sort, on the host, is between relu and tanh
    _, refused = make_partitions(calls, {relu, tanh, neg}, [[neg, tanh], [tanh, relu]])

    assert set(refused) == {relu, tanh, neg}


def test_a_group_with_an_unknown_call_is_refused():
    relu, tanh = make_chain(torch.relu, torch.tanh)

    message = "a group names tanh, which is no call of the program"
    with pytest.raises(ContractViolation, match=message):
        Groups([[tanh]], [relu])


def count_python_calls(length):
    """Return how many Python calls the partitions of a chain with groups take.

    In ten calls of the chain, the sixth is on the host, and a group begins at the first.
    """
    calls = make_chain(*[torch.relu] * length)
    accepted = {n for k, n in enumerate(calls) if k % 10 != 5}
    groups = []
    for first in range(0, length - 10, 10):
        # every second group is impossible, because it spans the host's call
        distance = 9 if first % 20 == 0 else 1
        groups.append([calls[first], calls[first + distance]])
    results = []

    count = count_calls(
        lambda: results.append(make_partitions(calls, accepted, groups))
    )

    [(parts, refused)] = results
    assert len(refused) == length // 10
    assert is_acyclic(calls, parts)
    return count


def test_the_work_grows_linearly_with_the_program():
    # four times the calls, and 5 percent of tolerance
    assert count_python_calls(4000) < 4.2 * count_python_calls(1000)
