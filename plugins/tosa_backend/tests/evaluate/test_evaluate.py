"""Every kernel agrees with the official reference model: integers bit for bit, floats as
accurately as the specification requires.
"""

from __future__ import annotations

import numpy as np
import pytest
from delegraph_tosa.evaluate import all_kernels, evaluate
from delegraph_tosa.ir.operators import VARIABLE, VARIABLE_READ, VARIABLE_WRITE
from delegraph_tosa.ir.types import ARRAY_DTYPES
from delegraph_tosa.serialize import TosaFile
from delegraph_tosa.spec import TosaSpec

from ..support import reference_tools
from ..support.accuracy import is_compliant, is_float, reference_results
from ..support.kernel_cases import CASES
from ..support.samples import samples

SPEC = TosaSpec.parse("TOSA-1.0+FP+INT+int4+int16+fft+cf+doubleround+inexactround")
FLOATING = {
    name: case
    for name, case in CASES.items()
    if any(is_float(output.dtype) for output in case[0].outputs)
}


@pytest.fixture(scope="module")
def reference_outputs():
    """Case -> outputs of the reference model."""
    jobs = [(TosaFile(graph, SPEC).join(), arrays) for graph, arrays in CASES.values()]
    return dict(
        zip(CASES, reference_tools.run_reference_model_on_all(jobs), strict=True)
    )


@pytest.fixture(scope="module")
def reference_in_fp64():
    """Case with a float result -> its results in fp64 and their bounds."""
    graphs, arrays = zip(*FLOATING.values(), strict=True)
    return dict(zip(FLOATING, reference_results(graphs, arrays, SPEC), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_equals_the_reference_model(name, reference_outputs, reference_in_fp64):
    graph, arrays = CASES[name]
    constants = [constant.constant.array for constant in graph.constants()]
    for array in (*arrays, *constants):
        array.setflags(write=False)  # a kernel must not write to its operands

    results = evaluate(graph, arrays)

    for value, result, theirs in zip(
        graph.outputs, results, reference_outputs[name], strict=True
    ):
        assert result.shape == value.shape
        assert result.dtype == ARRAY_DTYPES[value.dtype]
        if not is_float(value.dtype):
            np.testing.assert_array_equal(result, theirs)
    if name in FLOATING:
        assert is_compliant(graph, arrays, results, reference_in_fp64[name])


def test_every_kernel_is_tested():
    tested = {VARIABLE, VARIABLE_READ, VARIABLE_WRITE}  # in test_variables.py
    for sample in samples(version=(1, 1)):  # in test_version_1_1.py
        tested.add(type(sample.graph.operators[0]))
    for graph, _ in CASES.values():
        tested.update(type(operator) for operator in graph.operators)

    assert set(all_kernels()) <= tested
