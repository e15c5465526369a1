"""Programs of dynamic sizes become one delegate that gives the results of eager torch at
every size.
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
"""A size from which slices and windows may take elements."""
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
    """The buckets of T5's relative positions: exact below 2, then logarithmic. Buckets of
    positive distances follow those of the others.
    """
    size = distances.abs()
    far = 2 + (torch.log(size.float() / 2) / 2 * 2).to(torch.long)
    far = torch.min(far, torch.full_like(far, 3))
    return (distances > 0).to(torch.long) * 4 + torch.where(size < 2, size, far)


ROWS = {0: N}
BOTH = {0: N, 1: M}
# Name -> makes the module, makes inputs for sizes n and m, and their dynamic shapes.
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
    """Return a module, and the module lowered for dynamic sizes.

    ``inputs`` makes example inputs for two sizes, and ``dynamic`` has their dynamic
    shapes.
    """
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
    _, make_inputs, _ = CASES[name]

    module, lowered = lower_case(name)

    assert len(lowered.delegates) == 1
    assert lowered.report.host_operators == 0
    assert_equals_eager_at_sizes(module, lowered, make_inputs, SIZES)


def file_of(lowered):
    return lowered.delegates[0].processed_bytes


# Cases that run through the reference tools by default.
JUDGED = ["windows", "batch and index", "statistics"]


@pytest.mark.parametrize(
    "name",
    [n if n in JUDGED else pytest.param(n, marks=pytest.mark.slow) for n in CASES],
)
def test_reference_model_runs_files_of_dynamic_size(name):
    _, make_inputs, _ = CASES[name]
    module, lowered = lower_case(name)
    file = file_of(lowered)
    reference_tools.check_strictly_for_spec(file, TosaSpec.parse(SPEC))
    inputs = make_inputs(2, 3)
    # Files have no int64 inputs.
    narrow = [x.int() if x.dtype is torch.int64 else x for x in inputs]
    shapes = {
        value.name: list(x.shape)
        for value, x in zip(read(file).inputs, narrow, strict=True)
    }

    results = reference_tools.run_reference_model(
        reference_tools.with_resolved_shapes(file, shapes),
        [np.ascontiguousarray(x.numpy()) for x in narrow],
    )

    for result, expected in zip(results, tree_leaves(module(*inputs)), strict=True):
        tensor = torch.from_numpy(result).to(expected.dtype)
        assert_close_at_size(tensor, expected.detach(), (2, 3))


@pytest.mark.parametrize("name", ["attention", "views"])
def test_text_of_dynamic_sizes_reads_back(name):
    _, lowered = lower_case(name)

    text = render(read(file_of(lowered)))

    assert "?" in text  # a dynamic size
    assert render(parse(text)) == text


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        (
            (randn(2, 3), randn(5, 4)),
            r"\[2, 3\], \[5, 4\] do not go through the program: CONCAT",
        ),
        (
            (randn(2), randn(2, 4)),
            r"input 0 \(.*\): float32 \[.*\] is wanted, float32 \[2\] was given",
        ),
        ((randn(0, 3), randn(0, 4)), r"float32 \[0, 3\] was given"),
    ],
    ids=["sizes differ", "rank", "empty"],
)
def test_inputs_of_wrong_sizes_are_refused(inputs, text):
    _, lowered = lower_case("cat")
    run = TOSARuntime.load(file_of(lowered), [], {})

    with pytest.raises(InputError, match=text):
        run(*inputs)


# ---- refusals


def refusals_of(function, inputs, dynamic, spec=SPEC):
    """Lower a function and return operator -> reason of its refusals."""
    _, lowered = lower(with_modules(function), lambda n, m: inputs, dynamic, spec)
    return {
        refusal.operator: str(refusal.reason) for refusal in lowered.report.refusals
    }


def test_dynamic_sizes_are_refused_for_tosa_1_0():
    refusals = refusals_of(torch.relu, (randn(3, 4),), [ROWS], "TOSA-1.0+FP+INT")

    assert refusals.keys() == {"aten.relu.default"}
    reason = refusals["aten.relu.default"]
    assert reason.endswith("TOSA 1.0 needs every size at compile time")


def test_only_size_computations_need_the_shape_extension():
    refusals = refusals_of(
        lambda x: x.relu().flatten(1), (randn(3, 4, 2),), [BOTH], "TOSA-1.1+FP+INT"
    )

    assert refusals.keys() == {"aten.flatten.using_ints"}
    assert "EXT-SHAPE of TOSA 1.1" in refusals["aten.flatten.using_ints"]


def test_squeeze_of_a_dynamic_size_is_refused():
    """The rank of the result would depend on the size."""
    refusals = refusals_of(
        lambda x: (x.squeeze(0), x.unbind(1)), (randn(3, 4),), [ROWS]
    )

    assert "is dropped is known at run time only" in refusals["aten.squeeze.dim"]


@pytest.mark.parametrize(("scale", "length"), [(1.7, 10), (2.3, 70)])
def test_scaled_sizes_round_as_in_torch(scale, length):
    """In float64, 10 * 1.7 is exactly 17, but 70 * 2.3 is slightly less than 161."""
    make_inputs = lambda n, m: (randn(1, 2, n * m),)
    make = with_modules(lambda x: F.interpolate(x, scale_factor=scale))

    module, lowered = lower(make, make_inputs, [{2: LONG}])

    assert_equals_eager_at_sizes(module, lowered, make_inputs, [(length, 1)])


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_ratios_of_sizes_round_as_in_torch(mode):
    """82 / 41 is 2, but 82 * (1 / 41) is less than 2 in fp32 and selects another
    element.
    """
    make_inputs = lambda n, m: (randn(1, 1, n, 3), randn(m))
    make = with_modules(lambda x, y: F.interpolate(x, size=(y.shape[0], 3), mode=mode))
    dynamic = [{2: Dim("n", max=400)}, {0: Dim("m", max=400)}]

    module, lowered = lower(make, make_inputs, dynamic)

    assert_equals_eager_at_sizes(
        module,
        lowered,
        make_inputs,
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
def test_refusal_has_a_hint_with_an_alternative(function, hint):
    _, lowered = lower(
        with_modules(function),
        lambda n, m: (randn(1, 2, 6, 4),),
        [{2: 2 * Dim("half", max=16)}],
    )

    assert any(hint in cause.hint for cause in lowered.report.causes)


def test_numbers_that_tosa_cannot_derive_from_sizes_are_refused():
    refusals = refusals_of(
        lambda x: x * abs(x.shape[0] * 0.5 - 3.5), (randn(3, 4),), [ROWS]
    )

    assert "a number that is known at run time only" in refusals["aten.mul.Tensor"]


def test_fractions_of_products_of_sizes_stay_on_the_host():
    refusals = refusals_of(
        lambda x: x.new_zeros((torch.sym_int(x.shape[0] * 0.5 * x.shape[1]),)),
        (randn(3, 4),),
        [BOTH],
    )

    assert "no input has the size" in refusals["aten.new_zeros.default"]


def test_sizes_missing_in_the_operands_are_refused():
    """i1 runs on the host, so the product's delegate never sees y, and y alone has the
    size over which the product sums.
    """

    def gram(x, y):
        z = torch.special.i1(y.reshape(x.shape[0], -1))
        return z @ z.t()

    refusals = refusals_of(
        gram, (randn(3, 4), randn(6, 5)), [{0: Dim.AUTO}, {0: Dim.AUTO}]
    )

    assert "no input has the size" in refusals["aten.matmul.default"]


def test_float_profile_reads_sizes_from_int32_token_ids():
    """The float profile has no integer arithmetic, so the ids must be cast first."""
    make_inputs = lambda n, m: (random_integers(10, n, m).int(),)
    make = with_modules(lambda w, i: w(i).sum(1), nn.Embedding(10, 4))

    module, lowered = lower(make, make_inputs, [BOTH], "TOSA-1.1+FP+shape")

    assert len(lowered.delegates) == 1
    assert lowered.report.host_operators == 0
    assert_equals_eager_at_sizes(module, lowered, make_inputs, SIZES)
    assert "CAST" in {op.name for op in read(file_of(lowered)).operators}
