"""Variables hold written values within one run, and each run starts from the initial values."""

from __future__ import annotations

import numpy as np
from delegraph_tosa.evaluate import Program, evaluate
from delegraph_tosa.ir import operators as ops
from delegraph_tosa.ir.graph import Graph, Value, literal
from delegraph_tosa.ir.types import DType, Type
from delegraph_tosa.serialize import TosaFile, read
from delegraph_tosa.spec import TosaSpec

from ..support import reference_tools
from ..support.samples import make_operator

SPEC = TosaSpec.parse("TOSA-1.0+FP+variable")
INITIAL = np.array([1, 2], np.float32)


def counter_graph() -> Graph:
    """Return a graph that adds its input to a variable and outputs the variable before and
    after.
    """
    x = Value(Type((2,), DType.FP32), name="x")
    declared = make_operator(
        ops.VARIABLE, literal(INITIAL, DType.FP32, np.float32), variable="sum"
    )
    before = make_operator(ops.VARIABLE_READ, variable="sum", types=(x.type,))
    added = make_operator(ops.ADD, before.outputs[0], x)
    written = make_operator(ops.VARIABLE_WRITE, added.outputs[0], variable="sum")
    after = make_operator(ops.VARIABLE_READ, variable="sum", types=(x.type,))
    return Graph(
        [x],
        [*before.outputs, *after.outputs],
        [declared, before, added, written, after],
    )


def test_equals_the_reference_model():
    graph = counter_graph()
    x = np.array([10, 20], np.float32)
    file = TosaFile(graph, SPEC).join()
    reference = reference_tools.run_reference_model(file, [x])

    for outputs in (evaluate(graph, [x]), evaluate(read(file), [x])):
        np.testing.assert_array_equal(outputs, reference)

    np.testing.assert_array_equal(reference, [INITIAL, INITIAL + x])


def test_every_run_starts_from_the_initial_values():
    program = Program(counter_graph())
    x = np.ones(2, np.float32)

    first_run = program([x])
    second_run = program([x])

    np.testing.assert_array_equal(first_run, second_run)
