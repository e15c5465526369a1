"""Random programs compute what eager torch does, whatever part of them is delegated."""

from __future__ import annotations

import random

import delegraph
import pytest
import torch
from delegraph_tosa.partitioner import TOSAPartitioner

from .support.random_programs import RandomProgram

torch.set_num_threads(1)
TARGETS = ("TOSA-1.0+FP+INT", "TOSA-1.0+FP+INT", "TOSA-1.0+FP", "TOSA-1.1+FP+INT")
BOUND = 1e-4
"""Largest error relative to the largest output, or to 1: a dozen steps amplify the
rounding of the first.
"""


class Masked(TOSAPartitioner):
    """Refuses some calls by chance, so that partitions begin and end anywhere."""

    def __init__(self, spec, seed):
        super().__init__(spec)
        ask = self.support.why_not
        mask = random.Random(seed).getrandbits(31) & random.Random(~seed).getrandbits(
            31
        )
        self.support.why_not = lambda n: (
            "by chance" if mask >> (n.meta["debug_handle"] % 31) & 1 else ask(n)
        )


def assert_random_program_equals_eager(seed):
    """Half of the programs go to TOSA whole, as far as it takes them, half in parts."""
    module = RandomProgram(seed).eval()
    inputs = RandomProgram(seed).inputs()
    target = TARGETS[seed // 2 % len(TARGETS)]
    partitioner = Masked(target, seed) if seed % 2 else TOSAPartitioner(target)
    lowered = delegraph.lower(
        torch.export.export(module, inputs), backends=[partitioner]
    )
    assert all(row.reason for row in lowered.report.refusals)
    for _ in range(2):  # the program counts its calls
        given, own = ([x.clone() for x in inputs] for _ in range(2))
        for mine, eager in zip(lowered(*given), module(*own), strict=True):
            assert_close(mine, eager)
        for mine, eager in zip(given, own, strict=True):
            assert_close(mine, eager)
    return lowered


def assert_close(mine, eager):
    assert mine.dtype == eager.dtype
    assert mine.shape == eager.shape
    if eager.is_floating_point():
        scale = (
            max(1.0, eager[eager.isfinite()].abs().max().item())
            if eager.isfinite().any()
            else 1.0
        )
        torch.testing.assert_close(
            mine, eager, rtol=0, atol=BOUND * scale, equal_nan=True
        )
    else:
        assert torch.equal(mine, eager)


@pytest.mark.parametrize("seed", range(30))
def test_random_programs_equal_eager(seed):
    assert_random_program_equals_eager(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30, 1000))
def test_many_random_programs_equal_eager(seed):
    assert_random_program_equals_eager(seed)
