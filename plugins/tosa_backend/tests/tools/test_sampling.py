"""Every file runs on the random inputs of ``delegraph run`` and ``--verify``."""

from __future__ import annotations

import numpy as np
import pytest
from delegraph_tosa.evaluate import evaluate
from delegraph_tosa.ir import operators as ops
from delegraph_tosa.ir.graph import Graph, Value, literal
from delegraph_tosa.ir.types import DType, Type
from delegraph_tosa.serialize import TosaFile
from delegraph_tosa.spec import TosaSpec
from delegraph_tosa.tools import sample

from ..support import reference_tools
from ..support.samples import make_operator, samples
from ..support.structured import structured

RUN = [
    s
    for s in (*samples(version=(1, 1)), *structured((1, 1)))
    if not s.label.startswith("CUSTOM")
]


@pytest.mark.parametrize("kind", sorted({s.label.partition("(")[0] for s in RUN}))
def test_every_operator_runs_on_sampled_inputs(kind):
    for one in RUN:
        if one.label.startswith(f"{kind}("):
            evaluate(one.graph, sample(one.graph, 0))


def indices(*shape: int) -> Value:
    return Value(Type(shape, DType.INT32), name="indices")


def test_indices_that_are_moved_before_they_choose():
    table = literal(np.ones((1, 3, 2)), DType.FP32, np.float32)
    reshape = make_operator(
        ops.RESHAPE, x := indices(40), literal([1, 40], DType.SHAPE, np.int64)
    )
    gather = make_operator(ops.GATHER, table, *reshape.outputs)
    graph = Graph([x], gather.outputs, [reshape, gather])
    (given,) = sample(graph, 1)
    assert sorted(set(given)) == [0, 1, 2]
    reference_tools.run_reference_model(TosaFile(graph, TosaSpec()).join(), [given])


def test_scattered_rows_are_named_once():
    values = Value(Type((2, 9, 1), DType.FP32))
    rows = indices(2, 9)
    x = Value(Type((2, 9, 1), DType.FP32))
    scatter = make_operator(ops.SCATTER, values, rows, x)
    graph = Graph([values, rows, x], scatter.outputs, [scatter])
    given = sample(graph, 1)
    assert [sorted(row) for row in given[1]] == [list(range(9))] * 2
    reference_tools.run_reference_model(TosaFile(graph, TosaSpec()).join(), given)
