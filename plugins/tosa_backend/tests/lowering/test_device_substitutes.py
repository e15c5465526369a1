"""Integer operators that a device lacks are replaced by others with equal results."""

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

LACKED = ("SELECT", "BITWISE_AND", "REDUCE_MAX", "REDUCE_MIN")


def why_not(operator):
    """Return why the device "plain" refuses an operator, or None."""
    rounds_down = operator.name == "ARITHMETIC_RIGHT_SHIFT" and not operator.round
    if operator.name in LACKED or rounds_down:
        return "this device lacks it"
    return None


narrow("plain", why_not)
EXTREMES = [-(2**31), -(2**31) + 1, 2**31 - 1, -1, 0, 1]
CONDITION = literal(np.array([[True, False, True]]), DType.BOOL, np.bool_)


def _small(t, x):
    return t.cast(t.minimum(t.maximum(x, -100), 100), DType.INT8)


# Name -> how a builder computes the case from int32 [7, 3].
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
    "mask of bools": lambda t, x: t.select(CONDITION, x, 5),
    "bools between two": lambda t, x: t.select(CONDITION, x, t.abs(t.maximum(x, -7))),
    "bools of int8": lambda t, x: t.cast(
        t.select(CONDITION, _small(t, x), t.cast(t.like(9, x), DType.INT8)), DType.INT32
    ),
    "bools below all": lambda t, x: t.select(CONDITION, x, -(2**31)),
    "bools above all": lambda t, x: t.select(CONDITION, t.minimum(x, 3), 3),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_substitutes_compute_equal_integers(name, seed):
    generator = np.random.default_rng(seed)
    elements = generator.integers(-(2**31), 2**31, (7, 3)).astype(np.int32)
    elements.flat[:6] = EXTREMES

    usual = build(name, "TOSA-1.0+INT")
    substituted = build(name, "TOSA-1.0+INT+plain")

    assert not any(why_not(operator) for operator in substituted.operators)
    np.testing.assert_array_equal(
        Program(substituted)([elements]), Program(usual)([elements])
    )
    assert range_of(substituted.outputs[0]) == range_of(usual.outputs[0])


def build(name, target):
    """Return the graph of a case for a target."""
    builder = Tosa(TosaSpec.parse(target))
    x = Value(Type((7, 3), DType.INT32))
    y = CASES[name](builder, x)
    return Graph([x], [y], builder.operators)


@pytest.mark.parametrize(
    "emit",
    [
        lambda t, x: t.right_shift(x, t.abs(x)),
        lambda t, x: t.bitwise_and(x, 6),
        lambda t, x: t.select(t.greater(x, 0), x, 0),
    ],
    ids=["shift by a tensor", "mask of other bits", "computed condition"],
)
def test_missing_operators_without_substitute_are_refused(emit):
    builder = Tosa(TosaSpec.parse("TOSA-1.0+INT+plain"))
    x = Value(Type((7, 3), DType.INT32))

    with pytest.raises(Unsupported, match="this device lacks it"):
        emit(builder, x)
