"""Every row of the tables of TOSA 1.0 and 1.1 as a file of one operator: what the
reference model computes before and after reading and writing it again is equal byte for
byte, and it is what ``evaluate`` computes: integers bit for bit, floats as accurate as
the specification asks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from delegraph_tosa.evaluate import evaluate, why_not
from delegraph_tosa.ir.graph import Graph
from delegraph_tosa.ir.types import BLOCK_SCALED, DType
from delegraph_tosa.serialize import TosaFile, read
from delegraph_tosa.spec import TosaSpec

from ..support import reference_tools
from ..support.accuracy import is_compliant, is_float
from ..support.accuracy import reference_results as in_fp64
from ..support.samples import random_inputs, samples

TARGETS = {version: TosaSpec(version) for version in ((1, 0), (1, 1))}
"""Only the version matters to the writer."""
HELD_BACK = {
    *(
        DType.INT4,
        DType.INT48,
        DType.FP4E2M1,
        DType.FP6E2M3,
        DType.FP6E3M2,
        DType.FP8UE8M0,
    ),
    *BLOCK_SCALED,
}
"""What the reference model's Python binding does not take or give; see
test_block_scaled_evaluate.py.
"""
NOT_COMPUTED = ("CONV2D", "CONV3D", "TRANSPOSE_CONV2D")
"""What the reference model does not have: the convolutions of mixed element types of
the 1.1 draft.
"""


class Case(NamedTuple):
    graph: Graph
    version: tuple[int, int]
    inputs: list[np.ndarray]


def _cases():
    of_1_0 = {sample.label for sample in samples()}
    for version in TARGETS:
        for sample in samples(version=version):
            types = [v.dtype for v in (*sample.graph.inputs, *sample.graph.outputs)]
            handed_over = types and HELD_BACK.isdisjoint(types)
            repeated = version > (1, 0) and sample.label in of_1_0
            if (
                sample.graph.outputs
                and handed_over
                and not repeated
                and not why_not(sample.graph.operators[0])
            ):
                yield (
                    f"{version[1]} {sample.label}",
                    Case(sample.graph, version, random_inputs(sample.graph)),
                )


CASES = dict(_cases())


@pytest.fixture(scope="module")
def files() -> dict[str, tuple[bytes, bytes]]:
    """Each file as we write it, and as we write it after reading it."""
    first = {
        label: TosaFile(case.graph, TARGETS[case.version]).join()
        for label, case in CASES.items()
    }
    return {
        label: (file, TosaFile(read(file), TARGETS[CASES[label].version]).join())
        for label, file in first.items()
    }


@pytest.fixture(scope="module")
def reference(files):
    """What the reference model computes of each file as it was first written."""
    return _outputs({label: first for label, (first, _) in files.items()})


def _outputs(files):
    results = reference_tools.run_or_refusal_of_each(
        [(file, CASES[label].inputs) for label, file in files.items()]
    )
    return dict(zip(files, results, strict=True))


def test_sweep_covers_enough_samples(reference):
    computed = [
        label for label, outputs in reference.items() if not isinstance(outputs, str)
    ]
    assert len(computed) >= 500
    refused = {
        label.split()[1].partition("(")[0] for label in reference.keys() - set(computed)
    }
    assert refused <= set(NOT_COMPUTED)
    assert all(label.startswith("1 ") for label in reference.keys() - set(computed))


def test_reading_and_writing_changes_no_byte_of_the_outputs(files, reference):
    again = _outputs({label: second for label, (_, second) in files.items()})
    for label, outputs in reference.items():
        if not isinstance(outputs, str):
            assert [o.tobytes() for o in again[label]] == [
                o.tobytes() for o in outputs
            ], label


@pytest.fixture(scope="module")
def reference_in_fp64(reference):
    """The float results of what the reference model has, in fp64, and their bounds."""
    found = {}
    for version, target in TARGETS.items():
        computed = {
            label: case
            for label, case in CASES.items()
            if not isinstance(reference[label], str)
        }
        cases = {
            label: case
            for label, case in computed.items()
            if case.version == version and has_float_output(case.graph)
        }
        graphs = [case.graph for case in cases.values()]
        inputs = [case.inputs for case in cases.values()]
        found |= dict(zip(cases, in_fp64(graphs, inputs, target), strict=True))
    return found


def has_float_output(graph: Graph) -> bool:
    return any(is_float(output.dtype) for output in graph.outputs)


@pytest.mark.parametrize("label", CASES)
def test_evaluate_equals_the_reference_model(label, reference, reference_in_fp64):
    outputs = reference[label]
    if isinstance(outputs, str):
        return
    graph, _, inputs = CASES[label]
    results = evaluate(graph, inputs)
    for value, ours, theirs in zip(graph.outputs, results, outputs, strict=True):
        if not is_float(value.dtype):
            np.testing.assert_array_equal(ours, theirs.view(ours.dtype))
    assert not has_float_output(graph) or is_compliant(
        graph, inputs, results, reference_in_fp64[label]
    )
