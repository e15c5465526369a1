"""Products of many steps, of which each step reads its row, as Ethos-U computes them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from delegraph_tosa.evaluate import evaluate
from delegraph_tosa.ir import operators as tosa
from delegraph_tosa.ir.graph import Graph, Value, literal
from delegraph_tosa.ir.types import DType, RoundingMode
from delegraph_tosa.passes import run_passes
from delegraph_tosa.passes.split_products import BLOCKS, LEAST, split_products
from delegraph_tosa.spec import TosaSpec, target

from ..support.drafts import Draft, assert_well_formed, names

INT = TosaSpec.parse("TOSA-1.0+INT")
CHANNELS = 3
"""Of the inputs; a product has twice as many."""


def narrowed(d: Draft, sums: Value, channels: bool = True, shift: int = 38) -> Value:
    """int32 as int8, divided by about 2**(shift - 30), by other numbers for each channel if ``channels``"""
    count = sums.shape[-1] if channels else 1
    multipliers = literal(d.random.integers(1 << 29, 1 << 30, count), DType.INT32, np.int32)
    shifts, zero = literal([shift] * count, DType.INT8, np.int8), literal([1], DType.INT8, np.int8)
    flags = {"scale32": True, "per_channel": channels, "input_unsigned": False, "output_unsigned": False}
    flags |= {"dtype": DType.INT8, "rounding_mode": RoundingMode.SINGLE_ROUND}
    return d.op(tosa.RESCALE, sums, multipliers, shifts, literal([0], DType.INT32, np.int32), zero, **flags)


def product(d: Draft, x: Value, kernel: int = 1, stride: int = 1, pad: int = 0) -> Value:
    """x [N,H,W,C] int8, the sums of CONV2D as int32"""
    shape = (2 * CHANNELS, kernel, kernel, x.shape[-1])
    weight = literal(d.random.integers(-127, 128, shape), DType.INT8, np.int8)
    bias = literal(d.random.integers(-99, 99, shape[0]), DType.INT32, np.int32)
    points = [literal([number], DType.INT8, np.int8) for number in (-4, 0)]
    attributes = {"pad": (pad,) * 4, "stride": (stride,) * 2, "dilation": (1, 1), "acc_type": DType.INT32}
    return d.op(tosa.CONV2D, x, weight, bias, *points, **attributes)


def row(d: Draft, x: Value, step: int, count: int = 1) -> Value:
    """The second half of the channels of a row."""
    return d.slice(x, (step, 0, 0, CHANNELS), (count, 1, 1, CHANNELS))


def network(d: Draft, steps: int) -> Value:
    """Each step adds its row of a product to the state before, with that as first operand"""
    rows = narrowed(d, product(d, d.input(steps, 1, 1, CHANNELS, dtype=DType.INT8)))
    state = row(d, rows, 0)
    for step in range(1, steps):
        state, added = (d.op(tosa.CAST, v, dtype=DType.INT32) for v in (state, row(d, rows, step)))
        state = narrowed(d, d.add(state, added), channels=False, shift=30)
    return state


def changed(d: Draft, *outputs: Value) -> Graph:
    """The graph after the pass, without what is dead, which computes the same."""
    given = d.graph(*outputs)
    result = run_passes(split_products(given, INT), INT)
    assert_well_formed(result, INT)
    arrays = [d.random.integers(-128, 128, v.shape).astype(np.int8) for v in d.inputs]
    for old, new in zip(evaluate(given, arrays), evaluate(result, arrays), strict=True):
        np.testing.assert_array_equal(new, old)
    return result


@pytest.mark.parametrize(
    ("steps", "heights"), [(LEAST - 1, [LEAST - 1]), (LEAST, [2] * 5), (LEAST + 2, [3, 2, 3, 2, 2]), (25, [5] * 5)]
)
def test_a_product_is_made_in_blocks_of_equal_size(steps, heights):
    d = Draft()
    result = changed(d, network(d, steps))
    made = [op.outputs[0].shape for op in result.operators if isinstance(op, tosa.CONV2D)]
    assert [max(shape[:2]) for shape in made] == heights


def order_of(graph: Graph) -> list[str]:
    """The operators as Vela computes them: operands from the last to the first, each before the operator."""
    done: dict[object, None] = {}

    def visit(value: Value) -> None:
        operator = value.producer
        if operator is not None and operator not in done:
            for operand in reversed(operator.inputs):
                visit(operand)
            done[operator] = None

    for output in graph.outputs:
        visit(output)
    return [type(operator).__name__ for operator in done]


def test_a_block_is_made_when_its_first_step_is_due():
    d = Draft()
    computed = order_of(changed(d, network(d, 4 * BLOCKS)))
    sums_before = [computed[:place].count("ADD") for place, name in enumerate(computed) if name == "CONV2D"]
    assert sums_before == [0, 3, 7, 11, 15]


def test_without_a_product_that_is_split_operands_stay_where_they_are():
    d = Draft()
    given = d.graph(network(d, 3))
    assert split_products(given, INT) is given


def test_constants_stay_the_last_operand():
    d = Draft()
    state = d.op(tosa.CAST, network(d, LEAST), dtype=DType.INT32)
    number = literal(np.full((1, 1, 1, CHANNELS), 5), DType.INT32, np.int32)
    result = changed(d, d.mul(state, number))
    assert result.outputs[0].producer.inputs[1].constant is not None


LONG = LEAST + 3
KEPT = {
    "two rows at a time": lambda d, y: [row(d, y, 0, 2), row(d, y, 2)],
    "read whole": lambda d, y: [row(d, y, 0), d.op(tosa.BITWISE_NOT, y)],
    "a result": lambda d, y: [row(d, y, 0), y],
    "nothing reads it": lambda d, y: [d.op(tosa.BITWISE_NOT, d.inputs[0])],
}


@pytest.mark.parametrize("readers", KEPT.values(), ids=KEPT)
def test_what_is_read_otherwise_is_made_whole(readers):
    d = Draft()
    y = narrowed(d, product(d, d.input(LONG, 1, 1, CHANNELS, dtype=DType.INT8)))
    assert names(changed(d, *readers(d, y)))["CONV2D"] <= 1


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "pad"), [(2, 1, 1, 0), (3, 3, 1, 0), (1, 3, 1, 1), (1, 1, 2, 0), (1, 1, 1, 1)]
)
def test_a_convolution_that_is_no_product_of_rows_stays(size, kernel, stride, pad):
    d = Draft()
    x = d.input(LONG, size, size, CHANNELS, dtype=DType.INT8)
    y = narrowed(d, product(d, x, kernel, stride, pad))
    assert names(changed(d, row(d, y, 0), row(d, y, LONG - 1)))["CONV2D"] == 1


def test_sums_that_something_else_reads_stay():
    d = Draft()
    sums = product(d, d.input(LONG, 1, 1, CHANNELS, dtype=DType.INT8))
    assert names(changed(d, row(d, narrowed(d, sums), 0), d.op(tosa.ABS, sums)))["CONV2D"] == 1


def test_what_the_target_refuses_stays():
    d = Draft()
    given = d.graph(network(d, LONG))
    assert split_products(given, replace(INT, profiles=frozenset({"FP"}))) is given


def test_npus_get_it_and_other_targets_do_not(monkeypatch):
    monkeypatch.setitem(target._DEVICES, "u85", lambda operator: None)
    d = Draft()
    given = d.graph(network(d, LONG))
    assert names(run_passes(given, replace(INT, devices=frozenset({"u85"}))))["CONV2D"] == BLOCKS
    assert names(run_passes(given, INT))["CONV2D"] == 1
