"""Every kernel against the official reference model: integers bit for bit, floats to a few units in the last place."""

from __future__ import annotations

import judges
import numpy as np
import pytest
from delegraph_tosa.evaluate import KERNELS, evaluate
from delegraph_tosa.ir.operators import VARIABLE, VARIABLE_READ, VARIABLE_WRITE
from delegraph_tosa.ir.types import ARRAY_DTYPES
from delegraph_tosa.serialise import TosaFile
from delegraph_tosa.spec import TosaSpec
from kernel_cases import CASES
from samples import samples

SPEC = TosaSpec.parse("TOSA-1.0+FP+INT+int4+int16+fft+cf+doubleround+inexactround")
FLOAT_TOLERANCE = {np.dtype(np.float32): 2e-6, np.dtype(np.float16): 2e-3}
"""Of the largest output: 16 and 2 units in the last place."""


@pytest.fixture(scope="module")
def wanted():
    """Case -> outputs of the reference model."""
    jobs = [(TosaFile(graph, SPEC).join(), arrays) for graph, arrays in CASES.values()]
    return dict(zip(CASES, judges.run_all(jobs), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_equals_the_reference_model(name, wanted):
    graph, arrays = CASES[name]
    for array in (*arrays, *(v.constant.array for v in graph.constants())):
        array.setflags(write=False)  # a kernel never writes to its operands
    for value, result, reference in zip(graph.outputs, evaluate(graph, arrays), wanted[name], strict=True):
        assert (result.shape, result.dtype) == (value.shape, ARRAY_DTYPES[value.dtype])
        if result.dtype.kind == "f":
            largest = np.abs(reference[np.isfinite(reference)]).max(initial=0)
            tolerance = FLOAT_TOLERANCE[result.dtype] * float(largest)
            np.testing.assert_allclose(result, reference, rtol=0, atol=tolerance)
        else:
            np.testing.assert_array_equal(result, reference)


def test_every_kernel_is_in_the_table():
    of_1_1 = {type(sample.graph.operators[0]) for sample in samples(version=(1, 1))}  # see test_version_1_1.py
    variables = {VARIABLE, VARIABLE_READ, VARIABLE_WRITE}  # see test_variables.py
    judged = {type(operator) for graph, _ in CASES.values() for operator in graph.operators}
    assert judged | of_1_1 | variables >= set(KERNELS)
