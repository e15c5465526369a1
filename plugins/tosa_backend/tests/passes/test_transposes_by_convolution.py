"""The pass that replaces a transposition by a convolution for NPUs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from delegraph_tosa.evaluate import evaluate
from delegraph_tosa.ir.types import ARRAY_DTYPES, DType
from delegraph_tosa.passes import run_passes
from delegraph_tosa.spec import TosaSpec, target

from ..support.drafts import NHWC, Draft, assert_well_formed, count_operators

INT = TosaSpec.parse("TOSA-1.0+INT")


@pytest.fixture
def npu(monkeypatch):
    """A target for the Ethos-U85 that takes all of PRO-INT."""
    monkeypatch.setitem(target._DEVICES, "u85", lambda operator: None)
    return replace(INT, devices=frozenset({"u85"}))


def optimize_one_transpose(spec, *shape, perms=NHWC, dtype=DType.INT8):
    """Optimize one TRANSPOSE, check its results, and count the operators by name."""
    draft = Draft(dtype=dtype)
    y = draft.transpose(draft.input(*shape), *perms)
    result = run_passes(draft.graph(y), spec)
    assert_well_formed(result, spec)
    arrays = [draft.random.integers(-128, 128, shape).astype(ARRAY_DTYPES[dtype])]
    np.testing.assert_array_equal(
        evaluate(result, arrays)[0], arrays[0].transpose(perms)
    )
    return count_operators(result)


TRANSPOSES = pytest.mark.parametrize(
    "shape, perms",
    [((1, 3, 64, 96), NHWC), ((1, 2, 4100), (0, 2, 1)), ((1, 4, 72, 71), NHWC)],
)


@TRANSPOSES
def test_transpose_becomes_a_convolution_for_npus(npu, shape, perms):
    operators = optimize_one_transpose(npu, *shape, perms=perms)

    assert operators == {"RESHAPE": 2, "CONV2D": 1, "RESCALE": 1}


@TRANSPOSES
def test_transpose_stays_for_other_targets(shape, perms):
    assert optimize_one_transpose(INT, *shape, perms=perms) == {"TRANSPOSE": 1}


@pytest.mark.parametrize(
    "shape", [(2, 3, 64, 96), (1, 5, 64, 96), (1, 3, 8, 8), (1, 3, 65, 97)]
)
def test_transposes_that_convolutions_would_slow_down_stay(npu, shape):
    assert optimize_one_transpose(npu, *shape) == {"TRANSPOSE": 1}


def test_transposes_of_other_types_stay(npu):
    optimized = optimize_one_transpose(
        replace(npu, extensions=frozenset({"int16"})),
        1,
        3,
        64,
        96,
        dtype=DType.INT16,
    )
    assert optimized["CONV2D"] == 0
