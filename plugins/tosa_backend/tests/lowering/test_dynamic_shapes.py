"""Programs whose sizes are known at run time only: one delegate for all sizes, equal to
eager at each of them.
"""

from __future__ import annotations

from functools import cache

import delegraph
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from delegraph.errors import InputError
from delegraph_tosa.runtime import TOSARuntime
from delegraph_tosa.serialize import read
from delegraph_tosa.spec import TosaSpec
from delegraph_tosa.text import parse, render
from torch import nn
from torch.export import Dim
from torch.utils._pytree import tree_leaves

from ..support import reference_tools

SPEC = "TOSA-1.1+FP+INT+controlflow+shape"
BOUND = 1e-5
"""Largest error relative to the largest output."""
SIZES = [(1, 1), (2, 3), (7, 4)]
N = Dim("n", max=64)
M = Dim("m", max=64)
LONG = Dim("long", min=3, max=70)
"""What a slice or a window takes some elements off."""
LENGTH = Dim("length")
randn = torch.randn


class Function(nn.Module):
    """A function of modules and tensors as a module."""

    def __init__(self, function, *modules):
        super().__init__()
        self.function = function
        self.inner = nn.ModuleList(modules)

    def forward(self, *args):
        return self.function(*self.inner, *args)


def with_modules(function, *modules):
    return lambda: Function(function, *modules).eval()


def random_integers(high, *shape):
    return torch.randint(0, high, shape)


def buckets(distances):
    """T5's: exact up to 2, then by their logarithms; those of positive distances come
    after the others.
    """
    size = distances.abs()
    far = 2 + (torch.log(size.float() / 2) / 2 * 2).to(torch.long)
    far = torch.min(far, torch.full_like(far, 3))
    return (distances > 0).to(torch.long) * 4 + torch.where(size < 2, size, far)


