"""Files of TOSA 0.80 are written, read, converted and refused."""

from __future__ import annotations

import random
import re
import struct
from collections import Counter
from pathlib import Path

import delegraph_tosa
import numpy as np
import pytest
from delegraph.errors import FormatError, OptionError, Unsupported
from delegraph_tosa import TosaFile, TosaSpec, read, render
from delegraph_tosa.evaluate import evaluate
from delegraph_tosa.ir.graph import Graph, Literal, Value, literal
from delegraph_tosa.ir.operators import (
    CLAMP,
    COND_IF,
    CUSTOM,
    IDENTITY,
    MAX_POOL2D,
    RESCALE,
    SIN,
    WHILE_LOOP,
)
from delegraph_tosa.ir.types import BLOCK_SCALED, DType, NanMode, RoundingMode, Type
from delegraph_tosa.serialize import target_of
from delegraph_tosa.validate import InvalidGraph, validate

from ...support import reference_tools
from ...support.mutations import mutate_file, reads_or_refuses
from ...support.samples import make_operator, merged, random_inputs, samples

SCHEMA = Path(__file__).parents[2] / "support/tosa_0_80.fbs"
MI = TosaSpec.parse("TOSA-0.80+MI")
SAMPLES = {sample.label: sample.graph for sample in samples(version=(0, 80))}


def write(graph: Graph, spec: TosaSpec = MI) -> bytes:
    validate(graph, spec)
    return TosaFile(graph, spec).join()


def dump_by_older_schema(data: bytes) -> dict:
    return reference_tools.dump_by_flatc(data, SCHEMA)


def assemble_by_older_schema(dumped: dict) -> bytes:
    return reference_tools.assemble_by_flatc(dumped, SCHEMA)


def only_block(data: bytes) -> dict:
    (region,) = dump_by_older_schema(data)["regions"]
    (found,) = region["blocks"]
    return found


@pytest.mark.parametrize("label", SAMPLES)
def test_every_operator_in_every_type_survives(label):
    """Written, and read back the same."""
    graph = SAMPLES[label]
    data = write(graph)
    again = read(data)
    assert render(again) == render(with_file_names(graph))
    assert TosaFile(again, MI).join() == data
    assert target_of(data, again).version == (0, 80)


def test_flatc_verifies_a_file_of_every_operator():
    graph = merged(SAMPLES.values())
    operators = [
        op["op"] for op in only_block(write(graph))["operators"] if op["op"] != "CONST"
    ]
    assert operators == [op.name for op in graph.operators]


def with_file_names(graph: Graph) -> Graph:
    """The graph with the names that a file gives its values."""
    return read(TosaFile(graph, MI).join())


