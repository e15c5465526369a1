"""Graphs of the draft of TOSA 1.1 are typed, written, read, printed, validated and run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from delegraph_tosa.evaluate import evaluate
from delegraph_tosa.ir import operators as ops
from delegraph_tosa.ir.graph import Graph, Illegal, Value, literal
from delegraph_tosa.ir.types import BlockSize, DType, Type
from delegraph_tosa.serialize import TosaFile, read
from delegraph_tosa.spec import TosaSpec, required, required_version
from delegraph_tosa.text import parse, render
from delegraph_tosa.validate import violations

from ..support import reference_tools
from ..support.samples import make_operator, samples

VERSION = (1, 1)
SAMPLES = {sample.label: sample for sample in samples(version=VERSION)}
OF_1_0 = {sample.label for sample in samples()}
NEW = {label: sample for label, sample in SAMPLES.items() if label not in OF_1_0}
BLOCK_SCALED = [label for label in NEW if "bs32" in label]
"""The combinations of operands that hold their scales are many; by default every
seventh of them is tested.
"""
FIRST = {label.partition("(")[0]: sample for label, sample in reversed(NEW.items())}
"""One sample of each operator that has something new."""


def spec_of(graph: Graph) -> TosaSpec:
    return TosaSpec(VERSION, *required(graph, VERSION))


def value(*shape: int, dtype: DType = DType.FP32) -> Value:
    return Value(Type(shape, dtype))


def shape_constant(*entries: int) -> Value:
    return literal(entries, DType.SHAPE, np.int64)


def some() -> Iterator[object]:
    """The samples, most of those of block-scaled tensors marked as slow."""
    often = {
        *BLOCK_SCALED[::7],
        *(
            label
            for label in BLOCK_SCALED
            if "CONV" not in label and "MATMUL" not in label
        ),
    }
    for label in NEW:
        usual = label not in BLOCK_SCALED or label in often
        yield label if usual else pytest.param(label, marks=pytest.mark.slow)


@pytest.mark.parametrize("label", list(some()))
def test_legal_in_1_1_and_not_in_1_0(label):
    graph = NEW[label].graph
    assert required_version(graph) == VERSION
    assert [str(v) for v in violations(graph, spec_of(graph))] == []
    assert violations(graph, TosaSpec(profiles=frozenset({"FP", "INT"}))) != []


def test_graphs_of_1_0_need_only_1_0():
    assert required_version(next(s.graph for s in samples(DType.FP32))) == (1, 0)


@pytest.mark.parametrize("label", list(some()))
def test_graphs_of_1_1_survive_files_and_text(label):
    graph = NEW[label].graph
    written = TosaFile(graph, spec_of(graph)).join()
    again = read(written)
    assert TosaFile(again, spec_of(graph)).join() == written
    assert render(parse(render(again))) == render(again)


def judged() -> Iterator[str]:
    """Up to three samples of each operator. tosa-opt's table of convolutions is of an
    older draft, and it lacks block-scaled tensors for many operators
    (test_block_scaled.py has those that it knows).
    """
    counts: Counter[str] = Counter()
    for label in NEW:
        name = label.partition("(")[0]
        older = (
            name == "CUSTOM"
            or ("CONV" in name and "BLOCK" not in name)
            or label in BLOCK_SCALED
        )
        counts[name] += not older
        if not older and counts[name] <= 3:
            yield label


@pytest.mark.parametrize("label", list(judged()))
def test_the_official_validator_accepts_legal_graphs(label):
    spec = spec_of(NEW[label].graph)
    if any(e.startswith("mx") for e in spec.extensions):
        # what the older draft called them all
        spec = TosaSpec(VERSION, spec.profiles, spec.extensions | {"mxfp"})
    reference_tools.check_strictly_for_spec(
        TosaFile(NEW[label].graph, spec).join(), spec
    )


def test_flatc_reads_the_draft_flag_and_computed_shapes():
    added = make_operator(ops.ADD_SHAPE, shape_constant(1, 2), shape_constant(2, 1))
    reshape = make_operator(ops.RESHAPE, x := value(9), *added.outputs)
    dumped = reference_tools.dump_by_flatc(
        TosaFile(
            Graph([x], reshape.outputs, [added, reshape]), TosaSpec(VERSION)
        ).join()
    )
    # and the draft flag, whose default is true
    assert dumped["version"] == {"_major": 1, "_minor": 1, "_patch": 0}
    assert reshape.outputs[0].shape == (3, 3)
    assert [s["rank"] for s in dumped["regions"][0]["blocks"][0]["shapes"]] == [2, 2, 2]


def shape_result(kind, *operands, **attributes) -> tuple[int, ...]:
    operator = make_operator(kind, *operands, **attributes)
    (computed,) = evaluate(Graph([], operator.outputs, [operator]), [])
    assert tuple(computed) == operator.entries
    return operator.entries


@pytest.mark.parametrize(
    ("kind", "operands", "entries"),
    [
        (ops.ADD_SHAPE, [(9, 4), (2, 3)], (11, 7)),
        (ops.SUB_SHAPE, [(9, 2), (2, 3)], (7, -1)),
        (ops.MUL_SHAPE, [(9, 4), (2, 3)], (18, 12)),
        (ops.MAX_SHAPE, [(9, 4), (2, 5)], (9, 5)),
        (ops.MIN_SHAPE, [(9, 4), (2, 5)], (2, 4)),
        (ops.MOD_SHAPE, [(9, 4), (2, 2)], (1, 0)),
        (ops.DIV_CEIL_SHAPE, [(9, 4), (2, 2)], (5, 2)),
        (ops.DIV_FLOOR_SHAPE, [(9, 4), (2, 2)], (4, 2)),
        (ops.EXP2_SHAPE, [(0, 5)], (1, 32)),
        (ops.LOG2_CEIL_SHAPE, [(1, 4, 5, 8)], (0, 2, 3, 3)),
        (ops.LOG2_FLOOR_SHAPE, [(1, 4, 5, 8)], (0, 2, 2, 3)),
        (ops.CONCAT_SHAPE, [(1, 2), (), (3,)], (1, 2, 3)),
    ],
)
def test_shape_operators_compute_entries(kind, operands, entries):
    assert shape_result(kind, *(shape_constant(*o) for o in operands)) == entries


def test_sizes_and_slices_of_shapes_are_computed():
    one = literal([1], DType.INT32, np.int32)
    assert shape_result(
        ops.SLICE_SHAPE,
        shape_constant(4, 5, 6),
        one,
        literal([2], DType.INT32, np.int32),
    ) == (5, 6)
    assert make_operator(ops.DIM, value(2, 7), axis=1).entries == (7,)


I32 = {"dtype": DType.INT32}
ILLEGAL = {
    "input1 has 2 entries, input2 1": lambda: make_operator(
        ops.ADD_SHAPE, shape_constant(1, 2), shape_constant(1)
    ),
    "64 bits do not hold": lambda: make_operator(
        ops.MUL_SHAPE, shape_constant(1 << 40), shape_constant(1 << 40)
    ),
    "at least 0 on the left and 1": lambda: make_operator(
        ops.MOD_SHAPE, shape_constant(1), shape_constant(0)
    ),
    r"outside 1 \.\. ": lambda: make_operator(ops.LOG2_FLOOR_SHAPE, shape_constant(0)),
    r"outside 0 \.\. 62": lambda: make_operator(ops.EXP2_SHAPE, shape_constant(63)),
    "at least one shape": lambda: make_operator(ops.CONCAT_SHAPE),
    "axis 2 is outside rank 2": lambda: make_operator(ops.DIM, value(2, 7), axis=2),
    "are not equal": lambda: make_operator(
        ops.ASSERT_EQUAL_SHAPE,
        shape_constant(2),
        shape_constant(1),
        allow_broadcast=False,
    ),
    "is not a constant shape": lambda: make_operator(
        ops.ADD_SHAPE, value(1, dtype=DType.SHAPE), shape_constant(1)
    ),
    "start must be a compile-time constant": lambda: make_operator(
        ops.SLICE_SHAPE,
        shape_constant(1, 2),
        value(1, **I32),
        literal([1], DType.INT32, np.int32),
    ),
    "start 1 and size 2 are not inside": lambda: make_operator(
        ops.SLICE_SHAPE,
        shape_constant(1, 2),
        *(literal([n], DType.INT32, np.int32) for n in (1, 2)),
    ),
    "row_count 0 is below 1": lambda: make_operator(
        ops.ROW_GATHER,
        value(1, 3, 2),
        value(1, 2, **I32),
        literal([0], DType.INT32, np.int32),
    ),
    "do not multiply": lambda: make_operator(
        ops.MATMUL_T,
        value(2, 3, 4),
        value(3, 5, 4),
        *[literal([0], DType.FP32, np.float32)] * 2,
        dtype=DType.FP32,
    ),
    "not made of blocks of 32": lambda: make_operator(
        ops.CAST_TO_BLOCK_SCALED,
        value(2, 33),
        block_size=BlockSize.BLOCK_SIZE_32,
        dtype=DType.FP8E4M3,
    ),
    "scale of input_data must have shape": lambda: make_operator(
        ops.CAST_FROM_BLOCK_SCALED,
        *(value(2, 64, dtype=DType.FP8E4M3), value(2, 1, dtype=DType.FP8UE8M0)),
        block_size=BlockSize.BLOCK_SIZE_32,
        dtype=DType.FP32,
    ),
    "do not go with a block size of 32": lambda: make_operator(
        ops.RESHAPE_BLOCK_SCALED,
        value(2, 64),
        shape_constant(128),
        block_size=BlockSize.BLOCK_SIZE_32,
    ),
}


@pytest.mark.parametrize("words", ILLEGAL)
def test_graphs_that_the_pseudocode_forbids_are_refused(words):
    with pytest.raises(Illegal, match=words):
        ILLEGAL[words]()