ROWS = {0: N}
BOTH = {0: N, 1: M}
CASES = {
    "relu": (with_modules(torch.relu), lambda n, m: (randn(n, 4),), [ROWS]),
    "softmax": (with_modules(lambda x: x.softmax(-1)), lambda n, m: (randn(n, m),), [BOTH]),
    "linear": (with_modules(lambda w, x: w(x), nn.Linear(4, 5)), lambda n, m: (randn(n, m, 3, 4),), [BOTH]),
    "flatten": (
        with_modules(lambda x: (x.flatten(1), x.flatten(0, 1), x.flatten())),
        lambda n, m: (randn(n, m, 4),),
        [BOTH],
    ),
    "image": (
        with_modules(lambda c, w, x: w(c(x).mean((2, 3))).softmax(-1), nn.Conv2d(3, 4, 3, 2), nn.Linear(4, 5)),
        lambda n, m: (randn(n, 3, 8, 8),),
        [ROWS],
    ),
    "windows": (
        with_modules(lambda c, x: (c(x), F.max_pool2d(x, 2)), nn.Conv2d(3, 4, 3, 2, padding=1)),
        lambda n, m: (randn(2, 3, n + 4, m + 4),),
        [{2: Dim("h", min=4, max=70), 3: Dim("w", min=4, max=70)}],
    ),
    "cat": (with_modules(lambda x, y: torch.cat([x, y, x], 1)), lambda n, m: (randn(n, m), randn(n, 4)), [BOTH, ROWS]),
    "an empty cache": (
        with_modules(lambda x: torch.cat([torch.tensor([]), x], -2) * 2),
        lambda n, m: (randn(2, n, 4),),
        [{1: N}],
    ),
    "slice": (
        with_modules(lambda x: (x[:, 1:], x[:, :-1], x[:, -1])),
        lambda n, m: (randn(n, m + 3),),
        [{0: N, 1: LONG}],
    ),
    "expand": (with_modules(lambda x: x[:, None].expand(-1, x.shape[0], -1)), lambda n, m: (randn(n, 4),), [ROWS]),
    "arange": (
        with_modules(lambda x: x * torch.arange(2, 2 + 2 * x.shape[1], 2) + torch.arange(x.shape[0] - 1, -1, -1)[:, None]),
        lambda n, m: (randn(n, m),),
        [{0: Dim("without_max"), 1: M}],
    ),
    "mask": (
        with_modules(lambda x: x.masked_fill(torch.arange(x.shape[1]) > torch.arange(x.shape[0])[:, None], -1.0).tril(1)),
        lambda n, m: (randn(n, m),),
        [BOTH],
    ),
    "attention": (
        with_modules(lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True)),
        lambda n, m: (randn(n, 2, m, 4),),
        [{0: N, 2: M}],
    ),
    "norms": (
        with_modules(lambda a, b, x: (a(x), b(x)), nn.LayerNorm(8), nn.GroupNorm(1, 8)),
        lambda n, m: (randn(n, 8, 8),),
        [ROWS],
    ),
    "statistics": (
        with_modules(lambda x: (x.mean(), x.mean(1), x.sum((0, 1)), x.amax(0), x.var(1), x.std())),
        lambda n, m: (randn(n + 1, m + 2),),
        [{0: Dim("a", min=2, max=70), 1: LONG}],
    ),
    "sizes as numbers": (
        with_modules(lambda x: x / x.shape[0] + x * x.shape[1] - x.shape[0] + (x.shape[0] * 2 - 3) * x),
        lambda n, m: (randn(n, m),),
        [BOTH],
    ),
    "numbers that sizes make": (
        with_modules(
            lambda x: (
                (x @ x.mT / x.shape[-1] ** 0.5).softmax(-1) * (x.shape[0] ** -0.5 - x.shape[0] / 2),
                torch.where(x > 0, x + x.shape[1] // 2, x.shape[0] * 0.5 - x.shape[0] % 3),
                torch.where(x > 0, x.shape[0], 0.5) + torch.full((1,), 0.5 - x.shape[0] / 2, dtype=torch.int32),
                torch.cond(x.shape[0] > 2, lambda x: x.sin(), lambda x: x * 2, (x,)),
            )
        ),
        lambda n, m: (randn(n, m),),
        [BOTH],
    ),
    "sampled": (
        with_modules(lambda x, g: F.grid_sample(x, g, align_corners=False)),
        lambda n, m: (randn(1, 2, n, m), torch.rand(1, 2, 3, 2) * 2 - 1),
        [{2: N, 3: M}, {}],
    ),
    "made": (
        with_modules(lambda x: (torch.zeros(x.shape[0], 3) + 1, torch.ones_like(x), x.new_full((2 * x.shape[0],), x.shape[1]))),
        lambda n, m: (randn(n, m),),
        [BOTH],
    ),
    "derived": (
        with_modules(lambda x, y: (torch.cat([x, x]) + y, y.view(-1, 2, 4).sum(1))),
        lambda n, m: (randn(n, 4), randn(2 * n, 4)),
        [ROWS, {0: 2 * N}],
    ),
    "views": (
        with_modules(lambda x: (x.view(-1, 2, 2), x.view(x.shape[0], -1), x.permute(2, 0, 1).reshape(4, -1))),
        lambda n, m: (randn(n, m, 4),),
        [BOTH],
    ),
    "batch and index": (
        with_modules(lambda x, i: (x[i], x[:, i], x[torch.arange(x.shape[0]), torch.arange(x.shape[0]) % 4])),
        lambda n, m: (randn(n, n, 4)[:, :].repeat(1, 4, 1), random_integers(n, m)),
        [{0: N, 1: 4 * N}, {0: M}],
    ),
    "products": (
        with_modules(lambda x, y: (x @ y, x @ x.mT, torch.einsum("ij,kj->ik", x, x))),
        lambda n, m: (randn(n, m), randn(m, 3)),
        [BOTH, {0: M}],
    ),
    "tokens": (
        with_modules(lambda w, i: (w(i), F.one_hot(i, 10), i.cumsum(1)), nn.Embedding(10, 4)),
        lambda n, m: (random_integers(10, n, m),),
        [BOTH],
    ),
    "resized": (
        with_modules(
            lambda x: [
                *(F.interpolate(x, scale_factor=s, mode=m) for s in (2.0, 0.5) for m in ("nearest", "bilinear")),
                F.interpolate(x, size=(2 * x.shape[2], 8), mode="bilinear"),
            ]
        ),
        lambda n, m: (randn(n, 1, 4 * m, 4),),
        [{0: N, 2: 4 * Dim("quarter", max=16)}],
    ),
    "resized to a fixed size": (
        with_modules(
            lambda x: [
                F.interpolate(x, size=(5, 6), mode="bilinear"),
                *(F.interpolate(x, size=(41, 4), mode=m) for m in ("nearest", "nearest-exact")),
                F.interpolate(x, size=(3, 4), mode="bicubic", align_corners=True),
                *(F.interpolate(x, scale_factor=1.5, mode=m) for m in ("nearest", "nearest-exact", "bicubic")),
            ]
        ),
        lambda n, m: (randn(2, 3, n + 3, 5),),
        [{2: LONG}],
    ),
    "pooled in parts": (
        with_modules(
            lambda x: (
                *(F.adaptive_avg_pool2d(x, (3, 2)), F.adaptive_max_pool2d(x, 2), F.adaptive_avg_pool1d(x[0], 3)),
                F.adaptive_max_pool2d(x.round(), (2, 3), return_indices=True),
            )
        ),
        lambda n, m: (randn(2, 3, n + 2, m + 2),),
        [{2: LONG, 3: Dim("w", min=3, max=70)}],
    ),
    "parts": (with_modules(lambda x: (x.chunk(2, 1), x.chunk(3, 1))), lambda n, m: (randn(n, 6 * m),), [{0: N, 1: 6 * M}]),
    "windows that are cut": (
        with_modules(lambda x: (x.unfold(3, 3, 2), F.max_pool2d(x, 3, 2, ceil_mode=True))),
        lambda n, m: (randn(1, 2, 8, n + 6),),
        [{3: Dim.AUTO}],
    ),
    "parts that are written": (
        with_modules(lambda x, y: (x.select_scatter(y, 1, -1), x.slice_scatter(y[:, None], 1, 0, 1))),
        lambda n, m: (randn(n, m), randn(n)),
        [BOTH, ROWS],
    ),
    "resized to another": (
        with_modules(lambda x, y: (F.interpolate(x, size=y.shape), F.interpolate(x[0], size=y.shape[0]), x[0, :, : y.shape[0]])),
        lambda n, m: (randn(1, 2, n + m, 4), randn(n, m)),
        [{2: Dim.AUTO}, BOTH],
    ),
    "diagonals": (
        with_modules(lambda x: (x.diagonal(), x.diagonal(1), x.diagonal(-1).sum(), F.pixel_unshuffle(x[None, None], 2))),
        lambda n, m: (randn(2 * n, 2 * m),),
        [{0: 2 * N, 1: 2 * M}],
    ),
    "powers": (
        with_modules(lambda x: (x.pow(x.shape[0]), x ** (1 / x.shape[1]), (-x.abs()).pow(x.shape[1]))),
        lambda n, m: (randn(n, m),),
        [BOTH],
    ),
    "without a maximum": (
        with_modules(
            lambda x, i: (
                *((x > 0).cumsum(1), x.cumsum(0), x / torch.arange(1, x.shape[1] + 1), x.topk(2), x[:, i]),
                *(torch.zeros(6).index_add(0, i, x[0]), x.argsort(), torch.bucketize(x, torch.arange(-1.0, 1.0))),
            ),
        ),
        lambda n, m: (randn(n, 3 * m), random_integers(3, 3 * m)),
        [{0: Dim("rows"), 1: LENGTH}, {0: LENGTH}],
    ),
    "relative positions": (
        with_modules(
            lambda w, x: w(buckets(torch.arange(x.shape[1]) - torch.arange(x.shape[1])[:, None])) + x,
            nn.Embedding(8, 4),
        ),
        lambda n, m: (randn(n, m, 1, 4),),
        [{0: Dim("rows"), 1: LENGTH}],
    ),
    "spectrum": (with_modules(lambda x: torch.fft.rfft(x).abs()), lambda n, m: (randn(n, 8),), [ROWS]),
    "bags": (with_modules(lambda w, i: w(i), nn.EmbeddingBag(10, 4)), lambda n, m: (random_integers(10, n, 5),), [ROWS]),
    "moved": (
        with_modules(
            lambda x: (
                *(x.flip(0), x.roll(1, 1), x.repeat(2, 1), x.cumsum(1)),
                *(F.pad(x, (1, 2)), F.pad(x, (0, -x.shape[1] % 4))),
            )
        ),
        lambda n, m: (randn(n, m),),
        [BOTH],
    ),
}  # fmt: skip


