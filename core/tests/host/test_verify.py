"""``Verification``: errors of outputs that are compared with eager."""

import json
import math

import pytest
import torch
from delegraph.host.verify import Verification


def test_verification_gives_errors_of_each_output():
    found = Verification.of(
        (torch.tensor([1.0, 2.0]), torch.tensor([3])),
        (torch.tensor([1.0, 4.0]), torch.tensor([3])),
    )
    first, second = found.outputs

    assert first.max_abs_error == 2.0
    assert first.max_abs_value == 4.0
    assert first.relative_error == 0.5
    assert second.relative_error == 0
    assert found.relative_error == 0.5
    assert "ratio 0.5" in str(found)
    assert found.to_json()["relative_error"] == 0.5


@pytest.mark.parametrize(
    "ours, eager, mismatched, relative_error",
    [
        (math.inf, math.inf, 0, 0),
        (math.nan, math.nan, 0, 0),
        (3.4e38, math.inf, 1, math.inf),
        (0.0, math.nan, 1, math.inf),
        (-math.inf, math.inf, 1, math.inf),
    ],
)
def test_infinities_and_nan_must_be_equal(ours, eager, mismatched, relative_error):
    found = Verification.of(torch.tensor([ours, 1.0]), torch.tensor([eager, 1.0]))
    assert found.outputs[0].mismatched == mismatched
    assert found.relative_error == relative_error


def test_other_shapes_have_an_infinite_error():
    assert Verification.of(torch.ones(2), torch.ones(3)).relative_error == math.inf


def test_infinite_figures_are_valid_json():
    found = Verification.of(
        [torch.ones(2), torch.ones(2)], [torch.ones(3) * float("inf"), torch.zeros(2)]
    )
    content = json.loads(json.dumps(found.to_json(), allow_nan=False))

    assert content["relative_error"] is None
    assert content["outputs"][0]["max_abs_error"] is None
    assert content["outputs"][1]["relative_error"] is None
    assert content["outputs"][1]["max_abs_error"] == 1


def test_outputs_that_are_not_numbers_must_be_equal():
    outputs = (torch.ones(2), None, "a")
    assert Verification.of(outputs, outputs).relative_error == 0
    assert Verification.of([torch.ones(2)], [None]).relative_error == math.inf
    assert Verification.of([None], [torch.ones(2)]).relative_error == math.inf


def test_empty_outputs_agree_and_zeros_have_no_ratio():
    empty = Verification.of(torch.empty(0), torch.empty(0))
    assert empty.relative_error == 0
    one_instead_of_zero = Verification.of(torch.tensor([1.0]), torch.tensor([0.0]))
    assert one_instead_of_zero.relative_error == math.inf


def test_imaginary_parts_are_compared():
    expected = torch.tensor([1 + 1j, 2 - 3j])
    (found,) = Verification.of((expected + torch.tensor([0, 4j]),), (expected,)).outputs
    assert found.max_abs_error == 4
    assert found.max_abs_value == pytest.approx(13**0.5)
    assert Verification.of((expected,), (expected.real,)).outputs[0].max_abs_error == 3


def test_int64_is_compared_to_its_last_bit():
    """float64 cannot represent these numbers exactly."""
    wide = torch.tensor([2**62 + 1, -(2**63)])
    assert Verification.of(wide, wide).outputs[0].max_abs_error == 0
    less_by_one = wide - torch.tensor([1, 0])
    assert Verification.of(less_by_one, wide).outputs[0].max_abs_error == 1
