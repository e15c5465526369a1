"""Reductions and softmax, each rule against eager torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ...support.rule_cases import Family, half, randn, whole

aten = torch.ops.aten

FAMILY = Family()

x = randn(2, 3, 4, 5)
for name in ("mean", "sum", "amax", "amin"):
    function = getattr(torch, name)
    FAMILY.cases(name, lambda x, f=function: f(x, dim=(1, -1)), x, half(2, 3, 4))
    FAMILY.cases(f"{name}-kept", lambda x, f=function: f(x, dim=(-2,), keepdim=True), x)
    FAMILY.cases(f"{name}-all", lambda x, f=function: f(x), x) if name in ("mean", "sum") else None
    FAMILY.cases(f"{name}-of-rank-0", lambda x, f=function: f(x, dim=0), torch.tensor(2.0))
FAMILY.cases("amax-all", lambda x: torch.amax(x, ()) - torch.amin(x, ()), x, whole(2, 3))
FAMILY.cases("sum-int32", lambda x: x.sum(1, dtype=torch.int32), whole(2, 3))
FAMILY.cases("sum-of-ints-as-float", lambda x: x.sum(dtype=torch.float32), whole(2, 3))
FAMILY.cases("mean-as-float", lambda x: x.mean(dtype=torch.float32), half(2, 3), whole(2, 3))
for name in ("softmax", "log_softmax"):
    function = getattr(F, name)
    FAMILY.cases(name, lambda x, f=function: f(x, -1), x * 20, half(2, 9), torch.tensor(3.0))
    FAMILY.cases(f"{name}-channels", lambda x, f=function: f(x, 1), x)
    FAMILY.cases(f"{name}-as-float", lambda x, f=function: f(x, 0, dtype=torch.float32), half(3, 4))
FAMILY.cases("softmax-inner", lambda x: aten._softmax(x, 1, False) + aten._log_softmax(x, 1, False), x)


test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = FAMILY.equals_eager_through_the_reference_model()