def lower(make, inputs, dynamic, spec=SPEC):
    torch.manual_seed(0)
    module = make()
    program = torch.export.export(
        module, inputs(3, 5), dynamic_shapes=(tuple(dynamic),), strict=False
    )
    return module, delegraph.lower(
        program, backends=["tosa"], options={"tosa": {"spec": spec}}
    )


def assert_equals_eager_at_sizes(module, lowered, inputs, sizes):
    for size in sizes:
        args = inputs(*size)
        with torch.no_grad():
            expected = tree_leaves(module(*args))
        for mine, theirs in zip(tree_leaves(lowered(*args)), expected, strict=True):
            assert_close_at_size(mine, theirs, size)


def assert_close_at_size(mine, theirs, size):
    assert mine.shape == theirs.shape, size
    assert mine.dtype == theirs.dtype, size
    mine = mine.double()
    theirs = theirs.double()
    assert torch.equal(mine.isnan(), theirs.isnan()), size
    error = (mine - theirs).nan_to_num().abs().max()
    assert error <= BOUND * theirs.nan_to_num().abs().max().clamp_min(1e-6), size


@cache
def lower_case(name):
    return lower(*CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_one_delegate_for_all_sizes(name):
    module, result = lower_case(name)
    assert len(result.delegates) == 1, result.report
    assert result.report.host_operators == 0, result.report
    assert_equals_eager_at_sizes(module, result, CASES[name][1], SIZES)


def blob_of(result):
    return result.delegates[0].processed_bytes


JUDGED = ["windows", "batch and index", "statistics"]


@pytest.mark.parametrize(
    "name",
    [n if n in JUDGED else pytest.param(n, marks=pytest.mark.slow) for n in CASES],
)
def test_the_reference_tools_agree(name):
    """tosa-opt takes the file as it is; infer_shapes says all shapes for the reference
    model, which wants them.
    """
    module, result = lower_case(name)
    reference_tools.check_strictly_for_spec(blob_of(result), TosaSpec.parse(SPEC))
    args = CASES[name][1](2, 3)
    names = [value.name for value in read(blob_of(result)).inputs]
    given = [a.int() if a.dtype is torch.int64 else a for a in args]
    static = reference_tools.with_resolved_shapes(
        blob_of(result), {k: list(a.shape) for k, a in zip(names, given, strict=True)}
    )
    found = reference_tools.run_reference_model(
        static, [np.ascontiguousarray(a.numpy()) for a in given]
    )
    for mine, theirs in zip(found, tree_leaves(module(*args)), strict=True):
        assert_close_at_size(
            torch.from_numpy(mine).to(theirs.dtype), theirs.detach(), (2, 3)
        )


@pytest.mark.parametrize("name", ["attention", "views"])
def test_the_text_form_is_read_back(name):
    graph = read(blob_of(lower_case(name)[1]))
    text = render(graph)
    assert "?" in text
    assert render(parse(text)) == text


def test_sizes_that_do_not_go_together_are_the_callers_fault():
    _, result = lower_case("cat")
    with pytest.raises(
        InputError, match=r"\[2, 3\], \[5, 4\] do not go through the program: CONCAT"
    ):
        read_and_run(result, randn(2, 3), randn(5, 4))
    with pytest.raises(
        InputError,
        match=r"input 0 \(.*\): float32 \[.*\] is wanted, float32 \[2\] was given",
    ):
        read_and_run(result, randn(2), randn(2, 4))
    with pytest.raises(InputError, match=r"float32 \[0, 3\] was given"):
        read_and_run(result, randn(0, 3), randn(0, 4))


def read_and_run(result, *inputs):
    return TOSARuntime.load(blob_of(result), [], {})(*inputs)


# ---- what is refused


def refusals_of(function, inputs, dynamic, spec=SPEC):
    _, result = lower(with_modules(function), lambda n, m: inputs, dynamic, spec)
    return [
        (refusal.operator, str(refusal.reason)) for refusal in result.report.refusals
    ]


def test_tosa_1_0_wants_sizes_at_compile_time():
    found = refusals_of(torch.relu, (randn(3, 4),), [ROWS], "TOSA-1.0+FP+INT")
    assert [operator for operator, _ in found] == ["aten.relu.default"]
    assert found[0][1].endswith("TOSA 1.0 needs every size at compile time")


def test_only_size_computations_need_the_shape_extension():
    found = refusals_of(
        lambda x: x.relu().flatten(1), (randn(3, 4, 2),), [BOTH], "TOSA-1.1+FP+INT"
    )
    assert [operator for operator, _ in found] == ["aten.flatten.using_ints"]
    assert "EXT-SHAPE of TOSA 1.1" in found[0][1]


def test_operators_that_depend_on_the_size_are_refused():
    found = dict(
        refusals_of(lambda x: (x.squeeze(0), x.unbind(1)), (randn(3, 4),), [ROWS])
    )
    assert "is dropped is known at run time only" in found["aten.squeeze.dim"]


@pytest.mark.parametrize(("scale", "length"), [(1.7, 10), (2.3, 70)])
def test_a_scaled_size_is_rounded_as_torch_rounds_it(scale, length):
    """In float64 10 * 1.7 is 17, and 70 * 2.3 is less than 161. What no whole numbers
    give stays on the host.
    """
    inputs = lambda n, m: (randn(1, 2, n * m),)
    assert_equals_eager_at_sizes(
        *lower(
            with_modules(lambda x: F.interpolate(x, scale_factor=scale)),
            inputs,
            [{2: LONG}],
        ),
        inputs,
        [(length, 1)],
    )


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_a_ratio_of_sizes_is_rounded_as_torch_rounds_it(mode):
    """82 / 41 is 2, and 82 * (1 / 41) is less in fp32: another element would be the
    nearest.
    """
    inputs = lambda n, m: (randn(1, 1, n, 3), randn(m))
    make = with_modules(lambda x, y: F.interpolate(x, size=(y.shape[0], 3), mode=mode))
    dynamic = [{2: Dim("n", max=400)}, {0: Dim("m", max=400)}]
    module, result = lower(make, inputs, dynamic)
    assert_equals_eager_at_sizes(
        module,
        result,
        inputs,
        [(82, 41), (41, 41), (287, 41), (22, 41), (170, 211), (13, 221), (399, 57)],
    )


@pytest.mark.parametrize(
    ("function", "hint"),
    [
        (
            lambda x: F.interpolate(x, size=(3, 4), mode="bilinear", antialias=True),
            "antialias=False",
        ),
        (
            lambda x: x + torch.arange(0.0, x.shape[2] / 2, 0.5)[:, None],
            "torch.arange(count) * step",
        ),
        (lambda x: x.squeeze(), "x.squeeze(dim)"),
        (lambda x: x.int().pow(x.shape[2]), "float"),
    ],
    ids=["antialias", "arange", "squeeze", "power"],
)
def test_a_refusal_names_a_way_out(function, hint):
    _, result = lower(
        with_modules(function),
        lambda n, m: (randn(1, 2, 6, 4),),
        [{2: 2 * Dim("half", max=16)}],
    )
    assert any(hint in cause.hint for cause in result.report.causes), result.report


def test_numbers_that_tosa_cannot_derive_from_sizes_are_refused():
    found = dict(
        refusals_of(lambda x: x * abs(x.shape[0] * 0.5 - 3.5), (randn(3, 4),), [ROWS])
    )
    assert "a number that is known at run time only" in found["aten.mul.Tensor"]


def test_a_product_of_sizes_and_a_fraction_stays_on_the_host():
    found = dict(
        refusals_of(
            lambda x: x.new_zeros((torch.sym_int(x.shape[0] * 0.5 * x.shape[1]),)),
            (randn(3, 4),),
            [BOTH],
        )
    )
    assert "no input has the size" in found["aten.new_zeros.default"]


def test_sizes_missing_in_the_operands_are_refused():
    """After the host's operator nothing tells how many rows y had, of which the product
    makes its sum.
    """

    def gram(x, y):
        z = torch.special.i1(y.reshape(x.shape[0], -1))
        return z @ z.t()

    found = refusals_of(
        gram, (randn(3, 4), randn(6, 5)), [{0: Dim.AUTO}, {0: Dim.AUTO}]
    )
    assert "no input has the size" in dict(found)["aten.matmul.default"]


# ---- a decoder's int32 ids alone tell the sizes, under FP alone as well


def test_sizes_are_read_from_operands_of_the_profile():
    make = with_modules(lambda w, i: w(i).sum(1), nn.Embedding(10, 4))
    module, result = lower(
        make,
        lambda n, m: (random_integers(10, n, m).int(),),
        [BOTH],
        "TOSA-1.1+FP+shape",
    )
    assert len(result.delegates) == 1, result.report
    assert result.report.host_operators == 0, result.report
    assert_equals_eager_at_sizes(
        module, result, lambda n, m: (random_integers(10, n, m).int(),), SIZES
    )
    assert "CAST" in {op.name for op in read(blob_of(result)).operators}
