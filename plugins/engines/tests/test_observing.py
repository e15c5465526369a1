"""``Observing`` separates the outputs of a delegate from values inside of it."""

import torch
from delegraph_engines import Observing


def test_results_after_the_outputs_are_values_of_observed_calls():
    def delegate(x):
        output = x + 1
        value_of_call_4 = x * 2
        value_of_call_7 = x * 3
        return output, value_of_call_4, value_of_call_7

    outputs, values_inside = Observing(delegate, [4, 7])(torch.ones(2))

    assert [output.tolist() for output in outputs] == [[2, 2]]
    assert values_inside.keys() == {4, 7}
    assert [value.tolist() for value in values_inside[4]] == [[2, 2]]
    assert [value.tolist() for value in values_inside[7]] == [[3, 3]]
