"""Element types of at most 8 bits: every bit pattern, and rounding, against OCP's
tables, torch and ml_dtypes.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from delegraph_tosa.evaluate.small_floats import (
    FORMATS,
    FRACTIONS,
    decoded,
    encoded,
    overflow,
)
from delegraph_tosa.ir.types import DType

FP4 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
FP6_E2M3 = [
    *(k / 8 for k in range(16)),
    *(k / 4 for k in range(8, 16)),
    *(k / 2 for k in range(8, 16)),
]
FP6_E3M2 = [
    *(k / 16 for k in range(8)), *(k / 8 for k in range(4, 8)), *(k / 4 for k in range(4, 8)),
    *(k / 2 for k in range(4, 8)), *range(4, 8), *range(8, 16, 2), *range(16, 32, 4),
]  # fmt: skip
TABLES = {DType.FP4E2M1: FP4, DType.FP6E2M3: FP6_E2M3, DType.FP6E3M2: FP6_E3M2}
"""Numbers without sign by bit pattern, written from the OCP Microscaling Formats
specification 1.0, section 5.3.
"""
TORCH = {
    DType.FP8E4M3: torch.float8_e4m3fn,
    DType.FP8E5M2: torch.float8_e5m2,
    DType.FP8UE8M0: torch.float8_e8m0fnu,
}
ML_DTYPES = {
    DType.FP8E4M3: "float8_e4m3fn", DType.FP8E5M2: "float8_e5m2", DType.FP8UE8M0: "float8_e8m0fnu",
    DType.FP6E2M3: "float6_e2m3fn", DType.FP6E3M2: "float6_e3m2fn", DType.FP4E2M1: "float4_e2m1fn",
}  # fmt: skip


def all_bit_patterns(dtype: DType) -> np.ndarray:
    return np.arange(
        256 if dtype is DType.FP8UE8M0 else 2 * FORMATS[dtype].sign, dtype=np.uint8
    )


def assert_same_bits(left: np.ndarray, right: np.ndarray) -> None:
    np.testing.assert_array_equal(left, right)
    known = ~np.isnan(left)
    np.testing.assert_array_equal(np.signbit(left)[known], np.signbit(right)[known])


@pytest.mark.parametrize("dtype", TABLES)
def test_numbers_are_those_of_the_specification(dtype):
    numbers = np.array(TABLES[dtype], np.float32)
    assert_same_bits(
        decoded(all_bit_patterns(dtype), dtype), np.concatenate([numbers, -numbers])
    )


def test_extremes_of_the_specification():
    """Largest, smallest normal and smallest subnormal numbers (section 5.3, tables 2 to
    5; E8M0 in 5.4.1).
    """
    expected = {
        DType.FP8E4M3: ([0x7E, 0x08, 0x01], [448, 2**-6, 2**-9]),
        DType.FP8E5M2: ([0x7B, 0x04, 0x01], [57344, 2**-14, 2**-16]),
        DType.FP6E3M2: ([0x1F, 0x04, 0x01], [28, 2**-2, 2**-4]),
        DType.FP6E2M3: ([0x1F, 0x08, 0x01], [7.5, 1, 2**-3]),
        DType.FP4E2M1: ([0x7, 0x2, 0x1], [6, 1, 0.5]),
        DType.FP8UE8M0: ([0, 127, 254], [2**-127, 1, 2**127]),
    }
    for dtype, (bits, numbers) in expected.items():
        assert decoded(np.array(bits, np.uint8), dtype).tolist() == numbers
    assert decoded(np.array([-128, -1, 64, 127], np.int8), DType.MXINT8).tolist() == [
        -2,
        -1 / 64,
        1,
        1 + 63 / 64,
    ]


@pytest.mark.parametrize("dtype", TORCH)
def test_numbers_are_those_of_torch(dtype):
    assert_same_bits(
        decoded(all_bit_patterns(dtype), dtype),
        torch.from_numpy(all_bit_patterns(dtype)).view(TORCH[dtype]).float().numpy(),
    )


@pytest.mark.parametrize("dtype", ML_DTYPES)
def test_numbers_and_rounding_are_those_of_ml_dtypes(dtype):
    other = getattr(pytest.importorskip("ml_dtypes"), ML_DTYPES[dtype])
    assert_same_bits(
        decoded(all_bit_patterns(dtype), dtype),
        all_bit_patterns(dtype).view(other).astype(np.float32),
    )
    numbers = decoded(all_bit_patterns(dtype), dtype)
    numbers = np.unique(np.abs(numbers[np.isfinite(numbers)]))
    # in fp32, since ml_dtypes rounds float64 twice
    middles = (numbers[1:] + numbers[:-1]) / 2
    beside = [
        np.nextafter(middles, np.float32(0)),
        np.nextafter(middles, np.float32(np.inf)),
    ]
    given = np.concatenate([numbers, middles, *beside])
    # scales are powers of two
    given = numbers if dtype is DType.FP8UE8M0 else np.concatenate([given, -given])
    np.testing.assert_array_equal(
        encoded(given, dtype), given.astype(other).view(np.uint8)
    )


@pytest.mark.parametrize("dtype", sorted(FRACTIONS))
def test_every_pattern_comes_back(dtype):
    bits = (
        np.arange(-128, 128).astype(np.int8)
        if dtype is DType.MXINT8
        else all_bit_patterns(dtype)
    )
    numbers = decoded(bits, dtype)
    known = ~np.isnan(numbers)
    np.testing.assert_array_equal(encoded(numbers, dtype)[known], bits[known])
    if dtype in (DType.FP8E4M3, DType.FP8E5M2, DType.FP8UE8M0):
        assert np.isnan(decoded(encoded(numbers[~known], dtype), dtype)).all()
        assert not known.all()


def test_ties_are_even_and_bits_above_the_type_are_ignored():
    assert encoded(
        np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -5]), DType.FP4E2M1
    ).tolist() == [*(0, 2, 2, 4, 4, 6, 6, 14)]
    assert encoded(
        np.array([0.5, 1.5, 2.5, -0.5, -1.5]) / 64, DType.MXINT8
    ).tolist() == [0, 2, 2, 0, -2]
    assert decoded(np.array([0xF2, 0x22], np.uint8), DType.FP4E2M1).tolist() == [1, 1]


BEYOND = {
    DType.FP8E4M3: (464, False, [0x7E, 0x7F, 0x7F, 0xFF]),
    DType.FP8E5M2: (61440, True, [0x7B, 0x7C, 0x7C, 0xFC]),
    DType.FP6E2M3: (7.75, True, [31, 31, 31, 63]),
    DType.FP6E3M2: (30, True, [31, 31, 31, 63]),
    DType.FP4E2M1: (7, True, [7, 7, 7, 15]),
    DType.MXINT8: (127.5 / 64, True, [127, 127, 127, -128]),
}


@pytest.mark.parametrize("dtype", BEYOND)
def test_values_beyond_the_range_saturate_or_overflow(dtype):
    limit, itself, bits = BEYOND[dtype]
    assert overflow(dtype) == (limit, itself)
    given = [np.nextafter(limit, 0), np.nextafter(limit, np.inf), np.inf, -np.inf]
    assert encoded(np.array(given), dtype).tolist() == bits
    nan = encoded(np.array([np.nan]), dtype)
    assert np.isnan(decoded(nan, dtype)).all() == (
        dtype in (DType.FP8E4M3, DType.FP8E5M2)
    )
