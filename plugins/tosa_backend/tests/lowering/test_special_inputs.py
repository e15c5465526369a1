"""Functions of NaN, infinities, signed zeros and subnormal numbers give the results of
eager torch, except for the differences that ``KNOWN`` lists with a reason.
"""

from __future__ import annotations

import delegraph
import pytest
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
inf = float("inf")
nan = float("nan")
LARGEST = 3.4028234663852886e38
SMALLEST_NORMAL = 1.1754943508222875e-38
SUBNORMAL = 1e-40
SIZES = (
    0.0,
    SUBNORMAL,
    SMALLEST_NORMAL,
    0.5,
    1.0,
    1.5,
    2.5,
    3.0,
    100.0,
    1e20,
    LARGEST,
    inf,
)
NUMBERS = torch.tensor([-size for size in reversed(SIZES)] + [*SIZES, nan])
BOUND = 2e-6
FLUSHED = 2e-38
"""Largest relative error; what is smaller than the smallest normal number may be zero.
"""

of_torch = (
    "abs neg exp log sqrt rsqrt reciprocal floor ceil erf sin cos square sigmoid tanh"
    " relu log2 log10 log1p exp2 expm1 tan asin acos atan sinh cosh asinh acosh atanh"
    " round trunc frac sign sgn signbit isnan isinf isfinite isposinf isneginf erfc"
    " erfinv logit i0 sinc nan_to_num logical_not"
).split()
of_networks = (
    "relu6 hardtanh hardsigmoid hardswish silu gelu elu selu celu leaky_relu softplus"
    " logsigmoid mish softsign tanhshrink hardshrink softshrink"
).split()
ONE = {
    **{name: getattr(torch, name) for name in of_torch},
    **{name: getattr(F, name) for name in of_networks},
    "clamp": lambda x: x.clamp(-1, 1),
    "prelu": lambda x: F.prelu(x, torch.tensor([0.25])),
    **{
        f"x ** {p}": lambda x, p=p: x.pow(p)
        for p in (2, 3, 0.5, -1, -2, -0.5, 1.7, 0, 4)
    },
    **{f"{b} ** x": lambda x, b=b: torch.pow(b, x) for b in (2.0, 0.5, 0.0, -1.5)},
    **{
        f"to {t}": lambda x, t=t: x.to(t)
        for t in (torch.int32, torch.int16, torch.int8, torch.bool, torch.float16)
    },
    "x / 3": lambda x: x / 3,
    "1 / x": lambda x: 1 / x,
}
two_of_torch = (
    "add sub mul div maximum minimum atan2 pow fmax fmin hypot logaddexp logaddexp2 eq"
    " ne lt le gt ge copysign xlogy floor_divide heaviside isclose"
).split()
TWO = {
    **{name: getattr(torch, name) for name in two_of_torch},
    "clamp by a tensor": lambda x, y: torch.clamp(x, min=y),
    "truncated quotient": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
}
ROWS = torch.tensor(
    [
        *(
            [1.0, nan, 3.0],
            [inf, 1.0, -inf],
            [LARGEST, LARGEST, 1.0],
            [SUBNORMAL, SUBNORMAL, 0.0],
            [nan, inf, nan],
        ),
        *(
            [inf, inf, 1.0],
            [-inf, -inf, -inf],
            [1e20, -1e20, 1e20],
            [0.0, 0.0, 0.0],
            [1e-30, 2e-30, 3e-30],
        ),
    ]
)
ROW = {
    **{
        name: lambda x, n=name: getattr(x, n)(1)
        for name in "sum mean amax amin prod var std logsumexp".split()
    },
    **{
        name: lambda x, n=name: getattr(x, n)(1)
        for name in "softmax log_softmax cumsum cumprod any all".split()
    },
    **{
        name: lambda x, n=name: getattr(x, n)(1)[0]
        for name in "max min cummax sort median logcumsumexp".split()
    },
    **{f"norm {p}": lambda x, p=p: x.norm(p, dim=1) for p in (1, 2, 3, inf)},
    **{
        name: lambda x, n=name: getattr(x, n)(1).int()
        for name in ("argmax", "argmin", "count_nonzero")
    },
    "place of the maximum": lambda x: x.max(1)[1].int(),
    "stable order": lambda x: x.sort(dim=1, stable=True)[1].int(),
    "topk": lambda x: x.topk(2, 1)[0],
    "max_pool": lambda x: F.max_pool1d(x[None], 3)[0],
    "layer_norm": lambda x: F.layer_norm(x, (3,)),
    "group_norm": lambda x: F.group_norm(x[:, :, None], 1)[:, :, 0],
}
ROW["logcumsumexp"] = lambda x: x.logcumsumexp(1)
PAIRS = tuple(
    grid.flatten() for grid in torch.meshgrid(NUMBERS, NUMBERS, indexing="ij")
)

KNOWN = {
    "gelu": (
        "inf is inf, as in torch's code for single elements; its vector code has NaN"
    ),
    "x ** 1.7": "the exponent is rounded to fp32",
    "logaddexp2": "torch's of -1 and -1 is 1e-8 away from 0",
    "softshrink": "x * 0 has the sign of x",
    "truncated quotient": "a zero has no sign",
    "fmax": "which of two zeros it is is open",
    "fmin": "which of two zeros it is is open",
    "layer_norm": "a variance that overflows gives 0",
    "group_norm": "a variance that overflows gives 0",
}


class Outputs(nn.Module):
    """All functions of the same inputs, so that one program has them."""

    def __init__(self, functions):
        super().__init__()
        self.functions = functions

    def forward(self, *inputs):
        return tuple(function(*inputs) for function in self.functions.values())


def agrees(mine, eager):
    if not eager.is_floating_point():
        return torch.equal(mine, eager)
    mine = mine.double()
    eager = eager.double()
    zeros = (eager == 0) & (mine == 0)
    near = (mine - eager).abs() <= BOUND * eager.abs() + (
        FLUSHED if eager.dtype is not torch.float16 else 0
    )
    close = (
        (mine == eager)
        | (mine.isnan() & eager.isnan())
        | (mine.isfinite() & eager.isfinite() & near)
    )
    return bool(close.all()) and torch.equal(
        mine[zeros].signbit(), eager[zeros].signbit()
    )


@pytest.mark.parametrize(
    ("functions", "inputs"),
    [(ONE, (NUMBERS,)), (TWO, PAIRS), (ROW, (ROWS,))],
    ids=["one", "two", "row"],
)
def test_special_inputs_equal_eager(functions, inputs):
    module = Outputs(functions).eval()
    lowered = delegraph.lower(module, inputs, backends=["tosa"])
    assert lowered.report.host_operators == 0, lowered.report
    results = zip(functions, lowered(*inputs), module(*inputs), strict=True)
    different = {name for name, mine, eager in results if not agrees(mine, eager)}
    assert different == KNOWN.keys() & functions.keys()
