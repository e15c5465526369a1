"""Calls that also return values inside of a delegate."""

import torch
from delegraph_engines import Observing


def test_values_inside_follow_the_outputs():
    def delegate(x):
        return x + 1, x * 2, x * 3

    outputs, inside = Observing(delegate, [4, 7])(torch.ones(2))
    assert [output.tolist() for output in outputs] == [[2, 2]]
    values = {call: [v.tolist() for v in found] for call, found in inside.items()}
    assert values == {4: [[2, 2]], 7: [[3, 3]]}