@pytest.mark.parametrize("label", SAMPLES)
def test_both_languages_compute_the_same(label):
    graph = SAMPLES[label]
    if any(isinstance(op, CUSTOM) for op in graph.operators):
        pytest.skip("nothing computes a CUSTOM")
    inputs = random_inputs(graph)
    for ours, theirs in zip(
        evaluate(read(write(graph)), inputs), evaluate(graph, inputs), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_operands_of_1_0_are_attributes_in_0_80():
    (convolution,) = [
        op
        for op in only_block(
            write(SAMPLES["CONV2D(int8, int8, int32, int32, int8, int8)"])
        )["operators"]
        if op["inputs"]
    ]
    assert len(convolution["inputs"]) == 3
    assert convolution["attribute"]["dilation"] == [1, 1]
    rescale = RESCALE(
        (
            Value(Type((2, 3), DType.INT8), name="bytes"),
            literal([1 << 30], DType.INT32, np.int32),
            literal([30], DType.INT8, np.int8),
            literal([-128], DType.INT8, np.int8),
            literal([5], DType.INT8, np.int8),
        ),
        **{
            "scale32": True,
            "rounding_mode": RoundingMode.DOUBLE_ROUND,
            "per_channel": False,
        },
        **{"input_unsigned": True, "output_unsigned": False, "dtype": DType.INT8},
    )
    rescale.outputs = (Value(Type((2, 3), DType.INT8), producer=rescale),)
    graph = Graph([rescale.input], [rescale.outputs[0]], [rescale])
    data = write(graph)
    (found,) = only_block(data)["operators"]
    assert found["inputs"] == ["bytes"]
    assert found["attribute"] == {
        **{"input_zp": 128, "output_zp": 5, "multiplier": [1 << 30], "shift": [30]},
        **{"scale32": True, "double_round": True, "input_unsigned": True},
    }
    assert render(read(data)) == render(with_file_names(graph))


@pytest.mark.parametrize(
    ("dtype", "low", "high", "found"),
    [
        (DType.INT8, -5, 7, (-5, 7, 0.0, 0.0)),
        (DType.FP32, 0.0, float("inf"), (None, None, 0.0, float("inf"))),
        (
            DType.FP16,
            -0.1,
            0.1,
            (None, None, float(np.float16(-0.1)), float(np.float16(0.1))),
        ),
    ],
)
def test_clamp_has_integers_and_floats(dtype, low, high, found):
    """Floats are fp32 there, whatever the operand is."""
    x = Value(Type((2,), dtype), name="x")
    clamp = make_operator(
        CLAMP, x, min_val=low, max_val=high, nan_mode=NanMode.PROPAGATE
    )
    (held,) = [
        op["attribute"]
        for op in only_block(write(Graph([x], [clamp.outputs[0]], [clamp])))[
            "operators"
        ]
    ]
    floats = [
        np.frombuffer(bytes(held[name]), "<f4")[0] for name in ("min_fp", "max_fp")
    ]
    assert (held.get("min_int"), held.get("max_int"), *floats) == found


def test_constants_of_bfloat16_are_floats_of_32_bits():
    bits = np.array([0x3F80, 0xBFC0, 0x7F80], np.uint16)
    constant = Value(Type((3,), DType.BF16), Literal(bits), "c")
    copied = make_operator(IDENTITY, constant)
    data = write(Graph([], [copied.outputs[0]], [copied]))
    (held,) = [t["data"] for t in only_block(data)["tensors"] if "data" in t]
    assert np.frombuffer(bytes(held), "<f4").tolist() == [1.0, -1.5, float("inf")]
    np.testing.assert_array_equal(read(data).constants()[0].constant.array, bits)


def test_files_have_the_older_version_and_region_names():
    data = write(SAMPLES["ADD(fp32)"])
    assert dump_by_older_schema(data)["version"] == {
        "_major": 0,
        "_minor": 80,
        "_patch": 1,
        "_draft": False,
    }
    assert dump_by_older_schema(data)["regions"][0]["name"] == "main"
    older = dump_by_older_schema(data)
    older["version"]["_patch"] = 0
    assert render(read(assemble_by_older_schema(older))) == render(read(data))


def body(dtype: DType, result: DType) -> Graph:
    x = Value(Type((1,), dtype), name="x")
    kept = (
        make_operator(IDENTITY, x)
        if result is dtype
        else make_operator(delegraph_tosa.operators.CAST, x, dtype=result)
    )
    return Graph([x], [kept.outputs[0]], [kept], f"body_{result}")


def test_control_flow_survives():
    condition = Value(Type((1,), DType.BOOL), name="c")
    x = Value(Type((1,), DType.INT32), name="x")
    same = body(DType.INT32, DType.INT32)
    chosen = make_operator(COND_IF, condition, x, then_graph=same, else_graph=same)
    looped = make_operator(
        WHILE_LOOP,
        chosen.outputs[0],
        cond_graph=body(DType.INT32, DType.BOOL),
        body_graph=same,
    )
    graph = Graph([condition, x], [looped.outputs[0]], [chosen, looped])
    data = write(graph, TosaSpec.parse("TOSA-0.80+BI"))
    assert [region["name"] for region in dump_by_older_schema(data)["regions"]] == [
        "main",
        "body_int32",
        "body_bool",
    ]
    assert render(read(data)) == render(with_file_names(graph))
    found = evaluate(read(data), [np.array([True]), np.array([0], np.int32)])
    assert found[0].tolist() == [0]


def test_fully_connected_is_read_as_a_convolution():
    """It is gone in 1.0: other writers have it, ours has not."""
    image = SAMPLES["CONV2D(fp32, fp32, fp32, fp32, fp32, fp32)"]
    dumped = dump_by_older_schema(write(image))
    tensors = [("x", [2, 3]), ("w", [4, 3]), ("b", [4]), ("y", [2, 4])]
    numbers = {"w": np.arange(12, dtype=np.float32), "b": np.ones(4, np.float32)}
    (found,) = dumped["regions"][0]["blocks"]
    found["tensors"] = [
        {"name": name, "shape": shape, "type": "FP32"}
        | ({"data": list(numbers[name].tobytes())} if name in numbers else {})
        for name, shape in tensors
    ]
    constants = [{"op": "CONST", "inputs": [], "outputs": [name]} for name in numbers]
    product = {
        **{
            "op": "FULLY_CONNECTED",
            "attribute_type": "FullyConnectedAttribute",
            "attribute": {},
        },
        **{"inputs": ["x", "w", "b"], "outputs": ["y"]},
    }
    found |= {"operators": [*constants, product], "inputs": ["x"], "outputs": ["y"]}
    graph = read(assemble_by_older_schema(dumped))
    assert [op.name for op in graph.operators] == [
        "RESHAPE",
        "RESHAPE",
        "CONV2D",
        "RESHAPE",
    ]
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(
        evaluate(graph, [x])[0], x @ numbers["w"].reshape(4, 3).T + 1
    )


def test_unsigned_tensors_are_recognized_by_their_rescale():
    x = Value(Type((2, 3), DType.INT8), name="x")
    (data,) = [
        write(g) for label, g in SAMPLES.items() if label == "RESCALE(int8, int8)"
    ]
    dumped = dump_by_older_schema(data)
    given = next(
        t
        for t in dumped["regions"][0]["blocks"][0]["tensors"]
        if t["name"] == "input_0"
    )
    given["type"] = "UINT8"
    (rescale,) = [
        op
        for op in read(assemble_by_older_schema(dumped)).operators
        if isinstance(op, RESCALE)
    ]
    assert rescale.input_unsigned
    assert not rescale.output_unsigned
    assert x.dtype is rescale.input.dtype


def test_a_file_of_0_80_becomes_one_of_1_0_and_back():
    for label in (
        "CONV2D(int8, int8, int32, int32, int8, int8)",
        "PAD(bool)",
        "TABLE(int16, int16, int32)",
    ):
        old = write(SAMPLES[label])
        new = delegraph_tosa.convert(old, "TOSA-1.0+FP+INT+int16").join()
        assert reference_tools.dump_by_flatc(new)["version"]["_major"] == 1
        reference_tools.check_strictly_for_spec(
            new, TosaSpec.parse("TOSA-1.0+FP+INT+int16")
        )
        assert delegraph_tosa.convert(new, "TOSA-0.80+BI").join() == old


def test_operators_missing_in_0_80_are_refused_by_name():
    x = Value(Type((2,), DType.FP32), name="x")
    wave = make_operator(SIN, x)
    clamp = make_operator(CLAMP, x, min_val=0.0, max_val=1.0, nan_mode=NanMode.IGNORE)
    new = TosaFile(
        Graph([x], [wave.outputs[0], clamp.outputs[0]], [wave, clamp]), TosaSpec()
    ).join()
    with pytest.raises(InvalidGraph, match="SIN is not in TOSA 0.80") as caught:
        delegraph_tosa.convert(new, "TOSA-0.80+MI")
    assert "nan_mode IGNORE needs TOSA 1.0" in str(caught.value)
    assert [violation.rule for violation in caught.value.violations] == [
        "operator-version"
    ] * 2
    with pytest.raises(
        InvalidGraph, match="TOSA ADD on fp32 needs MI; the target is TOSA-0.80.BI"
    ):
        delegraph_tosa.convert(write(SAMPLES["ADD(fp32)"]), "TOSA-0.80+BI")
    with pytest.raises(OptionError, match="wrong TOSA specification"):
        delegraph_tosa.convert(new, "TOSA-0.80")
    with pytest.raises(Unsupported, match="TOSA SIN: it is not in TOSA 0.80"):
        TosaFile(read(new), MI)


def test_files_beyond_2_gb_are_refused():
    weight = Value(Type((1 << 29,), DType.FP32), Literal(np.zeros(0)), "w")
    copied = make_operator(IDENTITY, weight)
    with pytest.raises(Unsupported, match="files of TOSA 0.80 are limited to 2 GB"):
        TosaFile(Graph([], [copied.outputs[0]], [copied]), MI)


def test_block_scaled_types_are_refused():
    x = Value(Type((32,), next(iter(BLOCK_SCALED))), name="x")
    with pytest.raises(Unsupported, match="TOSA 0.80 has no tensors of"):
        TosaFile(Graph([x], [make_operator(IDENTITY, x).outputs[0]], []), MI)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda b: b["operators"][-1].update(op="DIM"),
            "operator number 72 is not supported in TOSA 0.80",
        ),
        (
            lambda b: b["operators"][-1].update(inputs=["input_0"]),
            "MAX_POOL2D|operands",
        ),
        (
            lambda b: b["tensors"][0].update(type="SHAPE"),
            "has element type 12, which no tensor of TOSA 0.80 has",
        ),
        (
            lambda b: b["operators"][-1].pop("attribute_type"),
            "MAX_POOL2D has attributes of kind 0, not 1",
        ),
        (lambda b: b["operators"][-1].update(outputs=[]), "the file declares nothing"),
        (
            lambda b: b["operators"][-1].update(inputs=[]),
            "MAX_POOL2D has 0 operands instead of 1",
        ),
    ],
)
def test_damaged_files_are_refused_with_a_reason(change, text):
    data = write(SAMPLES["MAX_POOL2D(int8)"])
    dumped = dump_by_older_schema(data)
    change(dumped["regions"][0]["blocks"][0])
    if text.endswith("kind 0, not 1"):
        dumped["regions"][0]["blocks"][0]["operators"][-1].pop("attribute")
    if text == "MAX_POOL2D|operands":
        assert isinstance(
            read(assemble_by_older_schema(dumped)).operators[0], MAX_POOL2D
        )
        return
    with pytest.raises(FormatError, match=text):
        read(assemble_by_older_schema(dumped))


