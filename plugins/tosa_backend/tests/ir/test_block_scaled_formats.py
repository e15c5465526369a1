"""Floats of at most 8 bits decode and round as the OCP tables, torch and ml_dtypes do."""

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
    if dtype is DType.FP8UE8M0:
        count = 256
    else:
        count = 2 * FORMATS[dtype].sign  # the sign is the highest bit
    return np.arange(count, dtype=np.uint8)


def assert_same_numbers_and_signs(left: np.ndarray, right: np.ndarray) -> None:
    """Compare numbers, and the signs of all but NaN: of zeros, too."""
    np.testing.assert_array_equal(left, right)
    known = ~np.isnan(left)
    np.testing.assert_array_equal(np.signbit(left)[known], np.signbit(right)[known])


@pytest.mark.parametrize("dtype", TABLES)
def test_decoded_numbers_equal_those_of_the_specification(dtype):
    numbers = np.array(TABLES[dtype], np.float32)

    decoded_numbers = decoded(all_bit_patterns(dtype), dtype)

    assert_same_numbers_and_signs(decoded_numbers, np.concatenate([numbers, -numbers]))


@pytest.mark.parametrize(
    ("dtype", "bits", "numbers"),
    [
        (DType.FP8E4M3, [0x7E, 0x08, 0x01], [448, 2**-6, 2**-9]),
        (DType.FP8E5M2, [0x7B, 0x04, 0x01], [57344, 2**-14, 2**-16]),
        (DType.FP6E3M2, [0x1F, 0x04, 0x01], [28, 2**-2, 2**-4]),
        (DType.FP6E2M3, [0x1F, 0x08, 0x01], [7.5, 1, 2**-3]),
        (DType.FP4E2M1, [0x7, 0x2, 0x1], [6, 1, 0.5]),
    ],
)
def test_extremes_equal_those_of_the_specification(dtype, bits, numbers):
    """Largest, smallest normal and smallest subnormal number: OCP Microscaling Formats
    1.0, section 5.3, tables 2 to 5.
    """
    assert decoded(np.array(bits, np.uint8), dtype).tolist() == numbers


def test_scales_are_powers_of_two():
    """OCP Microscaling Formats 1.0, section 5.4.1."""
    bits = np.array([0, 127, 254], np.uint8)

    assert decoded(bits, DType.FP8UE8M0).tolist() == [2**-127, 1, 2**127]


def test_mxint8_counts_in_sixty_fourths():
    bits = np.array([-128, -1, 64, 127], np.int8)

    assert decoded(bits, DType.MXINT8).tolist() == [-2, -1 / 64, 1, 1 + 63 / 64]


@pytest.mark.parametrize("dtype", TORCH)
def test_decoded_numbers_equal_those_of_torch(dtype):
    bits = all_bit_patterns(dtype)

    assert_same_numbers_and_signs(
        decoded(bits, dtype), torch.from_numpy(bits).view(TORCH[dtype]).float().numpy()
    )


@pytest.mark.parametrize("dtype", ML_DTYPES)
def test_decoded_numbers_equal_those_of_ml_dtypes(dtype):
    ml_dtype = getattr(pytest.importorskip("ml_dtypes"), ML_DTYPES[dtype])
    bits = all_bit_patterns(dtype)

    assert_same_numbers_and_signs(
        decoded(bits, dtype), bits.view(ml_dtype).astype(np.float32)
    )


@pytest.mark.parametrize("dtype", ML_DTYPES)
def test_rounding_equals_that_of_ml_dtypes(dtype):
    ml_dtype = getattr(pytest.importorskip("ml_dtypes"), ML_DTYPES[dtype])
    numbers = decoded(all_bit_patterns(dtype), dtype)
    exact = np.unique(np.abs(numbers[np.isfinite(numbers)]))
    if dtype is DType.FP8UE8M0:
        x = exact  # scales are never rounded, and have no sign
    else:
        # fp32, because ml_dtypes rounds float64 twice
        halfway = (exact[1:] + exact[:-1]) / 2
        below = np.nextafter(halfway, np.float32(0))
        above = np.nextafter(halfway, np.float32(np.inf))
        magnitudes = np.concatenate([exact, halfway, below, above])
        x = np.concatenate([magnitudes, -magnitudes])

    np.testing.assert_array_equal(encoded(x, dtype), x.astype(ml_dtype).view(np.uint8))


