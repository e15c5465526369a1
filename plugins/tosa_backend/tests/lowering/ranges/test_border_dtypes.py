"""int64 inputs enter a delegate in the narrow type that its operators need, or as int32
if the option ``int32_inputs`` names them.
"""

from __future__ import annotations

import delegraph
import pytest
import torch
from delegraph.errors import InputError, OptionError
from torch import nn

torch.set_num_threads(1)
LARGE = 2**40
"""A multiple of 2**32, whose low 32 bits are zero."""
X = torch.arange(12, dtype=torch.float32).view(3, 4) / 7 - 0.8
INPUTS = torch.tensor([0, 1, LARGE, -5])


class Of(nn.Module):
    """A module that calls a function of ``x`` and an int64 ``mask``."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, mask):
        return self.function(x, mask)


def lower(function, *inputs, **options):
    return delegraph.lower(
        Of(function).eval(), inputs, backends=["tosa"], options={"tosa": options}
    )


# Name -> dtype in which the mask enters the delegate, and a function of x and mask.
CARRIED = {
    "truth of a view": (
        "bool",
        lambda x, m: torch.where(m[None].to(torch.bool), x, -1.0),
    ),
    "compared with 0": (
        "bool",
        lambda x, m: torch.where(m == 0, x, -1.0) + (m[None] != 0).float(),
    ),
    "logic": (
        "bool",
        lambda x, m: torch.where(
            torch.logical_not(m.view(1, 4)), x, torch.logical_and(m, x > 0).float()
        ),
    ),
    "a float": ("float32", lambda x, m: x * m[None].expand(3, 4).to(torch.float32)),
    "a float by promotion": (
        "float32",
        lambda x, m: x * m[None] + (1.0 - m.unsqueeze(0)) * x,
    ),
    "a float and its truth": (
        "float32",
        lambda x, m: torch.where(m.bool(), x, m.float()),
    ),
    "no-ops": (
        "bool",
        lambda x, m: torch.where(
            m.long().contiguous().to(m.device)[1:].bool(), x[:, 1:], 0.0
        ),
    ),
    "low bits": (
        "int32",
        lambda x, m: x + (m[None].int() * 3).float() + m.to(torch.int8).float(),
    ),
}


@pytest.mark.parametrize("name", CARRIED)
def test_int64_input_enters_in_the_type_of_its_uses(name):
    dtype, function = CARRIED[name]

    lowered = lower(function, X, INPUTS)

    (delegate,) = lowered.delegates
    assert lowered.report.host_operators == 0
    assert f"mask: {dtype}[4]" in [str(value) for value in delegate.inputs]
    torch.testing.assert_close(lowered(X, INPUTS), function(X, INPUTS))
    assert lowered.verify(X, INPUTS).agrees()


NEEDED_WHOLE = {
    "arithmetic": lambda x, m: torch.where((m * m).bool(), x, 0.0),
    "returned": lambda x, m: (torch.where(m.bool(), x, 0.0), m[None] * 1),
    "a view is returned": lambda x, m: (
        x.exp(),
        torch.where(m[None].bool(), x, 0.0),
        m[None].clone(),
    ),
    "compared with 1": lambda x, m: torch.where(m == 1, x, 0.0),
    "truth and low bits": lambda x, m: torch.where(m.bool(), x, m.int().float()),
    "a list": lambda x, m: torch.where(
        torch.cat([m[:2], m[2:]]).bool(), x, m.sum().float()
    ),
}


@pytest.mark.parametrize("name", NEEDED_WHOLE)
def test_operators_that_need_int64_run_on_the_host(name):
    lowered = lower(NEEDED_WHOLE[name], X, INPUTS)

    torch.testing.assert_close(lowered(X, INPUTS), NEEDED_WHOLE[name](X, INPUTS))
    assert lowered.report.host_operators > 0
    assert "is not known to fit into 32 bits" in lowered.report.refusals[0].reason


def test_both_partitions_take_an_int64_input_as_bool():
    """The host draws random numbers, so that the program has two delegates."""

    def function(x, m):
        return (
            torch.where(m[None].bool(), x.exp(), 0.0),
            torch.rand_like(x).floor() + m[None].bool().float(),
        )

    lowered = lower(function, X, INPUTS)

    torch.testing.assert_close(lowered(X, INPUTS), function(X, INPUTS))
    for delegate in lowered.delegates:
        for value in delegate.inputs:
            assert "int64" not in str(value)
            assert "int32" not in str(value)


@pytest.mark.parametrize("name", ["truth of a view", "a float"])
@pytest.mark.parametrize(
    "spec", ["TOSA-1.0+INT", "TOSA-1.0+FP", "TOSA-1.1+FP+INT+int64"]
)
def test_int64_inputs_work_on_other_targets(spec, name):
    _, function = CARRIED[name]

    lowered = lower(function, X, INPUTS, spec=spec)

    torch.testing.assert_close(lowered(X, INPUTS), function(X, INPUTS))


# ---- the option int32_inputs


def masked(x, mask):
    return x * (1 - mask[None] * mask).float()


BITS = torch.tensor([1, 0, 1, 1])


def test_program_with_int64_product_is_not_delegated_whole():
    assert lower(masked, X, BITS).report.host_operators > 0


def test_declared_range_lets_the_whole_program_be_delegated():
    lowered = lower(masked, X, BITS, int32_inputs=["mask=0..1"])

    assert len(lowered.delegates) == 1
    assert lowered.report.host_operators == 0
    assert torch.equal(lowered(X, BITS), masked(X, BITS))


def test_inputs_outside_the_declared_range_are_refused():
    lowered = lower(masked, X, BITS, int32_inputs=["mask=0..1"])

    with pytest.raises(
        InputError, match="input mask has an element 2; it was lowered for 0 to 1"
    ):
        lowered(X, BITS * 2)


def test_file_takes_declared_inputs_as_int32(tmp_path):
    lowered = lower(masked, X, BITS, int32_inputs=["mask=0..1"])

    lowered.save(tmp_path / "m.tosa")
    loaded = delegraph.load(tmp_path / "m.tosa")

    dtypes = {value.name: value.dtype for value in loaded.summary.methods[0].inputs}
    assert dtypes == {"x": "float32", "mask": "int32"}


@pytest.fixture(scope="module")
def lowered_for_any_int32():
    return lower(lambda x, m: x + (m + 0) % 7, X, INPUTS % 9, int32_inputs=["mask"])


def test_inputs_declared_without_range_may_be_any_int32(lowered_for_any_int32):
    (delegate,) = lowered_for_any_int32.delegates
    assert "mask: int32[4]" in [str(value) for value in delegate.inputs]

    result = lowered_for_any_int32(X, torch.tensor([2**31 - 1, -(2**31), 8, 0]))

    remainders_of_7 = torch.tensor([1, 5, 1, 0])
    assert torch.equal(result, X + remainders_of_7)


@pytest.mark.parametrize("wrong", [2**31, -(2**31) - 1])
def test_inputs_beyond_int32_are_refused(lowered_for_any_int32, wrong):
    text = f"has an element {wrong}; it was lowered for -2147483648 to 2147483647"

    with pytest.raises(InputError, match=text):
        lowered_for_any_int32(X, torch.tensor([0, 1, wrong, 2]))


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ("mask=1", "must be the name"),
        ("mask=2..1", "not a range of int32"),
        ("mask=0..9999999999", "not a range of int32"),
    ],
)
def test_malformed_entries_are_refused(entry, text):
    with pytest.raises(OptionError, match=text):
        lower(masked, X, BITS, int32_inputs=[entry])


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ("maks", "'maks', which is no int64 input of the program"),
        ("x=0..1", "'x', .* program, but float32"),
    ],
)
def test_names_of_no_int64_input_are_refused(entry, text):
    with pytest.raises(OptionError, match=text) as error:
        lower(masked, X, BITS, int32_inputs=["mask", entry])

    assert error.value.hint == "int64 inputs are mask"


def lower_two_methods(*int32_inputs):
    """Lower two methods, of which only one has the input ``mask``."""
    return delegraph.lower(
        {"forward": Of(masked).eval(), "other": nn.ReLU().eval()},
        {"forward": (X, BITS), "other": (X,)},
        backends=["tosa"],
        options={"tosa": {"int32_inputs": int32_inputs}},
    )


def test_one_of_two_methods_with_the_named_input_suffices():
    assert len(lower_two_methods("mask=0..1").delegates) == 2


def test_names_that_neither_method_has_are_refused():
    with pytest.raises(OptionError, match="names 'mask_', which"):
        lower_two_methods("mask=0..1", "mask_")


def test_hint_names_the_option_int32_inputs():
    (cause,) = lower(masked, X, BITS).report.causes
    assert 'options={"tosa": {"int32_inputs": ["mask=0..32767"]}}' in cause.hint
