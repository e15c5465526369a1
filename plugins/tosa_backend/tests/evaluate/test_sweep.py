"""A file of one operator for every sample of TOSA 1.0 and 1.1: it survives reading and
writing, and ``evaluate`` agrees with the reference model.
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
UNSUPPORTED_BY_BINDING = {
    DType.INT4,
    DType.INT48,
    DType.FP4E2M1,
    DType.FP6E2M3,
    DType.FP6E3M2,
    DType.FP8UE8M0,
    *BLOCK_SCALED,
}
"""Element types that the Python binding of the reference model neither takes nor
returns. test_block_scaled_evaluate.py tests them.
"""
REFUSED_BY_MODEL = ("CONV2D", "CONV3D", "TRANSPOSE_CONV2D")
"""Operators of which the reference model lacks variants: the convolutions of mixed
element types in the draft of TOSA 1.1.
"""


class Case(NamedTuple):
    graph: Graph
    version: tuple[int, int]
    inputs: list[np.ndarray]


def _cases() -> dict[str, Case]:
    """Return a case for each sample that both the reference model and ``evaluate`` can
    run; labels begin with the minor version.
    """
    cases = {}
    labels_of_1_0 = {sample.label for sample in samples()}
    for version in TARGETS:
        for sample in samples(version=version):
            graph = sample.graph
            types = {value.dtype for value in (*graph.inputs, *graph.outputs)}
            if not graph.outputs or types & UNSUPPORTED_BY_BINDING:
                continue
            if version > (1, 0) and sample.label in labels_of_1_0:
                continue
            if why_not(graph.operators[0]):
                continue
            label = f"{version[1]} {sample.label}"
            cases[label] = Case(graph, version, random_inputs(graph))
    return cases


CASES = _cases()


@pytest.fixture(scope="module")
def files() -> dict[str, tuple[bytes, bytes]]:
    """Case -> the file as first written, and as written again after reading it."""
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
    """Case -> outputs of the reference model for the first file, or its refusal."""
    return _outputs({label: first for label, (first, _) in files.items()})


def _outputs(files):
    """Label -> outputs of the reference model, or a string if it refuses the file."""
    results = reference_tools.run_or_refusal_of_each(
        [(file, CASES[label].inputs) for label, file in files.items()]
    )
    return dict(zip(files, results, strict=True))


def test_reference_model_refuses_only_draft_convolutions(reference):
    refused = [
        label for label, outputs in reference.items() if isinstance(outputs, str)
    ]

    assert len(reference) - len(refused) >= 500
    for label in refused:
        minor_version, signature = label.split()[:2]
        assert minor_version == "1"
        assert signature.partition("(")[0] in REFUSED_BY_MODEL


def test_reading_and_writing_changes_no_byte_of_the_outputs(files, reference):
    outputs_again = _outputs({label: second for label, (_, second) in files.items()})

    for label, outputs in reference.items():
        if isinstance(outputs, str):
            continue
        first = [output.tobytes() for output in outputs]
        second = [output.tobytes() for output in outputs_again[label]]
        assert first == second, label


@pytest.fixture(scope="module")
def reference_in_fp64(reference):
    """Case with a float output -> its results in fp64 and their bounds."""
    found = {}
    for version, target in TARGETS.items():
        cases = {
            label: case
            for label, case in CASES.items()
            if case.version == version
            and has_float_output(case.graph)
            and not isinstance(reference[label], str)
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
    if isinstance(outputs, str):  # the model refuses the operator
        return
    graph, _, inputs = CASES[label]

    results = evaluate(graph, inputs)

    for value, ours, theirs in zip(graph.outputs, results, outputs, strict=True):
        if not is_float(value.dtype):
            np.testing.assert_array_equal(ours, theirs.view(ours.dtype))
    if has_float_output(graph):
        assert is_compliant(graph, inputs, results, reference_in_fp64[label])