@pytest.mark.parametrize("dtype", sorted(FRACTIONS))
def test_decoded_numbers_encode_to_the_same_bits(dtype):
    if dtype is DType.MXINT8:
        bits = np.arange(-128, 128).astype(np.int8)
    else:
        bits = all_bit_patterns(dtype)
    numbers = decoded(bits, dtype)
    is_number = ~np.isnan(numbers)

    encoded_bits = encoded(numbers, dtype)

    np.testing.assert_array_equal(encoded_bits[is_number], bits[is_number])


@pytest.mark.parametrize("dtype", [DType.FP8E4M3, DType.FP8E5M2, DType.FP8UE8M0])
def test_decoded_nan_encodes_to_nan(dtype):
    numbers = decoded(all_bit_patterns(dtype), dtype)
    nans = numbers[np.isnan(numbers)]
    assert len(nans) > 0

    assert np.isnan(decoded(encoded(nans, dtype), dtype)).all()


def test_fp4_rounds_ties_to_even_bits():
    ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -5])

    assert encoded(ties, DType.FP4E2M1).tolist() == [0, 2, 2, 4, 4, 6, 6, 14]


def test_mxint8_rounds_ties_to_even_bits():
    ties = np.array([0.5, 1.5, 2.5, -0.5, -1.5]) / 64

    assert encoded(ties, DType.MXINT8).tolist() == [0, 2, 2, 0, -2]


def test_decoding_ignores_bits_above_the_type():
    bits = np.array([0xF2, 0x22], np.uint8)  # only the low four bits are FP4

    assert decoded(bits, DType.FP4E2M1).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("dtype", "limit", "limit_overflows"),
    [
        (DType.FP8E4M3, 464, False),
        (DType.FP8E5M2, 61440, True),
        (DType.FP6E2M3, 7.75, True),
        (DType.FP6E3M2, 30, True),
        (DType.FP4E2M1, 7, True),
        (DType.MXINT8, 127.5 / 64, True),
    ],
)
def test_overflow_limit_of_each_type(dtype, limit, limit_overflows):
    """The limit is halfway between the largest number and the next one, which the type
    lacks.
    """
    assert overflow(dtype) == (limit, limit_overflows)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        # E4M3 overflows to NaN, E5M2 to infinity; the others saturate.
        (DType.FP8E4M3, [0x7E, 0x7F, 0x7F, 0xFF]),
        (DType.FP8E5M2, [0x7B, 0x7C, 0x7C, 0xFC]),
        (DType.FP6E2M3, [0x1F, 0x1F, 0x1F, 0x3F]),
        (DType.FP6E3M2, [0x1F, 0x1F, 0x1F, 0x3F]),
        (DType.FP4E2M1, [0x7, 0x7, 0x7, 0xF]),
        (DType.MXINT8, [127, 127, 127, -128]),
    ],
)
def test_numbers_beyond_the_limit_saturate_or_overflow(dtype, expected):
    limit, _ = overflow(dtype)
    just_below = np.nextafter(limit, 0)
    just_above = np.nextafter(limit, np.inf)

    bits = encoded(np.array([just_below, just_above, np.inf, -np.inf]), dtype)

    assert bits.tolist() == expected


@pytest.mark.parametrize(
    ("dtype", "has_nan"),
    [
        (DType.FP8E4M3, True),
        (DType.FP8E5M2, True),
        (DType.FP6E2M3, False),
        (DType.FP6E3M2, False),
        (DType.FP4E2M1, False),
        (DType.MXINT8, False),
    ],
)
def test_nan_stays_nan_only_in_types_that_have_it(dtype, has_nan):
    nan = encoded(np.array([np.nan]), dtype)

    assert np.isnan(decoded(nan, dtype)).all() == has_nan
