"""Functions of sums and products without quantization in between give the results of the
quantized graph in eager torch.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from delegraph.errors import Unsupported
from delegraph_tosa.backend import compile_program

from ...support.quantized_cases import SPECS, IntegerFamily, quantized_row

FAMILY = IntegerFamily()
TWO = (3, 20, 7), (3, 20, 7)
BYTES = [torch.int8]

FAMILY.case("tanh-of-sum", lambda x, y: torch.tanh(x + y), *TWO)
FAMILY.case("sigmoid-of-product", lambda x, y: torch.sigmoid(x * y), *TWO)
FAMILY.case(
    "gate",
    lambda x, y: torch.sigmoid(x + y) * torch.tanh(x - y) + torch.sigmoid(y) * x,
    *TWO,
)
FAMILY.case("chain", lambda x, y: F.gelu(torch.tanh(y - x) * 2 + 1), *TWO)
FAMILY.case("of-matrices", lambda x, y: torch.sigmoid(x @ y.mT), *TWO)
FAMILY.case("of-limited", lambda x, y: torch.tanh(F.hardtanh(x + y, -0.1, 0.2)), *TWO)
FAMILY.case(
    "of-wide", lambda x, y: F.gelu(100 * (x @ y.mT)), *TWO, dtypes=[torch.int16]
)
FAMILY.case("moved", lambda x, y: torch.sigmoid(x + y).flatten(1).relu(), *TWO)
FAMILY.case("absolute", lambda x, y: (x - y).abs() + x, *TWO)
FAMILY.case("steps-of-product", lambda x, y: torch.floor(x * y * 8), *TWO, dtypes=BYTES)
FAMILY.case(
    "truth-of-product", lambda x, y: torch.tanh(x * y) > 0.001, *TWO, dtypes=BYTES
)
FAMILY.case("above-number", lambda x, y: x + y > 0.0123, *TWO)
FAMILY.case("at-most-number", lambda x, y: x * y <= -0.0123, *TWO)

judged, test_equals_eager = FAMILY.equals_eager()
# Larger sums would need more pieces of a table than the lowering makes.
test_equals_eager_for_any_scales = FAMILY.sweep(most=-1.5)


@pytest.mark.parametrize(
    "function", [torch.floor, lambda v: torch.sqrt(v.abs())], ids=["jumps", "bends"]
)
def test_functions_that_tables_approximate_badly_are_refused(function):
    module, inputs = quantized_row(lambda x, y: function(x + y), TWO, torch.int16, 0)

    with pytest.raises(
        Unsupported,
        match="a sum or product that nothing quantizes before, and tables cannot",
    ):
        compile_program(torch.export.export(module, tuple(inputs)), SPECS[torch.int16])
