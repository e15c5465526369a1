"""Random graphs with random support, for tests of partitions."""

import operator

import torch
from hypothesis import strategies as st


@st.composite
def graphs(draw, fewest=1, most=40, accepts=(True, False)):
    """Calls of a graph (some return a pair, unpacked), and the accepted ones: each by a
    draw from ``accepts``.
    """
    graph = torch.fx.Graph()
    values = [graph.placeholder("x")]
    calls = []
    for _ in range(draw(st.integers(fewest, most))):
        args = draw(st.lists(st.sampled_from(values[-8:]), min_size=1, max_size=3))
        node = graph.call_function(torch.relu, tuple(args))
        calls.append(node)
        if draw(st.integers(0, 5)) == 0:
            parts = [graph.call_function(operator.getitem, (node, k)) for k in (0, 1)]
            calls += parts
            values += parts
        else:
            values.append(node)
    graph.output(values[-1])
    mask = draw(
        st.lists(st.sampled_from(accepts), min_size=len(calls), max_size=len(calls))
    )
    accepted = {
        n
        for n, m in zip(calls, mask, strict=True)
        if m and n.target is not operator.getitem
    }
    accepted |= {
        n for n in calls if n.target is operator.getitem and n.args[0] in accepted
    }
    return calls, accepted


def is_acyclic(calls, parts):
    """Return whether a topological order exists with each part as one node."""
    home = {n: k for k, part in enumerate(parts) for n in part}
    unit = {n: home.get(n, n) for n in calls}
    needs = {}
    for n in calls:
        inputs = {unit[i] for i in n.all_input_nodes if i in unit} - {unit[n]}
        needs.setdefault(unit[n], set()).update(inputs)
    while ready := {u for u, ns in needs.items() if not ns}:
        needs = {u: ns - ready for u, ns in needs.items() if u not in ready}
    return not needs
