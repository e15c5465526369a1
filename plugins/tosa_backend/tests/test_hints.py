"""Hints of a report lead to a program that lowers to one delegate."""

import delegraph
import pytest
import torch
from torch import nn
from torch.export import Dim


def lower(function, *inputs, **options):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.function = function

        def forward(self, *args):
            return self.function(*args)

    return delegraph.lower(Model().eval(), inputs, backends=["tosa"], **options)


def lower_to_one_delegate(*args, **options):
    lowered = lower(*args, **options)
    assert len(lowered.delegates) == 1, lowered.report
    assert not lowered.report.causes, lowered.report
    assert lowered.verify(*args[1:]).relative_error < 1e-5
    return lowered


VOTES = torch.tensor([3, 1, 4, 1, 5])


def test_hints_for_int64_name_range_or_dtype():
    lowered = lower(lambda x: ((x.cumsum(0) * 3 + 1) % 7 > 2).float().exp(), VOTES)
    (cause,) = lowered.report.causes
    assert cause.count == 5
    assert cause.reason.startswith("the input args_0: an int64")
    assert "args_0=0..32767" in cause.hint
    assert cause.frees == 5
    (cause,) = lower(
        lambda x: ((x.cumsum(0) * 3 + 1) % 7 > 2).float().exp(), VOTES.int()
    ).report.causes
    assert cause.operators["aten.cumsum.default"] == 1
    assert "dtype=torch.int32" in cause.hint
    lower_to_one_delegate(
        lambda x: ((x.cumsum(0, dtype=torch.int32) * 3 + 1) % 7 > 2).float().exp(),
        VOTES.int(),
    )


def test_int64_hints_name_the_line_that_creates_it():
    """The positions of a tokenizer's padding, as in RoBERTa; the mask is computed here."""
    lowered = lower(
        lambda x, ids: x + (torch.cumsum(ids, 1) * ids).float(),
        torch.ones(2, 5),
        VOTES.repeat(2, 1),
    )
    assert [(cause.count, cause.frees) for cause in lowered.report.causes] == [(3, 3)]
    lower_to_one_delegate(
        lambda x, ids: x + (torch.cumsum(ids, 1, dtype=torch.int32) * ids).float(),
        torch.ones(2, 5),
        VOTES.repeat(2, 1).int(),
    )


