"""int64 inputs that nothing bounds: they cross as what their uses read, or because the
user says that they fit.
"""

from __future__ import annotations

import delegraph
import pytest
import torch
from delegraph.errors import InputError, OptionError
from torch import nn

torch.set_num_threads(1)
LARGE = 2**40
"""A multiple of 2**32: of its low 32 bits alone it would be 0."""
X = torch.arange(12, dtype=torch.float32).view(3, 4) / 7 - 0.8
INPUTS = torch.tensor([0, 1, LARGE, -5])


class Of(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, mask):
        return self.function(x, mask)


def lower(function, *inputs, **options):
    return delegraph.lower(
        Of(function).eval(), inputs, backends=["tosa"], options={"tosa": options}
    )


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
def test_tensor_crosses_the_border_in_the_type_of_its_uses(name):
    kind, function = CARRIED[name]
    lowered = lower(function, X, INPUTS)
    (delegate,) = lowered.delegates
    assert lowered.report.host_operators == 0
    assert (
        next(str(value) for value in delegate.inputs if value.name == "mask")
        == f"mask: {kind}[4]"
    )
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


def test_view_on_the_host_crosses_in_the_narrow_type():
    """The first conversion is the host's, since random numbers stand between; both
    partitions read the mask's truth.
    """

    def function(x, m):
        return (
            torch.where(m[None].bool(), x.exp(), 0.0),
            torch.rand_like(x).floor() + m[None].bool().float(),
        )

    lowered = lower(function, X, INPUTS)
    for ours, eager in zip(lowered(X, INPUTS), function(X, INPUTS), strict=True):
        torch.testing.assert_close(ours, eager)
    assert all(
        "int64" not in str(i) and "int32" not in str(i)
        for d in lowered.delegates
        for i in d.inputs
    )


@pytest.mark.parametrize(
    "spec", ["TOSA-1.0+INT", "TOSA-1.0+FP", "TOSA-1.1+FP+INT+int64"]
)
def test_carried_integers_work_on_other_targets(spec):
    function = CARRIED["truth of a view"][1]
    lowered = lower(function, X, INPUTS, spec=spec)
    torch.testing.assert_close(lowered(X, INPUTS), function(X, INPUTS))
    function = CARRIED["a float"][1]
    lowered = lower(function, X, INPUTS, spec=spec)
    torch.testing.assert_close(lowered(X, INPUTS), function(X, INPUTS))


# ---- on the user's word


def masked(x, mask):
    return x * (1 - mask[None] * mask).float()


BITS = torch.tensor([1, 0, 1, 1])


def test_int32_inputs_declare_that_values_fit(tmp_path):
    assert lower(masked, X, BITS).report.host_operators > 0
    lowered = lower(masked, X, BITS, int32_inputs=["mask=0..1"])
    assert len(lowered.delegates) == 1
    assert lowered.report.host_operators == 0
    assert torch.equal(lowered(X, BITS), masked(X, BITS))
    with pytest.raises(
        InputError, match="input mask has an element 2; it was lowered for 0 to 1"
    ):
        lowered(X, BITS * 2)
    lowered.save(tmp_path / "m.tosa")
    loaded = delegraph.load(tmp_path / "m.tosa")
    inputs = {value.name: value.dtype for value in loaded.summary.methods[0].inputs}
    assert inputs == {
        "x": "float32",
        "mask": "int32",
    }, "a .tosa file takes int32, so that nothing is cast"


def test_declared_int32_inputs_are_checked_when_called():
    lowered = lower(lambda x, m: x + (m + 0) % 7, X, INPUTS % 9, int32_inputs=["mask"])
    (delegate,) = lowered.delegates
    assert "mask: int32[4]" in map(str, delegate.inputs)
    assert torch.equal(
        lowered(X, torch.tensor([2**31 - 1, -(2**31), 8, 0])),
        X + torch.tensor([1, 5, 1, 0]),
    )
    for wrong in (2**31, -(2**31) - 1):
        with pytest.raises(
            InputError,
            match=(
                f"has an element {wrong}; it was lowered for -2147483648 to 2147483647"
            ),
        ):
            lowered(X, torch.tensor([0, 1, wrong, 2]))


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("mask=1", "must be the name"),
        ("mask=2..1", "not a range of int32"),
        ("mask=0..9999999999", "not a range of int32"),
    ],
)
def test_entries_of_another_form(entry, said):
    with pytest.raises(OptionError, match=said):
        lower(masked, X, BITS, int32_inputs=[entry])


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("maks", "'maks', which is no int64 input of the program"),
        ("x=0..1", "'x', .* program, but float32"),
    ],
)
def test_a_name_that_no_method_has(entry, said):
    with pytest.raises(OptionError, match=said) as error:
        lower(masked, X, BITS, int32_inputs=["mask", entry])
    assert error.value.hint == "int64 inputs are mask"


def test_a_name_that_one_of_two_methods_has():
    sources = {"forward": Of(masked).eval(), "other": nn.ReLU().eval()}
    inputs = {"forward": (X, BITS), "other": (X,)}

    def both(*names):
        return delegraph.lower(
            sources,
            inputs,
            backends=["tosa"],
            options={"tosa": {"int32_inputs": names}},
        )

    assert len(both("mask=0..1").delegates) == 2
    with pytest.raises(OptionError, match="names 'mask_', which"):
        both("mask=0..1", "mask_")


def test_hints_name_the_option_int32_inputs():
    (cause,) = lower(masked, X, BITS).report.causes
    assert 'options={"tosa": {"int32_inputs": ["mask=0..32767"]}}' in cause.hint
