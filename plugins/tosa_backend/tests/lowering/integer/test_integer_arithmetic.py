"""Quantized sums, products, comparisons and tables give the results of the quantized
graph in eager torch.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from delegraph_tosa.ir.graph import Value
from delegraph_tosa.ir.types import DType, Type
from delegraph_tosa.lowering.integer.sums import aligned
from delegraph_tosa.lowering.lazy.lazy_values import Scaled, trial
from delegraph_tosa.lowering.lazy.quantization import Scale

from ...support.quantized_cases import IntegerFamily
from ...support.rule_cases import WithConstant, randn

FAMILY = IntegerFamily()
ROW = randn(7)
TWO = (3, 20, 7), (3, 20, 7)

FAMILY.case("add", torch.add, *TWO)
FAMILY.case("add-broadcast", torch.add, (3, 20, 7), (20, 1))
FAMILY.case("add-relu", lambda x, y: (x + y).relu(), *TWO)
FAMILY.case("sums", lambda x, y: x + y + x, *TWO)
FAMILY.case("sub", torch.sub, *TWO)
FAMILY.case("mul", torch.mul, *TWO)
FAMILY.case("maximum", torch.maximum, *TWO)
FAMILY.case("minimum", torch.minimum, *TWO)
FAMILY.case("gt", torch.gt, *TWO)
FAMILY.case("le", torch.le, *TWO)
FAMILY.case("masked", lambda x, y: x * (y > 0.01), *TWO)
FAMILY.case(
    "masked-by-floats",
    lambda x, y: x * (y > x).float() + y.sign() * (y > 0).to(torch.float32),
    *TWO,
)
FAMILY.case("sum", lambda x: x.sum(1), (2, 16, 9))

FAMILY.case("cumsum", lambda x: x.cumsum(1), (2, 16, 9))
FAMILY.case("prod", lambda x: x.prod(1), (9, 4, 9))
FAMILY.case(
    "clamp-tensors", lambda x, y: torch.clamp(x, y, y + 0.1), *TWO, dtypes=[torch.int8]
)
FAMILY.case("sum-whole", lambda x: x.sum(), (2, 16, 9))
FAMILY.case("sum-of-functions", lambda x, y: F.silu(x) * y - 2 * torch.sigmoid(y), *TWO)
FAMILY.case("divide", lambda x, y: (x / y).clamp(-2, 2), *TWO)
FAMILY.case("plus-constant", lambda x: 0.5 - (x + ROW) * 2, (3, 20, 7))
FAMILY.case("times-constant", lambda x: x * ROW, (3, 20, 7))
FAMILY.case("above-constant", lambda x: torch.maximum(x, 0.1 * ROW), (3, 20, 7))

FAMILY.case("relu", torch.relu, (3, 50, 7))
FAMILY.case("clamp", lambda x: x.clamp(-0.1, 0.3), (3, 50, 7))
for name, function in {
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
    "silu": F.silu,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "mish-limited": lambda x: F.mish(x) * 1.7,
    "elu": F.elu,
    "square": lambda x: x**2,
    "plus-number": lambda x: x + 1.5,
    "hardswish-in-pieces": lambda x: x * (F.relu6(x + 3) / 6),
    "above-number": lambda x: x > 0.01,
    "sign": torch.sign,
}.items():
    FAMILY.case(name, function, (3, 50, 7))

SLOPES = torch.tensor([0.25, 0.0, -1.5, 0.7])
FAMILY.case(
    "prelu",
    WithConstant(lambda w, x: F.prelu(x, w), torch.full((4,), 0.25)),
    (3, 4, 50),
)
FAMILY.case(
    "prelu-channels", WithConstant(lambda w, x: F.prelu(x, w), SLOPES), (3, 4, 5, 9)
)
FAMILY.case(
    "prelu-of-sum",
    WithConstant(lambda w, x, y: F.prelu(x + y, w), SLOPES),
    (9, 4, 5),
    (9, 4, 1),
)

judged, test_equals_eager = FAMILY.equals_eager()
test_equals_eager_for_any_scales = FAMILY.sweep()


def common_scale(dtype: DType, *scales: float) -> float:
    """Return the scale to which operands of an addition are rescaled."""
    operands = [Scaled(Value(Type((2, 3), dtype)), Scale(s), 0) for s in scales]
    _, scale = aligned(trial(), operands)
    return scale


@pytest.mark.parametrize("dtype, shift", [(DType.INT8, 19), (DType.INT16, 14)])
def test_operands_of_an_addition_are_rescaled_as_vela_expects(dtype, shift):
    """Vela fuses the addition with the RESCALE of its operands only for this scale."""
    assert common_scale(dtype, 0.25, 0.5) == 0.5 / 2**shift


@pytest.mark.parametrize("dtype", [DType.INT8, DType.INT16])
def test_operands_of_equal_scale_are_not_rescaled(dtype):
    assert common_scale(dtype, 0.3, 0.3) == 0.3