class Encoder(nn.Module):
    """Its sizes are those of the input, wherever they are asked for."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(50, 8)
        self.places = nn.Embedding(32, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, ids, mask):
        batch, length = ids.shape
        x = self.tokens(ids) + self.places(torch.arange(length)).expand(
            batch, length, 8
        )
        x = x * mask.unsqueeze(-1)
        x = torch.relu(x.reshape(batch * length, 8)).view(batch, length, 8)
        return self.layer(x).mean(1)


def test_hint_for_dynamic_sizes_is_a_static_export():
    ids = torch.randint(0, 50, (2, 6))
    mask = torch.ones(2, 6)
    batch = Dim("batch", min=2, max=8)
    length = Dim("length", min=2, max=32)
    sizes = {0: batch, 1: length}
    given = torch.export.export(
        Encoder().eval(), (ids, mask), dynamic_shapes=(sizes, sizes)
    )
    lowered = delegraph.lower(given, backends=["tosa"])
    (cause,) = lowered.report.causes
    assert cause.count == lowered.host_operators == cause.frees
    assert "export with static sizes" in cause.hint
    assert not any("sym_size" in op or op in ("mul", "add") for op in cause.operators)
    static = delegraph.lower(Encoder().eval(), (ids, mask), backends=["tosa"])
    assert len(static.delegates) == 1, static.report
    assert not static.report.causes, static.report


def test_data_dependent_sizes_have_a_hint():
    function = lambda x: (x[x > 0].exp() + 1).sum()
    (cause,) = lower(function, torch.randn(6)).report.causes
    assert "torch.where(mask, x, 0)" in cause.hint
    assert cause.count == 4
    lower_to_one_delegate(
        lambda x: torch.where(x > 0, x.exp() + 1, 0).sum(), torch.randn(6)
    )


@pytest.mark.parametrize(
    ("function", "changed", "dtype", "hint"),
    [
        (
            lambda x: (x * 2).exp().sum(),
            lambda x: (x * 2).exp().sum(),
            torch.float64,
            "args_0 be float32 from the start",
        ),
        (
            lambda x: (x.double() * 2).exp().float(),
            lambda x: (x * 2).exp(),
            torch.float32,
            "without casts to torch.float64",
        ),
    ],
    ids=["given", "made"],
)
def test_hints_for_float64_name_the_changed_call(function, changed, dtype, hint):
    (cause,) = lower(function, torch.ones(3, dtype=dtype)).report.causes
    assert cause.reason.endswith("TOSA has no torch.float64")
    assert hint in cause.hint
    lower_to_one_delegate(changed, torch.ones(3))


def test_a_cast_inside_of_the_model_stays_on_the_host():
    """As the hint says; otherwise it would name the better change too late."""
    lowered = lower(
        lambda x: (x.int() * 2).float().exp(), torch.ones(3, dtype=torch.uint8)
    )
    assert lowered.report.host == {"forward": {"aten.to.dtype": 1}}
    assert (
        "(args_0.int() in the model stays on the host)" in lowered.report.causes[0].hint
    )
    lower_to_one_delegate(
        lambda x: (x.int() * 2).float().exp(), torch.ones(3, dtype=torch.int32)
    )


class Constants(nn.Module):
    """Position and type ids, a mask in double, and a matrix that TOSA has no operator
    for.
    """

    def __init__(self, size):
        super().__init__()
        self.size = size
        self.places = nn.Embedding(32, 8)
        self.types = nn.Embedding(2, 8)
        self.register_buffer("ids", torch.arange(32).unsqueeze(0), persistent=False)

    def forward(self, x):
        count = x.shape[1]
        types = self.types(torch.zeros(1, count, dtype=torch.long))
        mask = torch.triu(
            torch.full((count, count), -1e9, dtype=torch.float64), 1
        ).float()
        steps = torch.linspace(0, 1, self.size)[-8:]
        x = x + self.places(self.ids[:, :count]) + types
        return (
            torch.softmax(x @ x.mT + mask, -1)
            @ x
            @ torch.linalg.inv(2 * torch.eye(8))
            * steps
        )


def test_large_constants_get_the_hint_to_be_buffers():
    x = torch.randn(1, 6, 8)
    lowered = delegraph.lower(Constants(100).eval(), (x,), backends=["tosa"])
    assert len(lowered.delegates) == 1, lowered.report
    assert not lowered.report.causes, lowered.report
    assert lowered.verify(x).relative_error < 1e-5
    large = delegraph.lower(Constants(5_000_000).eval(), (x,), backends=["tosa"]).report
    assert [(cause.hint, cause.operators) for cause in large.causes] == [
        (
            "make it once, in the module's __init__, and register it as a buffer",
            {"aten.linspace.default": 1},
        )
    ], large


def test_hint_for_integer_targets_is_to_quantize():
    lowered = lower(
        lambda x: (x * 2).exp().sum(),
        torch.ones(3),
        options={"tosa": {"spec": "TOSA-1.0+INT"}},
    )
    (cause,) = lowered.report.causes
    assert cause.hint.startswith("quantize the model (delegraph.quantize")
    assert "FP" not in cause.hint
    lower_to_one_delegate(
        lambda x: (x * 2).exp().sum(),
        torch.ones(3),
        options={"tosa": {"spec": "TOSA-1.0+FP+INT"}},
    )


@pytest.mark.parametrize(
    "function", [lambda x: x.sort(-1)[0], lambda x: torch.searchsorted(x, x.flip(0))]
)
def test_refused_sorts_hint_at_topk(function):
    (cause,) = lower(function, torch.randn(2, 4000).sort(-1)[0]).report.causes
    assert "too many" in cause.reason
    assert "x.topk(k) of k up to 64" in cause.hint
    lower_to_one_delegate(lambda x: x.topk(64, -1)[0], torch.randn(2, 4000))


def test_sizes_of_the_run_time_need_another_target():
    def check(spec):
        net = torch.nn.Conv2d(3, 3, 2, stride=2).eval()
        shapes = ({0: torch.export.Dim("batch", max=8)},)
        options = {"tosa": {"spec": spec}}
        x = torch.ones(2, 3, 5, 5)
        return delegraph.lower(
            net, (x,), dynamic_shapes=shapes, backends=["tosa"], options=options
        ).report.causes

    (cause,) = check("TOSA-1.1+FP")
    assert "EXT-SHAPE" in cause.reason
    assert "spec=TOSA-1.1+FP+shape" in cause.hint
    assert not check("TOSA-1.1+FP+shape")


def test_float_borders_of_integer_targets_have_a_hint():
    """The hint leads to a program without it."""
    import torch.ao.quantization.fx._decomposed  # registers the operators
    from delegraph_tosa.borders import integer_borders

    limits = (0.1, 0, -128, 127, torch.int8)
    there, back = (
        getattr(torch.ops.quantized_decomposed, f"{name}_per_tensor")
        for name in ("quantize", "dequantize")
    )

    def sigmoid(x):
        return back(there(back(there(x, *limits), *limits).sigmoid(), *limits), *limits)

    options = {"tosa": {"spec": "TOSA-1.0+INT"}}
    (cause,) = lower(sigmoid, torch.randn(3), options=options).report.causes
    assert cause.count == 2
    assert "transforms=[delegraph_tosa.borders.integer_borders]" in cause.hint
    lowered = lower(
        sigmoid, torch.randn(3), options=options, transforms=[integer_borders]
    )
    assert not lowered.report.causes
