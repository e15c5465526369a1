"""What a device lacks on int32 is computed by other operators, with the same integers."""

import numpy as np
import pytest
from delegraph.errors import Unsupported
from delegraph_tosa import narrow
from delegraph_tosa.evaluate import Program
from delegraph_tosa.ir.graph import Graph, Value, literal
from delegraph_tosa.ir.types import DType, Type
from delegraph_tosa.lowering import Tosa
from delegraph_tosa.lowering.ranges.value_ranges import range_of
from delegraph_tosa.spec import TosaSpec

LACKED = "SELECT", "BITWISE_AND", "REDUCE_MAX", "REDUCE_MIN"


def why_not(operator):
    rounds_down = operator.name == "ARITHMETIC_RIGHT_SHIFT" and not operator.round
    return "this device lacks it" if operator.name in LACKED or rounds_down else None


narrow("plain", why_not)
ENDS = [-(2**31), -(2**31) + 1, 2**31 - 1, -1, 0, 1]
SEEN = literal(np.array([[True, False, True]]), DType.BOOL, np.bool_)


def _small(t, x):
    return t.cast(t.minimum(t.maximum(x, -100), 100), DType.INT8)


CASES = {
    **{
        f"shift {bits}": lambda t, x, bits=bits: t.right_shift(x, bits)
        for bits in (1, 2, 8, 30, 31)
    },
    **{
        f"mask {bits}": lambda t, x, bits=bits: t.bitwise_and(x, (1 << bits) - 1)
        for bits in (1, 8, 31)
    },
    "largest": lambda t, x: t.reduce_max(x, 0),
    "smallest": lambda t, x: t.reduce_min(x, 1),
    "mask of bools": lambda t, x: t.select(SEEN, x, 5),
    "bools between two": lambda t, x: t.select(SEEN, x, t.abs(t.maximum(x, -7))),
    "bools of int8": lambda t, x: t.cast(
        t.select(SEEN, _small(t, x), t.cast(t.like(9, x), DType.INT8)), DType.INT32
    ),
    "bools below all": lambda t, x: t.select(SEEN, x, -(2**31)),
    "bools above all": lambda t, x: t.select(SEEN, t.minimum(x, 3), 3),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_the_integers_are_the_same(name, seed):
    generator = np.random.default_rng(seed)
    elements = generator.integers(-(2**31), 2**31, (7, 3)).astype(np.int32)
    elements.flat[:6] = ENDS
    found = []
    ranges = []
    for target in ("TOSA-1.0+INT", "TOSA-1.0+INT+plain"):
        builder = Tosa(TosaSpec.parse(target))
        x = Value(Type((7, 3), DType.INT32))
        y = CASES[name](builder, x)
        assert target.endswith("INT") or not any(map(why_not, builder.operators))
        found.extend(Program(Graph([x], [y], builder.operators))([elements]))
        ranges.append(range_of(y))
    assert np.array_equal(*found)
    assert ranges[0] == ranges[1]


def test_missing_operators_without_replacement_are_refused():
    builder = Tosa(TosaSpec.parse("TOSA-1.0+INT+plain"))
    x = Value(Type((7, 3), DType.INT32))
    for refused in (
        lambda: builder.right_shift(x, builder.abs(x)),
        lambda: builder.bitwise_and(x, 6),
        lambda: builder.select(builder.greater(x, 0), x, 0),
    ):
        with pytest.raises(Unsupported, match="this device lacks it"):
            refused()
