"""Partitions that need their own results."""

from __future__ import annotations

import pytest
from delegraph_executorch.bridging.cycles import split_cycles
from torch.fx import Graph


@pytest.mark.parametrize(
    ("edges", "tags", "wanted"),
    [
        # a call of the host between two of one partition
        ("ab bc", "A-A", "A - A.1"),
        # two partitions that need each other's results, without a path from one back to
        # itself
        ("ab cd", "ABBA", "A B.1 B A.1"),
        # what is used behind the call of the host alone, such as a weight's
        # dequantization, goes there with its user
        ("ab bd cd", "A-AA", "A - A.1 A.1"),
        # partitions that have an order are left as they are
        ("ab bc de", "A-BCC", "A - B C C"),
        ("ab bc cd", "A-BA", "A - B A.1"),
    ],
)
def test_partitions_on_cycles_are_split(edges: str, tags: str, wanted: str) -> None:
    graph = Graph()
    calls = {}
    for name in sorted(set(edges) - {" "}):
        operands = [calls[before] for before, after in edges.split() if after == name]
        calls[name] = graph.call_function(print, tuple(operands))
    given = {
        n: None if t == "-" else t for n, t in zip(calls.values(), tags, strict=True)
    }
    split, was = split_cycles(list(calls.values()), given)
    assert [tag or "-" for tag in split.values()] == wanted.split()
    assert [was[tag] if tag else "-" for tag in split.values()] == list(tags)
