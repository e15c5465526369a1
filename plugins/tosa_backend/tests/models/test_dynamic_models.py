"""Networks of dynamic batch or length become one legal delegate that equals eager torch."""

from __future__ import annotations

import delegraph
import pytest
import torch
from delegraph_tosa.serialize import read
from delegraph_tosa.spec import TosaSpec
from torch.export import Dim
from torch.utils._pytree import tree_leaves

from examples.mobilenet_v2 import mobilenet_v2
from examples.transformer import bert_base, llama_8

from ..support import reference_tools
from ..support.whole_models import BOUND, CASTS

SPEC = "TOSA-1.1+FP+INT+shape"
BATCH = Dim("batch")
LENGTH = Dim("length", max=64)


def ids(batch, length):
    return (torch.randint(0, 100, (batch, length)),)


def attended(batch, length):
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[:, length // 2 + 1 :] = 0
    return *ids(batch, length), mask


def image(batch, size):
    return (torch.randn(batch, 3, size, size),)


MODELS = {
    "decoder, length": (
        lambda: llama_8(1, 64, 8),
        ids,
        [{1: LENGTH}],
        [(1, 1), (1, 33)],
    ),
    "BERT, both": (
        lambda: bert_base(1, 64, 8),
        attended,
        [{0: BATCH, 1: LENGTH}] * 2,
        [(1, 1), (3, 17)],
    ),
    "MobileNetV2, batch": (mobilenet_v2, image, [{0: BATCH}], [(1, 32), (5, 32)]),
}
LARGE = {"BERT, both", "MobileNetV2, batch"}
FIRST = {attended: (2, 8), ids: (1, 8), image: (2, 32)}
"""Sizes of the example inputs."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n in LARGE else n for n in MODELS],
)
def test_one_delegate_for_all_sizes(name):
    make, inputs, dynamic, sizes = MODELS[name]
    module, _ = make()
    first = inputs(*FIRST[inputs])
    program = torch.export.export(
        module, first, dynamic_shapes=tuple(dynamic), strict=False
    )
    lowered = delegraph.lower(
        program, backends=["tosa"], options={"tosa": {"spec": SPEC}}
    )
    assert len(lowered.delegates) == 1, lowered.report
    assert {refusal.operator for refusal in lowered.report.refusals} <= CASTS, (
        lowered.report
    )
    for size in sizes:
        args = inputs(*size)
        with torch.no_grad():
            expected = tree_leaves(module(*args))
        for mine, theirs in zip(tree_leaves(lowered(*args)), expected, strict=True):
            assert mine.shape == theirs.shape
            assert (mine - theirs).abs().max() < BOUND * theirs.abs().max(), size
    reference_tools.check_strictly_for_spec(
        lowered.delegates[0].processed_bytes, TosaSpec.parse(SPEC)
    )
    assert any(
        value.type.is_dynamic
        for value in read(lowered.delegates[0].processed_bytes).inputs
    )
