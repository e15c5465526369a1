"""Lowering rules for quantization and dequantization of floats give the results of eager
torch.
"""

from __future__ import annotations

import torch

from ...support.quantized_cases import LIMITS, quantized_decomposed
from ...support.rule_cases import Family, WithConstant, inf, randn

FAMILY = Family()

EDGES = torch.tensor(
    [-inf, -200.0, -12.75, -0.5, -0.25, 0.0, 0.25, 0.75, 1.25, 12.75, 200.0, inf]
)


def quantize(scale, zero_point, low, high, dtype):
    return lambda x: quantized_decomposed.quantize_per_tensor(
        x, scale, zero_point, low, high, dtype
    )


def dequantize(scale, zero_point, dtype):
    return lambda x: quantized_decomposed.dequantize_per_tensor(
        x, scale, zero_point, *LIMITS[dtype], dtype
    )


def dequantize_channels(scales, zero_points, x):
    return quantized_decomposed.dequantize_per_channel(
        x, scales, zero_points, 1, -128, 127, torch.int8
    )


def whole(dtype, *shape):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(*LIMITS[dtype], shape, generator=generator, dtype=dtype)


FAMILY.cases("quantize", quantize(0.5, 0, -128, 127, torch.int8), EDGES, randn(3, 5))
FAMILY.cases(
    "quantize-zero-point", quantize(0.1, -7, -128, 127, torch.int8), EDGES, randn(3, 5)
)
FAMILY.cases("quantize-narrow", quantize(0.5, 0, -8, 7, torch.int8), EDGES)
FAMILY.cases(
    "quantize-int16", quantize(0.001, 0, -32767, 32767, torch.int16), randn(3, 5)
)
FAMILY.cases("dequantize", dequantize(0.03, -5, torch.int8), whole(torch.int8, 3, 5))
FAMILY.cases(
    "dequantize-int16", dequantize(0.03, 0, torch.int16), whole(torch.int16, 3, 5)
)
channels = torch.tensor([0.5, 0.1, 0.003]), torch.full((3,), 4)
FAMILY.cases(
    "dequantize-channels",
    WithConstant(
        lambda s, z, x: quantized_decomposed.dequantize_per_channel(
            x, s, z, 1, -128, 127, torch.int8
        ),
        *channels,
    ),
    whole(torch.int8, 2, 3, 4),
)

SCALE = torch.tensor([0.1])
POINT = torch.tensor([-7])
LIMITS_OF_INT8 = torch.tensor(-128), torch.tensor(127)
FAMILY.cases(
    "quantize-by-tensors",
    WithConstant(
        lambda s, z, x: quantized_decomposed.quantize_per_tensor(
            x, s, z, -128, 127, torch.int8
        ),
        SCALE,
        POINT,
    ),
    EDGES,
)
FAMILY.cases(
    "dequantize-by-tensors",
    WithConstant(
        lambda s, z, x: quantized_decomposed.dequantize_per_tensor(
            x, s, z, -128, 127, torch.int8
        ),
        SCALE,
        POINT,
    ),
    whole(torch.int8, 3, 5),
)


def quantize_and_back(s, z, low, high, x):
    q = quantized_decomposed.quantize_per_tensor.tensor2(x, s, z, low, high, torch.int8)
    return quantized_decomposed.dequantize_per_tensor.tensor2(
        q, s, z, low, high, torch.int8
    )


FAMILY.cases(
    "by-tensors", WithConstant(quantize_and_back, SCALE, POINT, *LIMITS_OF_INT8), EDGES
)

test_rows_call_every_rule = FAMILY.covers("quantize")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)
