"""Normalization, each rule against eager torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from ...support.rule_cases import FP, Family, positive, randn

aten = torch.ops.aten

FAMILY = Family()


def norm(module):
    """Batch norm with live statistics."""
    with torch.no_grad():
        for buffer in (module.running_mean, module.running_var, module.weight, module.bias):
            buffer.copy_(torch.rand(buffer.shape, generator=torch.Generator().manual_seed(3)) + 0.5)
    return module


FAMILY.cases("batch-norm", norm(nn.BatchNorm2d(3)), randn(2, 3, 4, 5), spec=FP)
FAMILY.cases("batch-norm-1d", norm(nn.BatchNorm1d(3)), randn(2, 3, 4), randn(5, 3))
FAMILY.cases("batch-norm-plain", lambda x, m, v: F.batch_norm(x, m, v), (randn(2, 3, 4), randn(3), positive(3)))
FAMILY.cases(
    "batch-norm-inner",
    lambda x, w, b, m, v: aten._native_batch_norm_legit_no_training(x, w, b, m, v, 0.1, 1e-3)[0],
    (randn(2, 3, 4), randn(3), randn(3, seed=2), randn(3, seed=4), positive(3)),
)


test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = FAMILY.equals_eager_through_the_reference_model()