def test_zero_points_out_of_range_are_refused():
    dumped = dump_by_older_schema(
        write(SAMPLES["CONV2D(int8, int8, int32, int32, int8, int8)"])
    )
    dumped["regions"][0]["blocks"][0]["operators"][-1]["attribute"]["input_zp"] = 300
    with pytest.raises(FormatError, match=r"\[300\] do not fit into int8|300"):
        read(assemble_by_older_schema(dumped))


FILES = [write(graph) for graph in list(SAMPLES.values())[::5]]


def outcomes(count: int, seed: int) -> Counter[bool]:
    """How many of so many damaged files are read, and how many refused."""
    generator = random.Random(seed)
    return Counter(
        reads_or_refuses(mutate_file(FILES[number % len(FILES)], generator))
        for number in range(count)
    )


def test_numbers_that_attributes_share_do_not_multiply_memory():
    """One vector of many numbers as multipliers and as shifts of many operators."""
    (data,) = [
        write(graph)
        for label, graph in SAMPLES.items()
        if label == "RESCALE(int32, int8)"
    ]
    dumped = dump_by_older_schema(data)
    rescale = dumped["regions"][0]["blocks"][0]["operators"][-1]
    rescale["attribute"].update(multiplier=[77] * 20_000, shift=[33] * 20_000)
    file = bytearray(assemble_by_older_schema(dumped))
    vectors = [
        match.start()
        for match in re.finditer(re.escape(struct.pack("<I", 20_000)), bytes(file))
    ]
    assert len(vectors) == 2
    read(data)
    assert not reads_or_refuses(bytes(file))


def test_five_thousand_damaged_files():
    for file in FILES:
        read(file)
    found = outcomes(5_000, seed=1)
    assert found.total() == 5_000
    assert found[True] > 250
