"""``.tosa`` files are readable by the official tools, survive reading and writing, and are
refused if they are damaged.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import random
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delegraph.backend import Blob
from delegraph.errors import FormatError, InternalError, Unsupported
from delegraph_tosa.evaluate import evaluate, materialize
from delegraph_tosa.ir import operators as ops
from delegraph_tosa.ir.graph import Deferred, Folded, Graph, Literal, Value, literal
from delegraph_tosa.ir.types import ARRAY_DTYPES, BLOCK_SCALED, DType, Type
from delegraph_tosa.serialize import TosaFile, elements, read, writer
from delegraph_tosa.spec import DEFAULT, TosaSpec
from delegraph_tosa.text import render
from delegraph_tosa.validate import violations

from ..support import reference_tools
from ..support.samples import make_operator, merged, random_inputs, samples
from ..support.structured import structured

F32 = DType.FP32
ROOT = Path(__file__).parents[4]
EVERYTHING = TosaSpec.parse(
    "TOSA-1.0+FP+INT+int16+int4+bf16+fp8e4m3+fp8e5m2+fft+variable+controlflow"
)


def value(*shape: int, dtype: DType = F32, name: str = "") -> Value:
    return Value(Type(shape, dtype), name=name)


def zero(dtype: DType = F32) -> Value:
    return literal([0], dtype, ARRAY_DTYPES[dtype])


def small_graph() -> Graph:
    """conv, clamp, mul, reshape: tensors, shapes, integer lists, numbers, an
    enumeration, a shared constant.
    """
    x = value(1, 4, 4, 2, name="x")
    nothing = zero()
    weight = Value(
        Type((3, 2, 2, 2), F32),
        Literal(np.arange(24, dtype=np.float32).reshape(3, 2, 2, 2)),
    )
    attributes = {
        "pad": (0, 0, 0, 0),
        "stride": (2, 2),
        "dilation": (1, 1),
        "acc_type": F32,
    }
    conv = make_operator(ops.CONV2D, x, weight, nothing, nothing, nothing, **attributes)
    clamp = make_operator(ops.CLAMP, conv.outputs[0], min_val=0.0, max_val=math.inf)
    mul = make_operator(ops.MUL, clamp.outputs[0], clamp.outputs[0], zero(DType.INT8))
    reshape = make_operator(
        ops.RESHAPE, mul.outputs[0], literal([3, 4], DType.SHAPE, np.int64)
    )
    return Graph(
        [x], [reshape.outputs[0], clamp.outputs[0]], [conv, clamp, mul, reshape]
    )


def write(graph: Graph, spec: TosaSpec = DEFAULT) -> bytes:
    return TosaFile(graph, spec).join()


# -- what others see -------------------------------------------------------------------


def test_official_tools_run_every_float_operator():
    graph = merged(
        s.graph for s in samples(F32, DType.BOOL, DType.FP16) if "CUSTOM" not in s.label
    )
    inputs = random_inputs(graph)
    file = write(graph)
    reference_tools.dump_by_flatc(file)
    computed = reference_tools.run_reference_model(file, inputs)
    assert [list(a.shape) for a in computed] == [
        list(output.shape) for output in graph.outputs
    ]
    for ours, theirs in zip(evaluate(read(file), inputs), computed, strict=True):
        tolerance = 1e-2 if ours.dtype == np.float16 else 1e-5
        np.testing.assert_allclose(
            ours.astype(float), theirs.astype(float), rtol=tolerance, atol=tolerance
        )


def test_official_tools_run_every_integer_operator():
    integers = [
        s
        for s in samples(DType.INT8, DType.INT16, DType.INT32)
        if "CUSTOM" not in s.label
    ]
    graph = merged(s.graph for s in integers)
    inputs = random_inputs(graph)
    file = write(graph)
    reference_tools.dump_by_flatc(file)
    for ours, theirs in zip(
        evaluate(read(file), inputs),
        reference_tools.run_reference_model(file, inputs),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_flatc_reads_the_written_values():
    file = reference_tools.dump_by_flatc(write(small_graph()))
    assert file["version"] == {"_major": 1, "_minor": 0, "_patch": 0, "_draft": False}
    (region,) = file["regions"]
    (block,) = region["blocks"]
    assert region["name"] == "main"
    assert block["name"] == "main"
    assert block["inputs"] == ["x"]
    assert block["outputs"] == ["output_0", "output_1"]
    assert [o["op"] for o in block["operators"]] == [
        "CONST",
        "CONST",
        "CONST",
        "CONST_SHAPE",
        "CONV2D",
        "CLAMP",
        "MUL",
        "RESHAPE",
    ]
    conv, clamp = block["operators"][4:6]
    assert conv["attribute"] == {
        "pad": [0, 0, 0, 0],
        "stride": [2, 2],
        "dilation": [1, 1],
        "acc_type": "FP32",
    }
    assert bytes(clamp["attribute"]["max_val"]) == struct.pack("<f", math.inf)
    assert clamp["attribute"]["nan_mode"] == "PROPAGATE"
    weight = next(t for t in block["tensors"] if t["shape"] == [3, 2, 2, 2])
    assert bytes(weight["data"]) == np.arange(24, dtype="<f4").tobytes()
    assert [bytes(s["data"]) for s in block["shapes"]] == [struct.pack("<2q", 3, 4)]


def test_constants_are_aligned_and_written_once():
    weight = np.arange(24, dtype="<f4").tobytes()
    new_shape = struct.pack("<2q", 3, 4)

    file = write(small_graph())

    for content in (weight, new_shape):
        assert file.count(content) == 1
        assert file.index(content) % 16 == 0


def test_locations_are_stored_on_request_only():
    graph = small_graph()
    graph.operators[0].source = "model.py:3, in forward: conv(x)"
    assert b"model.py" not in write(graph)
    located = TosaFile(graph, DEFAULT, locations=True).join()
    assert read(located).operators[0].source == "model.py:3, in forward: conv(x)"
    reference_tools.check_strictly(located)


def test_source_names_that_are_no_utf8_are_written():
    """Python keeps bytes of a path that are no UTF-8 as halves of surrogate pairs."""
    graph = small_graph()
    graph.operators[0].source = "m\udc80del.py:3"
    assert (
        read(TosaFile(graph, DEFAULT, locations=True).join()).operators[0].source
        == "m\\udc80del.py:3"
    )


# -- round trips -----------------------------------------------------------------------


@pytest.mark.parametrize("sample", list(samples()), ids=lambda s: s.label)
def test_reads_back_as_written(sample):
    file = write(sample.graph, EVERYTHING)
    graph = read(file)
    assert write(graph, EVERYTHING) == file
    assert render(_unnamed(graph)) == render(sample.graph)


def _unnamed(graph: Graph) -> Graph:
    for v in [
        *graph.inputs,
        *(v for op in graph.operators for v in (*op.inputs, *op.outputs)),
    ]:
        v.name = ""
    return graph


STRUCTURED = list(structured())
NOT_RUN = {
    "int4": "the reference model's Python binding takes no int4",
    "int48": "nor int48",
    "CUSTOM": (
        "the reference model has no custom operator; flatc and tosa-opt judge these"
    ),
}


@pytest.mark.parametrize(
    "sample", [s for s in STRUCTURED if "list of" not in s.label], ids=lambda s: s.label
)
def test_control_flow_and_variables_read_back_as_written(sample):
    file = write(sample.graph, EVERYTHING)
    assert write(read(file), EVERYTHING) == file
    assert [op.name for op in read(file).operators] == [
        op.name for op in sample.graph.operators
    ]


def test_control_flow_and_variables_survive_reading_and_writing():
    run = [
        s.graph for s in STRUCTURED if not any(words in s.label for words in NOT_RUN)
    ]
    first = [write(graph, EVERYTHING) for graph in run]
    second = [write(read(file), EVERYTHING) for file in first]
    inputs = [random_inputs(graph) for graph in run]
    outputs, again = (
        reference_tools.run_or_refusal_of_each(list(zip(files, inputs, strict=True)))
        for files in (first, second)
    )
    assert len(run) > 40
    for graph, before, after, given in zip(run, outputs, again, inputs, strict=True):
        assert [a.tobytes() for a in before] == [a.tobytes() for a in after]
        for value, ours, theirs in zip(
            graph.outputs, evaluate(graph, given), before, strict=True
        ):
            np.testing.assert_array_equal(
                ours, theirs.view(ours.dtype), err_msg=str(value)
            )


def test_custom_operators_keep_their_attributes():
    graph = next(s.graph for s in STRUCTURED if s.label.startswith("CUSTOM(several"))
    file = write(graph, EVERYTHING)
    (operator,) = reference_tools.dump_by_flatc(file)["regions"][0]["blocks"][0][
        "operators"
    ]
    attributes = {
        "operator_name": "solve",
        "domain_name": "acme",
        "implementation_attrs": [*range(256)],
    }
    assert operator["op"] == "CUSTOM"
    assert operator["attribute"] == attributes
    reference_tools.check_strictly(file, "pro_fp,pro_int")
    assert reference_tools.dump_by_flatc(
        write(read(file), EVERYTHING)
    ) == reference_tools.dump_by_flatc(file)


OFFICIAL = """module {
  tosa.variable @state = dense<[1.0, 2.0]> : tensor<2xf32>
  func.func @main(%c: tensor<1xi1>, %x: tensor<2xf32>) -> (tensor<2xf32>) {
    %r = "tosa.cond_if"(%c, %x) ({
    ^bb0(%a: tensor<2xf32>):
      %v = tosa.variable_read @state : tensor<2xf32>
      %k = tosa.add %a, %v : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
      tosa.variable_write @state, %k : tensor<2xf32>
      "tosa.yield"(%k) : (tensor<2xf32>) -> ()
    }, {
    ^bb0(%a: tensor<2xf32>):
      %k = tosa.abs %a : (tensor<2xf32>) -> tensor<2xf32>
      "tosa.yield"(%k) : (tensor<2xf32>) -> ()
    }) : (tensor<1xi1>, tensor<2xf32>) -> tensor<2xf32>
    %v = tosa.variable_read @state : tensor<2xf32>
    %k = tosa.add %r, %v : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    return %k : tensor<2xf32>
  }
}"""


def test_variables_inside_control_flow_as_the_official_serializer_writes_them(tmp_path):
    """It repeats the variable in every region; read as declarations, each would start
    the variable anew.
    """
    official = serialize_by_tosa_opt(OFFICIAL, tmp_path)
    graph = read(official)
    assert [op.name for g in graph.reachable() for op in g.operators].count(
        "VARIABLE"
    ) == 1
    for flag in (True, False):
        inputs = [np.array([flag]), np.array([1, 1], np.float32)]
        expected = reference_tools.run_reference_model(official, inputs)
        np.testing.assert_array_equal(
            reference_tools.run_reference_model(write(graph), inputs), expected
        )
        np.testing.assert_array_equal(evaluate(graph, inputs), expected)


def test_variables_named_only_in_bodies_are_declared(tmp_path):
    dumped = reference_tools.dump_by_flatc(serialize_by_tosa_opt(OFFICIAL, tmp_path))
    block = block_of(dumped)
    block["tensors"] = [t for t in block["tensors"] if t["name"] != "Variable_0"]
    block["operators"][1:] = []
    block["operators"][0]["outputs"], block["outputs"] = ["layer_1"], ["layer_1"]
    graph = read(reference_tools.assemble_by_flatc(dumped))
    assert [op.name for op in graph.operators] == ["VARIABLE", "COND_IF"]
    assert violations(graph, EVERYTHING) == []
    (result,) = evaluate(graph, [np.array([True]), np.array([1, 1], np.float32)])
    np.testing.assert_array_equal(result, [2, 3])


def test_a_variable_has_one_type_in_all_regions(tmp_path):
    dumped = reference_tools.dump_by_flatc(serialize_by_tosa_opt(OFFICIAL, tmp_path))
    tensor = next(
        t
        for t in dumped["regions"][1]["blocks"][0]["tensors"]
        if t["name"] == "Variable_0"
    )
    tensor.update(shape=[1, 2])
    with pytest.raises(
        FormatError,
        match=r"variable 'state' is declared as \[2\]fp32 and as \[1x2\]fp32",
    ):
        read(reference_tools.assemble_by_flatc(dumped))


def test_undeclared_variables_are_refused():
    lost = make_operator(ops.VARIABLE_READ, variable="lost", types=(Type((2,), F32),))
    with pytest.raises(
        Unsupported, match="VARIABLE_READ: variable 'lost' is not declared"
    ):
        write(Graph([], lost.outputs, [lost]))


def test_unique_names_are_kept():
    a = value(2, name="a")
    b = value(2, name="same")
    add = make_operator(ops.ADD, a, b)
    sub = make_operator(ops.SUB, add.outputs[0], b)
    add.outputs[0].name = "same"
    sub.outputs[0].name = "difference"
    graph = read(write(Graph([a, b], [sub.outputs[0], add.outputs[0]], [add, sub])))
    assert [value.name for value in graph.inputs] == ["a", "input_1"]
    assert [output.name for output in graph.outputs] == ["difference", "output_1"]


def test_generated_names_avoid_given_ones():
    a = value(2, name="input_1")
    b = value(2)
    add = make_operator(ops.ADD, a, b)
    assert (
        len(
            {
                value.name
                for value in read(write(Graph([a, b], add.outputs, [add]))).inputs
            }
        )
        == 2
    )


def test_inputs_constants_and_repeated_values_may_be_outputs():
    x = value(2, name="x")
    constant = literal([1.0, 2.0], F32, np.float32)
    double = make_operator(ops.ADD, x, x)
    graph = Graph([x], [x, double.outputs[0], constant, double.outputs[0], x], [double])
    file = write(graph)
    back = read(file)
    assert [op.name for op in back.operators] == [
        "ADD",
        "IDENTITY",
        "IDENTITY",
        "IDENTITY",
        "IDENTITY",
    ]
    assert len({output.name for output in back.outputs}) == 5
    reference_tools.check_strictly(file)
    given = np.array([3, 4], np.float32)
    for array, expected in zip(
        reference_tools.run_reference_model(file, [given]),
        [given, 2 * given, [1, 2], 2 * given, given],
        strict=True,
    ):
        np.testing.assert_array_equal(array, expected)
    assert len(graph.operators) == 1


def test_reference_model_reads_tensors_of_rank_0():
    scalar = value()
    negated = make_operator(
        ops.RESHAPE,
        make_operator(ops.ABS, scalar).outputs[0],
        literal([], DType.SHAPE, np.int64),
    )
    graph = Graph([scalar], negated.outputs, [negated.inputs[0].producer, negated])
    (result,) = reference_tools.run_reference_model(write(graph), [np.float32(-2)])
    assert result.shape == ()
    assert float(result) == 2


def test_graphs_without_inputs_are_written_and_read():
    constant = make_operator(ops.IDENTITY, literal([1.0], F32, np.float32))

    assert read(write(Graph([], constant.outputs, [constant]))).inputs == []


def test_control_flow_keeps_its_graphs():
    inner = value(2)
    outer = value(2)
    body = Graph([inner], make_operator(ops.ABS, inner).outputs, [])
    body.operators.append(body.outputs[0].producer)
    kept = Graph([other := value(2)], [other], [], name="kept")
    condition = value(1, dtype=DType.BOOL)
    chosen = make_operator(
        ops.COND_IF, condition, outer, then_graph=body, else_graph=kept
    )
    again = make_operator(
        ops.COND_IF, condition, *chosen.outputs, then_graph=kept, else_graph=body
    )
    file = write(Graph([condition, outer], again.outputs, [chosen, again]))
    back = read(file)
    assert back.operators[0].then_graph is back.operators[1].else_graph
    assert write(back) == file
    given = np.array([-1, 2], np.float32)
    for flag, expected in ((True, [1, 2]), (False, [1, 2])):
        np.testing.assert_array_equal(
            reference_tools.run_reference_model(file, [np.array([flag]), given])[0],
            expected,
        )
    reference_tools.check_strictly(file, extensions="controlflow")


def test_variables_survive_files_and_run():
    initial = literal([1.0, 2.0], F32, np.float32)
    declared = make_operator(ops.VARIABLE, initial, variable="state")
    state = make_operator(ops.VARIABLE_READ, variable="state", types=(initial.type,))
    x = value(2)
    total = make_operator(ops.ADD, state.outputs[0], x)
    stored = make_operator(ops.VARIABLE_WRITE, total.outputs[0], variable="state")
    file = write(Graph([x], total.outputs, [declared, state, total, stored]))
    assert [op.name for op in read(file).operators] == [
        "VARIABLE",
        "VARIABLE_READ",
        "ADD",
        "VARIABLE_WRITE",
    ]
    assert write(read(file)) == file
    np.testing.assert_array_equal(
        reference_tools.run_reference_model(file, [np.array([3, 4], np.float32)])[0],
        [4, 6],
    )
    assert "tosa.variable" in reference_tools.check_strictly(
        file, extensions="variable"
    )


def test_files_of_the_official_serializer(tmp_path):
    module = """module {
      func.func @main(%x: tensor<1x4x4x2xf32>) -> (tensor<1x2x2x2xf32>, tensor<8xf32>) {
        %p = tosa.max_pool2d %x {kernel = array<i64: 2, 2>, pad = array<i64: 0, 0, 0, 0>, stride = array<i64: 2, 2>}
             : (tensor<1x4x4x2xf32>) -> tensor<1x2x2x2xf32>
        %c = tosa.clamp %p {min_val = 0.0 : f32, max_val = 0x7F800000 : f32}
             : (tensor<1x2x2x2xf32>) -> tensor<1x2x2x2xf32>
        %w = "tosa.const"() {values = dense<[[[[1.5]]]]> : tensor<1x1x1x1xf32>} : () -> tensor<1x1x1x1xf32>
        %a = tosa.add %c, %w : (tensor<1x2x2x2xf32>, tensor<1x1x1x1xf32>) -> tensor<1x2x2x2xf32>
        %s = tosa.const_shape {values = dense<[8]> : tensor<1xindex>} : () -> !tosa.shape<1>
        %r = tosa.reshape %a, %s : (tensor<1x2x2x2xf32>, !tosa.shape<1>) -> tensor<8xf32>
        return %a, %r : tensor<1x2x2x2xf32>, tensor<8xf32>
      }
    }"""
    official = serialize_by_tosa_opt(module, tmp_path)
    graph = read(official)
    assert [op.name for op in graph.operators] == [
        "MAX_POOL2D",
        "CLAMP",
        "ADD",
        "RESHAPE",
    ]
    inputs = random_inputs(graph)
    for ours, theirs in zip(
        reference_tools.run_reference_model(write(graph), inputs),
        reference_tools.run_reference_model(official, inputs),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)


def serialize_by_tosa_opt(module: str, folder: Path) -> bytes:
    """The file that tosa-opt writes of an MLIR module."""
    (folder / "m.mlir").write_text(module)
    serialize = (
        f"builtin.module(tosa-serialize{{tosa-flatbuffer-filename={folder}/m.tosa}})"
    )
    command = [
        reference_tools.tools() / "tosa-opt",
        f"--pass-pipeline={serialize}",
        folder / "m.mlir",
    ]
    subprocess.run(command, check=True, capture_output=True)
    return (folder / "m.tosa").read_bytes()


# -- elements --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "numbers", "packed"),
    [
        (DType.INT4, [-8, 7, -1], b"\x78\x0f"),
        (
            DType.INT48,
            [-1, 1, -(1 << 47)],
            b"\xff" * 6 + b"\1\0\0\0\0\0" + b"\0\0\0\0\0\x80",
        ),
        (DType.BOOL, [1, 0, 1], b"\1\0\1"),
        (DType.INT16, [-2, 1, 0], b"\xfe\xff\1\0\0\0"),
        (DType.FP16, [1.0, -0.0, math.inf], b"\0\x3c\0\x80\0\x7c"),
        (DType.SHAPE, [-1, 2, 3], b"\xff" * 8 + b"\2" + b"\0" * 7 + b"\3" + b"\0" * 7),
    ],
)
def test_elements_are_packed_as_files_store_them(dtype, numbers, packed):
    array = np.array(numbers, ARRAY_DTYPES[dtype])
    type = Type((3,), dtype)
    assert bytes(elements.pack(array, type)) == packed
    assert elements.size_in_file(type) == len(packed)
    back = elements.unpack(memoryview(packed), type)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


def folded_constant(cls: type[ops.RESHAPE], *inputs: Value, **attributes: Any) -> Value:
    operator = cls(inputs, **attributes)
    return Value(operator.infer()[0], Folded(operator))


@pytest.mark.parametrize("dtype", [F32, DType.BF16, DType.INT8])
@pytest.mark.parametrize(
    "of",
    [
        lambda a, b: folded_constant(
            ops.RESHAPE, a, literal([6, 1, 2], DType.SHAPE, np.int64)
        ),
        lambda a, b: folded_constant(
            ops.RESHAPE,
            folded_constant(ops.TRANSPOSE, a, perms=(1, 0)),
            literal([12], DType.SHAPE, np.int64),
        ),
        lambda a, b: folded_constant(
            ops.CONCAT, a, folded_constant(ops.CONCAT, b, a, axis=0), axis=0
        ),
        lambda a, b: folded_constant(
            ops.CONCAT,
            a,
            folded_constant(ops.RESHAPE, b, literal([3, 4], DType.SHAPE, np.int64)),
            axis=1,
        ),
    ],
)
def test_folded_constants_are_computed_while_written(of, dtype):
    numbers = np.arange(24).astype(ARRAY_DTYPES[dtype]).reshape(2, 3, 4)
    constant = of(*[Value(Type((3, 4), dtype), Literal(half)) for half in numbers])
    identity = make_operator(ops.IDENTITY, constant)
    (written,) = read(
        write(Graph([], identity.outputs, [identity]), EVERYTHING)
    ).constants()
    np.testing.assert_array_equal(materialize(written), materialize(constant))


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 5)])
@pytest.mark.parametrize("dtype", sorted(ARRAY_DTYPES.keys() - BLOCK_SCALED.keys()))
def test_elements_round_trip(dtype, shape):
    bits = {
        DType.FP4E2M1: (0, 16),
        DType.FP6E2M3: (0, 64),
        DType.FP6E3M2: (0, 64),
        DType.INT4: (-8, 8),
    }
    low, high = bits.get(dtype, (-100, 100))
    numbers = np.random.default_rng(1).integers(low, high, shape)
    array = (numbers > 0 if dtype is DType.BOOL else numbers).astype(
        ARRAY_DTYPES[dtype]
    )
    type = Type(shape, dtype)
    np.testing.assert_array_equal(
        elements.unpack(elements.pack(np.asarray(array), type), type), array
    )


@pytest.mark.parametrize(
    "dtype", [F32, DType.FP16, DType.BF16, DType.INT8, DType.INT16]
)
@pytest.mark.parametrize("number", [0, -1, 6.0, 1e-3, 0.1, math.inf, -math.inf])
def test_bounds_of_clamp_survive_packing(dtype, number):
    if dtype in (DType.INT8, DType.INT16) and number != int(
        min(max(number, -1e9), 1e9)
    ):
        pytest.skip("no integer")
    back = elements.unpack_number(elements.pack_number(number, dtype), dtype)
    assert elements.pack_number(back, dtype) == elements.pack_number(number, dtype)
    assert back == number or math.isclose(back, number, rel_tol=2**-8)


def test_bfloat16_rounds_to_nearest_even():
    def bits(number):
        return int.from_bytes(elements.pack_number(number, DType.BF16), "little")

    assert bits(1.0) == 0x3F80
    assert bits(1.00390625) == 0x3F80  # halfway, to even
    assert bits(1.01171875) == 0x3F82  # halfway, to even
    assert bits(3.4e38) == 0x7F80
    assert bits(math.nan) & 0x7FFF > 0x7F80


def test_clamp_bounds_out_of_range_are_refused():
    clamp = make_operator(
        ops.CLAMP, x := value(2, dtype=DType.INT8), min_val=0, max_val=300
    )
    with pytest.raises(Unsupported, match="300 is not in the range of int8"):
        write(Graph([x], clamp.outputs, [clamp]))


# -- weights ---------------------------------------------------------------------------


def graph_with_weights(*weights: Value) -> Graph:
    x = value(*weights[0].shape)
    adds = [make_operator(ops.ADD, x, weight) for weight in weights]
    return Graph([x], [add.outputs[0] for add in adds], adds)


def test_weights_are_loaded_one_at_a_time_when_written():
    loaded: list[int] = []
    megabytes = 4 << 20

    def weight(number: int) -> Value:
        def load():
            loaded.append(number)
            return np.full(megabytes // 4, number, np.float32)

        return Value(Type((megabytes // 4,), F32), Deferred(load))

    file = TosaFile(graph_with_weights(*map(weight, range(6))), DEFAULT)
    assert isinstance(file, Blob)
    assert loaded == []
    assert len(file) > 6 * megabytes
    sink = _Sink()
    tracemalloc.start()
    file.write_to(sink)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert loaded == [0, 1, 2, 3, 4, 5]
    assert sink.size == len(file)
    assert peak < 3 * megabytes


class _Sink(io.RawIOBase):
    size = 0

    def write(self, data):
        self.size += memoryview(data).nbytes
        return memoryview(data).nbytes


def test_folded_constants_are_evaluated_when_they_are_written():
    weight = literal([[1.0, 2.0, 3.0]], F32, np.float32)
    transpose = make_operator(ops.TRANSPOSE, weight, perms=(1, 0))
    folded = Value(transpose.outputs[0].type, Folded(transpose))
    back = read(write(graph_with_weights(folded)))
    np.testing.assert_array_equal(
        back.operators[0].input2.constant.array, [[1], [2], [3]]
    )


def test_weight_of_another_shape_is_an_internal_error():
    wrong = Value(Type((2,), F32), Deferred(lambda: np.zeros(3, np.float32)))
    with pytest.raises(InternalError, match="fp32"):
        write(graph_with_weights(wrong))


def test_joined_and_streamed_bytes_are_equal():
    file = TosaFile(small_graph(), DEFAULT)
    stream = io.BytesIO(b"before")
    stream.seek(6)
    file.write_to(stream)
    assert stream.getvalue() == b"before" + file.join()
    assert len(file) == len(file.join())


def test_constants_are_views_of_the_file():
    data = bytearray(write(small_graph()))
    weight = read(data).operators[0].weight.constant.array
    position = data.index(np.arange(24, dtype="<f4").tobytes())
    data[position : position + 4] = struct.pack("<f", 7)
    assert weight.reshape(-1)[0] == 7


def test_files_beyond_the_reach_of_offsets(monkeypatch):
    graph = small_graph()
    plain = write(small_graph())
    monkeypatch.setattr(writer, "OFFSET_LIMIT", 256)
    file = write(graph)
    (block,) = reference_tools.dump_by_flatc(file)["regions"][0]["blocks"]
    weight = next(t for t in block["tensors"] if t["shape"] == [3, 2, 2, 2])
    assert (
        file[weight["offset"] : weight["offset"] + weight["size"]]
        == np.arange(24, dtype="<f4").tobytes()
    )
    assert write(read(file)) == file
    monkeypatch.undo()
    assert write(read(file)) == write(read(plain))
    reference_tools.check_strictly(file)
    inputs = random_inputs(graph)
    for ours, theirs in zip(
        evaluate(read(file), inputs),
        reference_tools.run_reference_model(file, inputs),
        strict=True,
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_sizes_that_files_cannot_hold():
    x = Value(Type((1 << 31,), DType.INT8))
    reverse = make_operator(ops.REVERSE, x, axis=0)
    with pytest.raises(
        Unsupported,
        match=r"\[2147483648\]int8 has a size above 2147483647",
    ):
        TosaFile(Graph([x], reverse.outputs, [reverse]), TosaSpec(level="NONE"))


def test_file_bytes_are_equal_in_any_process():
    script = (
        "import hashlib, plugins.tosa_backend.tests.serialize.test_serialize as"
        " t\nprint(hashlib.sha256(t.write(t.merged(s.graph for s in t.samples()),"
        " t.EVERYTHING)).hexdigest())"
    )
    digests = set()
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", script]
        digests.add(
            subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                check=True,
                capture_output=True,
                text=True,
            ).stdout.strip()
        )
    assert digests == {
        hashlib.sha256(
            write(merged(s.graph for s in samples()), EVERYTHING)
        ).hexdigest()
    }


# -- damage ----------------------------------------------------------------------------


def read_or_format_error(data: bytes) -> bool:
    """Read; a FormatError is right, and so is a graph that can be written again.
    Anything else is a failure.
    """
    try:
        graph = read(data)
    except FormatError:
        return True
    write(graph, EVERYTHING)
    return False


def test_every_truncation_is_refused():
    file = write(small_graph())
    last = file.rindex(struct.pack("<2q", 3, 4)) + 16
    assert all(read_or_format_error(file[:size]) for size in range(last))


def test_every_flipped_byte_of_the_structure():
    file = write(small_graph())
    structure = file.index(np.arange(24, dtype="<f4").tobytes())
    refused = 0
    for position in range(structure):
        for flip in (0x01, 0x80, 0xFF):
            data = bytearray(file)
            data[position] ^= flip
            refused += read_or_format_error(bytes(data))
    assert refused > structure  # most flips hit something that matters


def test_random_words_in_the_structure():
    generator = random.Random(5)
    file = write(merged(s.graph for s in samples(F32)), EVERYTHING)
    for _ in range(150):
        data = bytearray(file)
        for _ in range(generator.randint(1, 4)):
            position = generator.randrange(len(data) // 4) * 4
            numbers = [
                0,
                1,
                4,
                0x7FFFFFFF,
                0xFFFFFFFF,
                generator.getrandbits(32),
                generator.randrange(len(data)),
            ]
            struct.pack_into("<I", data, position, generator.choice(numbers))
        read_or_format_error(bytes(data))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no header"),
        (b"PK\3\4 something else", "identifier"),
        (b"\x08\0\0\0TOSA", "offset of root table|lies outside"),
        (b"\xff\xff\xff\xffTOSA\0\0\0\0", "root table leads outside"),
    ],
)
def test_other_files_are_refused(data, words):
    with pytest.raises(FormatError, match=words):
        read(data)


def block_of(dumped: dict[str, Any]) -> dict[str, Any]:
    return dumped["regions"][0]["blocks"][0]


def operator_of(dumped: dict[str, Any], name: str) -> dict[str, Any]:
    return next(o for o in block_of(dumped)["operators"] if o["op"] == name)


def tensor_of(dumped: dict[str, Any], name: str) -> dict[str, Any]:
    return next(t for t in block_of(dumped)["tensors"] if t["name"] == name)


MEANINGLESS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no region": (lambda d: d["regions"].clear(), "no region"),
    "two regions of one name": (lambda d: d["regions"].append(d["regions"][0]), "two regions are named 'main'"),
    "two blocks": (lambda d: d["regions"][0]["blocks"].append(block_of(d)), "2 basic blocks"),
    "operator of 1.1": (lambda d: operator_of(d, "MUL").update(op="DIM", attribute_type="DimAttribute"), "DIM has 3"),
    "unknown operator": (lambda d: operator_of(d, "MUL").update(op=0), "operator number 0"),
    "other attributes": (
        lambda d: operator_of(d, "MUL").update(attribute_type="AddAttribute"), "MUL has the attributes of ADD"
    ),
    "no attributes": (
        lambda d: [operator_of(d, "CLAMP").pop(k) for k in ("attribute", "attribute_type")], "CLAMP has no attributes"
    ),
    "unknown mode": (lambda d: operator_of(d, "CLAMP")["attribute"].update(nan_mode=77), "77 is not a NanMode"),
    "mode left out": (lambda d: operator_of(d, "CLAMP")["attribute"].pop("nan_mode"), "0 is not a NanMode"),
    "short number": (lambda d: operator_of(d, "CLAMP")["attribute"].update(min_val=[1, 2]), "2 bytes are not a number"),
    "short list": (lambda d: operator_of(d, "CONV2D")["attribute"].update(pad=[1]), "pad must have 4 entries"),
    "stride 0": (lambda d: operator_of(d, "CONV2D")["attribute"].update(stride=[0, 1]), "must be positive"),
    "missing operand": (lambda d: operator_of(d, "MUL")["inputs"].pop(), "MUL has 2 operands instead of 3"),
    "undeclared operand": (lambda d: operator_of(d, "MUL").update(inputs=["?", "x", "x"]), "before it is defined"),
    "later operand": (
        lambda d: operator_of(d, "CONV2D")["inputs"].__setitem__(0, "output_1"), "'output_1' is used before"
    ),
    "runtime shape": (lambda d: operator_of(d, "RESHAPE")["inputs"].__setitem__(1, "x"), "not a constant shape"),
    "two results": (lambda d: operator_of(d, "MUL")["outputs"].append("output_0"), "MUL computes"),
    "no result": (lambda d: operator_of(d, "MUL")["outputs"].clear(), "the file declares nothing"),
    "result defined twice": (lambda d: block_of(d)["operators"].append(operator_of(d, "MUL")), "is defined twice"),
    "undeclared result": (lambda d: operator_of(d, "MUL").update(outputs=["?"]), "'\\?' is not declared"),
    "two tensors of one name": (lambda d: block_of(d)["tensors"].append(tensor_of(d, "x")), "'x' occurs twice"),
    "tensor without name": (lambda d: tensor_of(d, "x").pop("name"), "it has no name"),
    "undeclared input": (lambda d: block_of(d)["inputs"].append("?"), "declared"),
    "shape as input": (lambda d: block_of(d)["inputs"].append("shape_0"), "is a shape"),
    "input defined twice": (lambda d: block_of(d)["inputs"].append("x"), "is defined twice"),
    "undefined output": (lambda d: block_of(d)["outputs"].append("?"), "before it is defined"),
    "output twice": (lambda d: block_of(d)["outputs"].append("output_0"), "an output occurs twice"),
    "wrong type": (lambda d: tensor_of(d, "output_1").update(type="FP16"), "CLAMP computes .*fp32, the file declares .*fp16"),
    "unknown type": (lambda d: tensor_of(d, "x").update(type=99), "99 is not a DType"),
    "scales inside": (lambda d: tensor_of(d, "x").update(block_shape="BLOCK_SHAPE_32"), "has block scales of an unknown form"),
    "wrong shape": (lambda d: tensor_of(d, "x").update(shape=[1, 4, 2, 2]), "CONV2D computes"),
    "negative size": (lambda d: tensor_of(d, "x").update(shape=[1, 4, -2, 2]), "needs a shape of positive sizes"),
    "size 0": (lambda d: tensor_of(d, "x").update(shape=[1, 4, 0, 2]), "needs a shape of positive sizes"),
    "dynamic constant": (lambda d: tensor_of(d, "const_0").update(shape=[-1]), "has unknown sizes"),
    "no rank": (lambda d: tensor_of(d, "x").update(is_unranked=True), "needs a shape of positive sizes"),
    "rank 33": (lambda d: tensor_of(d, "x").update(shape=[1] * 33), "rank of at most 32"),
    "long constant": (lambda d: tensor_of(d, "const_0")["data"].extend([0] * 9), "takes 96 bytes, but 105 are stored"),
    "short constant": (lambda d: tensor_of(d, "const_0")["data"].pop(), "takes 96 bytes, but 95"),
    "constant elsewhere": (
        lambda d: tensor_of(d, "const_0").update(data=[], offset=1 << 40, size=96), "beyond the end of the file"
    ),
    "long shape": (lambda d: block_of(d)["shapes"][0].update(rank=1 << 31), "2147483648 entries; at most 64"),
    "wrong shape operand": (lambda d: block_of(d)["shapes"][0]["data"].__setitem__(0, 13), "the 52 elements"),
}  # fmt: skip


@pytest.mark.parametrize("case", MEANINGLESS)
def test_well_formed_files_without_meaning(case):
    change, words = MEANINGLESS[case]
    dumped = reference_tools.dump_by_flatc(write(small_graph()))
    change(dumped)
    with pytest.raises(FormatError, match=words):
        read(reference_tools.assemble_by_flatc(dumped))


def test_files_of_flatc_are_read():
    file = reference_tools.assemble_by_flatc(
        reference_tools.dump_by_flatc(write(small_graph()))
    )
    assert render(read(file)) == render(read(write(small_graph())))


def test_a_region_cannot_contain_itself():
    inner = value(1, dtype=DType.BOOL)
    condition = value(1, dtype=DType.BOOL)
    kept = Graph([inner], [inner], [], name="kept")
    chosen = make_operator(
        ops.COND_IF, condition, condition, then_graph=kept, else_graph=kept
    )
    dumped = reference_tools.dump_by_flatc(
        write(Graph([condition], chosen.outputs, [chosen]))
    )
    operator_of(dumped, "COND_IF")["attribute"]["else_graph"] = "main"
    with pytest.raises(FormatError, match="contains itself"):
        read(reference_tools.assemble_by_flatc(dumped))
    operator_of(dumped, "COND_IF")["attribute"]["else_graph"] = "nowhere"
    with pytest.raises(FormatError, match="no region 'nowhere'"):
        read(reference_tools.assemble_by_flatc(dumped))


def test_deep_nesting_is_refused():
    inner = value(1, dtype=DType.BOOL)
    graph = Graph([inner], [inner], [], name="innermost")
    for level in range(70):
        x = value(1, dtype=DType.BOOL)
        chosen = make_operator(ops.COND_IF, x, x, then_graph=graph, else_graph=graph)
        graph = Graph([x], chosen.outputs, [chosen], name=f"body_{level}")
    with pytest.raises(FormatError, match="nested deeper than 64"):
        read(write(graph))


def test_shared_structure_does_not_explode():
    """A vector of a million references to one table would take a small file to
    gigabytes.
    """
    file = bytearray(write(small_graph()))
    operators = reference_tools.dump_by_flatc(bytes(file))["regions"][0]["blocks"][0][
        "operators"
    ]
    position = file.index(struct.pack("<I", len(operators)))
    grown = file + bytes(4 * 1_000_000)
    struct.pack_into("<I", grown, position, 1_000_000)
    with pytest.raises(FormatError):
        read(grown)


@pytest.mark.parametrize(("major", "minor"), [(0, 70), (1, 2), (2, 0), (-1, -1)])
def test_unsupported_versions_are_refused(major, minor):
    dumped = reference_tools.dump_by_flatc(write(small_graph()))
    dumped["version"].update(_major=major, _minor=minor)
    with pytest.raises(
        FormatError, match=f"version {major}.{minor}; supported are 0.80, 1.0 and 1.1"
    ):
        read(reference_tools.assemble_by_flatc(dumped))


def test_files_of_1_1_without_new_features_are_read():
    dumped = reference_tools.dump_by_flatc(write(small_graph()))
    dumped["version"].update(_minor=1, _draft=True)
    assert render(read(reference_tools.assemble_by_flatc(dumped))) == render(
        read(write(small_graph()))
    )
