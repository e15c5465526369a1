"""Lowering rules for conversions of type give the results of eager torch."""

from __future__ import annotations

import torch

from ...support.rule_cases import EDGES, Family, randn, random_bools, random_integers

aten = torch.ops.aten

FAMILY = Family()

floats = torch.tensor([-2.7, -0.5, 0.0, 0.5, 2.5, 3.7])
FAMILY.cases("to-int", lambda x: x.to(torch.int32), floats, floats.half(), floats > 0)
FAMILY.cases(
    "to-int-edges",
    lambda x: x.to(torch.int32),
    EDGES,
    EDGES.half(),
    EDGES * 1e9,
    EDGES * 1e38,
)
FAMILY.cases("to-small-edges", lambda x: x.to(torch.int8), EDGES * 100, EDGES)
FAMILY.cases(
    "to-float", lambda x: x.float(), floats.half(), random_integers(3), random_bools(4)
)
FAMILY.cases("to-half", lambda x: x.half(), floats, random_integers(3), random_bools(4))
FAMILY.cases("to-bool", lambda x: x.bool(), floats, random_integers(30))
FAMILY.cases(
    "to-small", lambda x: x.to(torch.int8).to(torch.int16), random_integers(3), floats
)
FAMILY.cases(
    "to-other", lambda x, y: x.to(y) + x.type_as(y), (random_integers(3), floats[:3])
)
FAMILY.cases(
    "to-other-inner", lambda x, y: aten.to.other(x, y), (floats, random_integers(1))
)
FAMILY.cases("to-copy", lambda x: aten._to_copy(x, dtype=torch.float16), floats)
FAMILY.cases("to-device", lambda x: x.to("cpu", torch.float16), floats)
FAMILY.cases("to-same", lambda x: x.to(torch.float32) + 1, floats)
FAMILY.cases(
    "channels-last",
    lambda x: x.to(memory_format=torch.channels_last) * 2,
    randn(1, 2, 3, 3),
)


test_rows_call_every_rule = FAMILY.covers("cast")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)
