"""How far a value is from float64."""

import delegraph
import torch
from delegraph_analysis.accuracy.values import Measured, measure
from delegraph_programs.compare_with_eager import compare

INF = float("inf")


def measured(got, eager, exact, dtype=torch.float32):
    return Measured(
        "v",
        torch.tensor(got, dtype=dtype),
        torch.tensor(eager),
        torch.tensor(exact, dtype=torch.float64),
    )


def test_errors_of_the_program_and_of_eager():
    found = measure(measured([1.5, -4.0], [1.0, -4.0], [1.0, -4.25], torch.bfloat16))
    assert found.figures.max_abs_error == 0.5
    assert found.figures.dtype == "float32"
    assert found.eager_error == 0.25 / 4.25


def test_eager_infinities_count_as_the_reference():
    found = measure(measured([INF, 3.0], [INF, 3.0], [1e200, 3.0]))
    assert found.figures.mismatched == 0
    assert found.figures.max_abs_error == 0


def test_differences_whose_square_underflows_have_no_snr():
    assert (
        compare("v", torch.tensor([1e-200], dtype=torch.float64), torch.zeros(1)).snr
        is None
    )


class Writes(torch.nn.Module):
    def forward(self, x):
        y = x.view(-1) * 2
        x.add_(1)
        return y, x.view(-1)


def test_inputs_that_are_written_are_compared_as_they_were():
    lowered = delegraph.lower(Writes().eval(), (torch.ones(2, 2),), backends=[])
    found = lowered.verify(torch.ones(2, 2), per_operator=True)
    assert found.agrees()
    assert found.operators.differing() == []
    assert [operator.figures.max_abs_value for operator in found.operators.operators][
        -1
    ] == 2.0
