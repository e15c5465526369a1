"""The text form: golden texts (in golden/), exact round trips, errors with their line."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from delegraph.errors import FormatError
from delegraph_programs import Source
from delegraph_tosa.ir import operators as ops
from delegraph_tosa.ir.graph import Deferred, Folded, Graph, Literal, Value, literal
from delegraph_tosa.ir.types import ARRAY_DTYPES, DType, RoundingMode, Type
from delegraph_tosa.serialize import TosaFile
from delegraph_tosa.spec import DEFAULT
from delegraph_tosa.text import parse, render

from ..support.samples import make_operator, samples

F32 = DType.FP32


def value(*shape: int, dtype: DType = F32, name: str = "") -> Value:
    return Value(Type(shape, dtype), name=name)


def network_graph() -> Graph:
    x = value(1, 4, 4, 2, name="x")
    zero = literal([0], F32, np.float32)
    weight = Value(
        Type((3, 2, 2, 2), F32),
        Deferred(lambda: np.full((3, 2, 2, 2), 0.5, np.float32)),
    )
    attributes = {
        "pad": (0, 0, 0, 0),
        "stride": (2, 2),
        "dilation": (1, 1),
        "acc_type": F32,
    }
    conv = make_operator(ops.CONV2D, x, weight, zero, zero, zero, **attributes)
    conv.source = Source("model.py", 7, "forward", "x = self.conv(x)")
    clamp = make_operator(ops.CLAMP, conv.outputs[0], min_val=0, max_val=math.inf)
    mul = make_operator(
        ops.MUL, clamp.outputs[0], clamp.outputs[0], literal([0], DType.INT8, np.int8)
    )
    reshape = make_operator(
        ops.RESHAPE, mul.outputs[0], literal([3, 4], DType.SHAPE, np.int64)
    )
    clamp.outputs[0].name = "clamped"
    reshape.outputs[0].name = "an output"
    return Graph(
        [x], [reshape.outputs[0], clamp.outputs[0]], [conv, clamp, mul, reshape]
    )


def test_printed_network_equals_the_golden_text(golden):
    text = render(network_graph())
    golden("network", text)
    assert render(parse(text)) == text


def test_parsing_text_restores_the_graph():
    graph = parse(render(network_graph()))
    conv, clamp, mul, reshape = graph.operators
    assert [v.name for v in graph.inputs + graph.outputs] == [
        "x",
        "an output",
        "clamped",
    ]
    assert graph.outputs == [reshape.outputs[0], clamp.outputs[0]]
    assert (conv.pad, conv.acc_type, conv.local_bound) == ((0, 0, 0, 0), F32, False)
    assert conv.bias is conv.input_zp
    assert conv.outputs[0].producer == conv
    assert conv.outputs[0].name == ""
    assert clamp.min_val == 0
    assert clamp.max_val == math.inf
    assert mul.inputs[0] is mul.inputs[1]
    assert str(conv.source) == "model.py:7, in forward: x = self.conv(x)"
    assert TosaFile(graph, DEFAULT).join() == TosaFile(network_graph(), DEFAULT).join()


def test_elided_constants_are_not_computed():
    def load():
        raise AssertionError("a large constant was loaded")

    x = value(5, 5)
    add = make_operator(ops.ADD, x, Value(Type((5, 5), F32), Deferred(load)))
    text = render(Graph([x], add.outputs, [add]), elide=16)
    assert "%1: [5x5]fp32 = const ...\n" in text
    with pytest.raises(
        FormatError, match="line 2: the elements of this constant were left out"
    ):
        parse(text)


def test_folded_constants_are_shown_as_constants():
    row = literal([[1.0, 2.0]], F32, np.float32)
    column = make_operator(ops.TRANSPOSE, row, perms=(1, 0))
    add = make_operator(
        ops.ADD, x := value(2, 1), Value(column.outputs[0].type, Folded(column))
    )
    assert "%1: [2x1]fp32 = const [1.0, 2.0]\n" in render(
        Graph([x], add.outputs, [add])
    )


@pytest.mark.parametrize("sample", list(samples()), ids=lambda s: s.label)
def test_every_operator_round_trips(sample):
    text = render(sample.graph)
    assert render(parse(text)) == text
    assert (
        TosaFile(parse(text), DEFAULT).join() == TosaFile(sample.graph, DEFAULT).join()
    )


def constant_text(array: np.ndarray, dtype: DType) -> str:
    kept = make_operator(ops.IDENTITY, Value(Type(array.shape, dtype), Literal(array)))
    text = render(Graph([], kept.outputs, [kept]))
    back = parse(text).operators[0].input1.constant.array
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()
    return text.splitlines()[1].partition("const ")[2]


@pytest.mark.parametrize(
    ("dtype", "elements", "text"),
    [
        (
            F32,
            [0.1, -0.0, math.inf, -math.inf, 1e-45, 3.4028235e38],
            "[0.1, -0.0, inf, -inf, 1e-45, 3.4028235e+38]",
        ),
        (F32, [math.nan, 1], "[nan, 1.0]"),
        (F32, [16777217, 1 / 3], "[16777216.0, 0.33333334]"),
        (F32, [2.0, 2.0, 2.0], "splat 2.0"),
        (F32, [0.0, -0.0], "[0.0, -0.0]"),
        (F32, [], "[]"),
        (DType.FP16, [0.1, 65504, -0.0], "[0.1, 65500.0, -0.0]"),
        (
            DType.BF16,
            [0x3F80, 0x8000, 0x7F80, 0x0001],
            "[1.0, -0.0, inf, 9.183549615799121e-41]",
        ),
        (DType.FP8E4M3, [0x38, 0xFF], "[56, 255]"),
        (DType.BOOL, [True, False], "[true, false]"),
        (DType.INT4, [-8, 7], "[-8, 7]"),
        (
            DType.INT48,
            [-(1 << 47), (1 << 47) - 1],
            "[-140737488355328, 140737488355327]",
        ),
        (DType.SHAPE, [], "[]"),
    ],
)
def test_small_constants_are_numbers(dtype, elements, text):
    assert constant_text(np.array(elements, ARRAY_DTYPES[dtype]), dtype) == text


def test_scalars_are_printed_in_brackets():
    assert constant_text(np.array(2.5, np.float32), F32) == "[2.5]"


def test_a_nan_with_a_payload_is_given_by_its_bits():
    payload = np.frombuffer(struct.pack("<2I", 0x7FC00001, 0x3F800000), np.float32)
    assert constant_text(payload, F32).startswith('base64 "')
    assert constant_text(np.array([0x7FC1, 0], np.uint16), DType.BF16).startswith(
        'base64 "'
    )


def test_large_constants_are_base64():
    assert constant_text(np.arange(17, dtype=np.float32), F32).startswith(
        'base64 "AAAAAAAAgD8'
    )
    assert constant_text(np.arange(16, dtype=np.int32), DType.INT32).startswith(
        "[0, 1, 2"
    )


def test_control_flow_and_custom_operators(golden):
    inner = value(2)
    x = value(2, name="x")
    condition = value(1, dtype=DType.BOOL, name="c")
    absolute = make_operator(ops.ABS, inner)
    body = Graph([inner], absolute.outputs, [absolute], name="negative case")
    kept = Graph([other := value(2)], [other], [])
    chosen = make_operator(ops.COND_IF, condition, x, then_graph=body, else_graph=kept)
    attributes = {
        "operator_name": 'a "b"\n',
        "domain_name": "",
        "implementation_attrs": b"\0\xff",
    }
    custom = make_operator(
        ops.CUSTOM,
        *chosen.outputs,
        **attributes,
        types=(Type((3,), F32), Type((), DType.INT8)),
    )
    text = render(Graph([condition, x], custom.outputs, [chosen, custom]))
    golden("control_flow_and_custom", text)
    back = parse(text)
    assert render(back) == text
    assert back.operators[0].then_graph.operators[0].name == "ABS"
    assert back.operators[1].operator_name == 'a "b"\n'
    assert back.operators[1].implementation_attrs == b"\0\xff"


def test_a_graph_is_printed_before_those_it_refers_to():
    def graph(*bodies: Graph, name: str) -> Graph:
        x = value(1, dtype=DType.BOOL)
        chosen = [
            make_operator(ops.COND_IF, x, x, then_graph=body, else_graph=body)
            for body in bodies
        ]
        return Graph([x], [c.outputs[0] for c in chosen[:1]] or [x], chosen, name=name)

    shared = graph(name="shared")
    text = render(graph(shared, graph(shared, name="user"), name="main"))
    assert [
        line.split("(")[0] for line in text.splitlines() if line.startswith("graph")
    ] == [
        "graph @main",
        "graph @user",
        "graph @shared",
    ]
    assert render(parse(text)) == text


def test_result_types_are_shown_without_attributes():
    cast = make_operator(ops.CAST, x := value(2, name="x"), dtype=DType.INT8)
    text = render(Graph([x], cast.outputs, [cast]))
    assert "%0: [2]int8 = CAST(%x)\n" in text
    assert parse(text).operators[0].dtype is DType.INT8
    rescale = next(
        s for s in samples(DType.INT8) if s.label.startswith("RESCALE")
    ).graph
    assert (
        parse(render(rescale)).operators[0].rounding_mode is RoundingMode.SINGLE_ROUND
    )


def test_numeric_and_duplicate_names_are_renamed():
    a = value(2, name="0")
    b = value(2, name="same")
    c = value(2, name="same")
    add = make_operator(ops.ADD, a, b)
    sub = make_operator(ops.SUB, add.outputs[0], c)
    text = render(Graph([a, b, c], sub.outputs, [add, sub]))
    assert text.startswith('graph @main(%"0": [2]fp32, %0: [2]fp32, %1: [2]fp32) {')
    assert [value.name for value in parse(text).inputs] == ["0", "", ""]


def test_comments_and_layout_are_free():
    text = (
        "graph @main(%x: [2]fp32) { // head\n\n // a remark\n%y: [2]fp32=ABS( %x )  //"
        " there\n return %y }"
    )
    assert str(parse(text).operators[0].source) == "there"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("%y: [2]fp32 = ABS(%z)", "line 2: %z is used before it is defined"),
        ("%y: [3]fp32 = ABS(%x)", r"line 2: ABS gives \[2\]fp32"),
        ("%y: [2]fp32 = ABSOLUTE(%x)", "'ABSOLUTE' is no operator"),
        ("%y: [2]fp32 = ABS(%x, %x)", "ABS has 2 operands, needs 1"),
        ("%y: [2]fp32 = ABS(%x) {axis=1}", "ABS has no attribute 'axis'"),
        ("%y: [1]fp32 = REDUCE_SUM(%x)", "REDUCE_SUM has no axis"),
        ("%y: [1]fp32 = REDUCE_SUM(%x) {axis=0.5}", "0.5 is no integer"),
        ("%y: [1]fp32 = REDUCE_SUM(%x) {axis=2}", "axis 2 is outside rank 1"),
        (
            "%y: [2]fp32 = CLAMP(%x) {min_val=0.0, max_val=x}",
            "line 2: expected number, found 'x'",
        ),
        (
            "%y: [2]fp32 = CLAMP(%x) {min_val=0.0, max_val=1.0, nan_mode=NEVER}",
            "'NEVER' is no NanMode",
        ),
        ("%y: [2]float = ABS(%x)", "'float' is no element type"),
        ("%y: [2]fp32 = const [1.0]", r"\[2\]fp32 has 2 elements, 1 are given"),
        ("%y: [1]int8 = const [300]", "no int8"),
        ("%y: [1]int8 = const [0.5]", "no int8"),
        ('%y: [1]fp32 = const base64 "AAAA"', "takes 4 bytes, 3 are given"),
        ('%y: [1]fp32 = const base64 "%%"', "not base64"),
        ('%y: [1]fp32 = const base64 "\\q"', "no JSON string"),
        ("%x: [2]fp32 = ABS(%x)", "%x is defined twice"),
        ("%y [2]fp32 = ABS(%x)", "expected :, found"),
        ("?", "cannot read"),
        ("graph @other() { return }", "line 2: there is text after|line 2: expected"),
    ],
)
def test_errors_name_the_line(line, words):
    with pytest.raises(FormatError, match=words):
        parse(f"graph @main(%x: [2]fp32) {{\n  {line}\n  return %y\n}}\n")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "return",
        "graph",
        "graph @main(",
        "graph @main() {",
        "graph @a() { return } x",
    ],
)
def test_fragments_are_refused(text):
    with pytest.raises(FormatError, match="TOSA text, line"):
        parse(text)
