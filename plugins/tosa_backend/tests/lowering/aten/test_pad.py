"""Lowering rules for padding give the results of eager torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ...support.rule_cases import (
    EDGES,
    Family,
    randn,
    random_bools,
    random_halves,
    random_integers,
)

aten = torch.ops.aten

FAMILY = Family()


x = randn(2, 3, 4, 5)
pads = {
    "pad": lambda x: F.pad(x, (1, 2, 0, 3), value=1),
    "pad-cut": lambda x: F.pad(x, (-1, 2, 1, -2)),
    "constant-pad": lambda x: aten.constant_pad_nd(x, [1, 1, 2, 0, 0, 1]),
}
for name, pad in pads.items():
    FAMILY.cases(
        name,
        pad,
        x,
        random_halves(2, 3, 4, 5),
        random_integers(2, 3, 4, 5),
        random_bools(2, 3, 4, 5),
    )
signal = randn(2, 3, 7)
volume = randn(2, 3, 4, 5, 6)
for mode in ("reflect", "replicate", "circular"):
    FAMILY.cases(
        mode,
        lambda x, m=mode: F.pad(x, (2, 3), mode=m),
        signal,
        EDGES[None],
        random_halves(2, 5),
    )
    FAMILY.cases(
        f"{mode}-2d", lambda x, m=mode: F.pad(x, (2, 0, 1, 3), mode=m), x, x[0]
    )
    FAMILY.cases(
        f"{mode}-3d", lambda x, m=mode: F.pad(x, (2, 1, 0, 1, 3, 2), mode=m), volume
    )
    FAMILY.cases(f"{mode}-cut", lambda x, m=mode: F.pad(x, (-1, 2, 1, -2), mode=m), x)
for name in ("reflection", "replication"):
    FAMILY.cases(
        f"{name}-1d", lambda x, n=name: getattr(aten, f"{n}_pad1d")(x, [1, 2]), signal
    )
    FAMILY.cases(
        f"{name}-inner",
        lambda x, n=name: getattr(aten, f"{n}_pad2d")(x, [1, 2, 3, 0]),
        x,
    )
    FAMILY.cases(
        f"{name}-volume",
        lambda x, n=name: getattr(aten, f"{n}_pad3d")(x, [1, 2, 3, 0, 1, 1]),
        volume,
    )


test_rows_call_every_rule = FAMILY.covers("pad")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)
