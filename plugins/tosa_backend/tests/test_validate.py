"""The validator reports all violations of a graph with place, reason and source line."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from delegraph_tosa.ir import operators as ops
from delegraph_tosa.ir.graph import Graph, Operator, Value, literal
from delegraph_tosa.ir.types import DType, NanMode, Type
from delegraph_tosa.serialize import TosaFile
from delegraph_tosa.spec import DEFAULT, TosaSpec, required
from delegraph_tosa.text import parse, render
from delegraph_tosa.validate import InvalidGraph, validate, violations

from .support import reference_tools
from .support.samples import make_operator, merged, samples

F32 = DType.FP32
FP = TosaSpec.parse("TOSA-1.0+FP")


def value(*shape: int, dtype: DType = F32, name: str = "") -> Value:
    return Value(Type(shape, dtype), name=name)


def zero(dtype: DType = F32) -> Value:
    return literal([0], dtype, {F32: np.float32, DType.INT8: np.int8}[dtype])


def problems_of(graph: Graph, spec: TosaSpec = FP) -> list[str]:
    """Without rule and section, which test_every_violation_names_its_rule_and_section
    is about.
    """
    return [
        str(v).replace(f" [{v.rule}: {v.section}]", "") for v in violations(graph, spec)
    ]


def test_every_violation_names_its_rule_and_section():
    deep = value(*[1] * 7)
    runtime = value(1)
    exp = make_operator(ops.EXP, wide := value(2, dtype=DType.BF16))
    exp.source = "model.py:9, in exp"
    add = make_operator(ops.ADD, wide, wide)
    add.inputs = (wide,)
    abs_ = make_operator(ops.ABS, deep)
    negate = make_operator(ops.NEGATE, value(2), runtime, zero())
    reduce = ops.REDUCE_SUM((wide,), axis=2)
    reduce.outputs = (value(1),)
    graph = Graph([wide, deep, runtime], [], [exp, add, abs_, negate, reduce])
    broken = [(v.rule, v.section) for v in violations(graph, FP)]
    assert ("profile", "EXP, Supported Data Types") in broken
    assert ("operand-count", "ADD, Arguments") in broken
    assert ("level-rank", "Levels") in broken
    assert ("constant-operand", "NEGATE, Compile Time Constant Status") in broken
    assert ("operand-defined", "Operator Graphs") in broken
    assert ("axis", "REDUCE_SUM, Operation Function") in broken
    first = next(str(v) for v in violations(graph, FP) if v.operator is exp)
    assert (
        "target is TOSA-1.0+FP [profile: EXP, Supported Data Types]\n    at model.py:9"
        in first
    )


def test_all_rules_that_one_operator_breaks_are_found():
    x = value(1, 8, 8, 3)
    weight = value(4, 3, 3, 2)
    bias = value(5)
    zeros = [literal(numbers, F32, np.float32) for numbers in ([1], [0, 0])]
    attributes = {
        "pad": (-1, 0, 0, 0),
        "stride": (2, 1),
        "dilation": (1, 1),
        "acc_type": F32,
    }
    conv = ops.CONV2D((x, weight, bias, *zeros), **attributes)
    conv.outputs = (value(1, 3, 6, 4),)
    graph = Graph([x, weight, bias], conv.outputs, [conv])
    assert [v.rule for v in violations(graph, FP)] == [
        "channels",
        "pad",
        "bias",
        "zero-point",
        "single-element",
    ]


@pytest.mark.parametrize("sample", list(samples()), ids=lambda s: s.label)
def test_legal_graphs_have_no_violation(sample):
    needed = required(sample.graph)
    assert (
        problems_of(
            sample.graph,
            TosaSpec(profiles=needed.profiles, extensions=needed.extensions),
        )
        == []
    )


def test_all_violations_are_found_at_once():
    x = value(2, 3, name="x")
    y = value(2, 3, dtype=DType.INT32, name="x")
    add = make_operator(ops.ADD, x, x)
    add.outputs[0].type = Type((2, 2), F32)
    sub = make_operator(ops.SUB, y, y)
    less = make_operator(ops.GREATER, sub.outputs[0], y)
    lost = value(2, 3)
    exp = make_operator(ops.EXP, lost)
    exp.source = "model.py:9, in exp"
    assert problems_of(Graph([x, y], [exp.outputs[0], lost], [add, sub, less, exp])) == [
        "operator 0 (ADD): it computes [2x3]fp32, but its results are declared as [2x2]fp32",
        "operator 2 (GREATER): TOSA GREATER from int32 to bool needs PRO-INT; the target is TOSA-1.0+FP",
        "operator 3 (EXP): operand 0 (%?: [2x3]fp32) is not defined before it is used\n    at model.py:9, in exp",
        "output 1: %?: [2x3]fp32 is not defined",
        "name 'x': 2 inputs or outputs have this name",
    ]  # fmt: skip


def reduce_sum(x: Value, axis: int) -> Operator:
    return declared_operator(ops.REDUCE_SUM, (x,), (2, 1), axis=axis)


def reshape(x: Value, *shape: int) -> Operator:
    return declared_operator(
        ops.RESHAPE, (x, literal(shape, DType.SHAPE, np.int64)), (3, 2)
    )


def negate(x: Value, zero_point: Value) -> Operator:
    return declared_operator(ops.NEGATE, (x, zero(), zero_point), (2, 3))


def clamp(x: Value, nan_mode: int) -> Operator:
    return declared_operator(
        ops.CLAMP, (x,), (2, 3), min_val=0.0, max_val=1.0, nan_mode=nan_mode
    )


def declared_operator(
    cls: type[Operator],
    inputs: tuple[Value, ...],
    shape: tuple[int, ...],
    **attributes: object,
) -> Operator:
    """An operator whose result is declared as it may not be."""
    operator = cls(inputs, **attributes)
    operator.outputs = (value(*shape),)
    return operator


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda x: (reduce_sum(x, 1), reduce_sum(x, 2)), "axis"),
        (lambda x: (reshape(x, 3, 2), reshape(x, 3, 3)), "element-count"),
        (
            lambda x: (
                declared_operator(ops.EXP, (x,), (2, 3)),
                declared_operator(ops.EXP, (x,), (3, 2)),
            ),
            "result-type",
        ),
        (
            lambda x: (
                declared_operator(ops.EXP, (x,), (2, 3)),
                declared_operator(ops.EXP, (value(2, 3),), (2, 3)),
            ),
            "operand-defined",
        ),
        (
            lambda x: (negate(x, zero()), negate(x, literal([1], F32, np.float32))),
            "zero-point",
        ),
        (lambda x: (clamp(x, NanMode.PROPAGATE), clamp(x, 1)), "attribute-type"),
    ],
)
def test_operators_with_one_violation_are_found(make, rule):
    x = value(2, 3)
    legal, broken = make(x)
    operators = [legal, *make(x)[:1], broken]
    assert [
        (v.operator, v.rule) for v in violations(Graph([x], [], operators), FP)
    ] == [(broken, rule)]


def test_equal_violations_are_all_reported():
    x = value(2, 3)
    operators = [reduce_sum(x, 2), reduce_sum(x, 2)]
    assert [
        (v.operator, v.rule) for v in violations(Graph([x], [], operators), FP)
    ] == [(o, "axis") for o in operators]


def test_validate_raises_with_all_violations():
    x = value(2, dtype=DType.BF16)
    graph = Graph([x], (exp := make_operator(ops.EXP, x)).outputs, [exp])
    with pytest.raises(
        InvalidGraph,
        match=(
            "3 violations of TOSA-1.0\\+FP:\n  input 0: a tensor of bf16 needs EXT-BF16"
        ),
    ) as caught:
        validate(graph, FP)
    assert len(caught.value.violations) == 3
    assert caught.value.code == "tosa/invalid-graph"
    validate(graph, TosaSpec.parse("TOSA-1.0+FP+bf16"))


def test_operands_before_uses():
    x = value(2)
    a = make_operator(ops.ABS, x)
    b = make_operator(ops.EXP, *a.outputs)
    assert problems_of(Graph([x], b.outputs, [a, b])) == []
    assert problems_of(Graph([x], b.outputs, [b, a])) == [
        "operator 0 (EXP): operand 0 (%?: [2]fp32) is not defined before it is used"
    ]
    assert (
        "result 0 (%?: [2]fp32) is defined already"
        in problems_of(Graph([x], a.outputs, [a, a]))[0]
    )


def test_wrong_inputs_of_graphs_are_violations():
    x = value(2)
    constant = literal([1.0], F32, np.float32)
    shape = value(2, dtype=DType.SHAPE)
    assert problems_of(Graph([x, x, constant, shape], [x], [])) == [
        "input 1: the value is an input already",
        "input 2: an input cannot be a constant or the result of an operator",
        "input 3: a shape cannot cross the boundary of a graph",
    ]


def test_constants_of_types_that_files_cannot_hold():
    wide = literal([1], DType.INT64, np.int64)
    x = value(1, dtype=DType.INT64)
    assert "constant 0: a constant of int64 is not in TOSA 1.0" in problems_of(
        Graph([x], (add := make_operator(ops.ADD, x, wide)).outputs, [add])
    )


def test_operands_that_must_be_constant():
    x = value(2)
    runtime = value(1)
    negate = make_operator(ops.NEGATE, x, runtime, zero())
    assert problems_of(Graph([x, runtime], negate.outputs, [negate])) == [
        "operator 0 (NEGATE): TOSA NEGATE: input1_zp must be a compile-time constant"
    ]
    reshape = ops.RESHAPE((x, shape := value(1, dtype=DType.SHAPE)))
    reshape.outputs = (value(2),)
    assert any(
        "not a constant shape" in text
        for text in problems_of(Graph([x, shape], reshape.outputs, [reshape]))
    )


@pytest.mark.parametrize(
    ("operator", "words"),
    [
        (ops.REDUCE_SUM((value(2, 3),)), "attribute axis is None, not of type int"),
        (ops.REDUCE_SUM((value(2, 3),), axis=1 << 31), "not of type int"),
        (
            ops.REDUCE_SUM((value(2, 3),), axis=DType.INT64),
            "axis int64 is outside rank 2",
        ),  # an int, and no range counts to it
        (ops.REDUCE_SUM((value(2, 3),), axis=2), "axis 2 is outside rank 2"),
        (
            ops.TRANSPOSE((value(2, 3),), perms=[1, 0]),
            "attribute perms is .* not of type Ints",
        ),
        (ops.TRANSPOSE((value(2, 3),), perms=(1.0, 0)), "not of type Ints"),
        (ops.CLAMP((value(2, 3),), min_val="0", max_val=1), "attribute min_val is '0'"),
        (
            ops.CLAMP((value(2, 3),), min_val=0, max_val=1, nan_mode="PROPAGATE"),
            "not of type NanMode",
        ),
        (ops.CLAMP((value(2, 3),), min_val=0, max_val=math.nan), "not in order"),
        (ops.ADD((value(2, 3),)), r"it has 1 operands instead of 2 \(input1, input2\)"),
        (ops.CONCAT((), axis=0), "at least one tensor"),
    ],
)
def test_malformed_operators_are_violations(operator, words):
    operator.outputs = (value(2, 3),)
    text = problems_of(Graph(operator.inputs, operator.outputs, [operator]))[0]
    assert re.search(words, text)


@pytest.mark.parametrize("version", [(1, 0), (1, 1)])
def test_operators_without_results_are_violations(version):
    for sample in samples(version=version):
        operator = parse(render(sample.graph)).operators[0]
        if operator.name == "ASSERT_EQUAL_SHAPE":  # the only one that has no results
            continue
        operator.outputs = ()
        graph = Graph(
            [value for value in operator.inputs if value.constant is None],
            [],
            [operator],
        )
        rules = {v.rule for v in violations(graph, TosaSpec(version))}
        assert rules & {"result-type", "result-count"}, sample.label


def test_unknown_operators_are_violations():
    class SOFTMAX(Operator):
        input: Value

    unknown = SOFTMAX((x := value(2),))
    unknown.outputs = (value(2),)
    assert problems_of(Graph([x], unknown.outputs, [unknown])) == [
        "operator 0 (SOFTMAX): it is not a TOSA operator"
    ]


def test_graphs_of_control_flow_are_checked():
    inner = value(2, dtype=DType.BF16)
    body = Graph(
        [inner], (exp := make_operator(ops.EXP, inner)).outputs, [exp], name="then"
    )
    condition = value(1, dtype=DType.BOOL)
    x = value(2, dtype=DType.BF16)
    chosen = make_operator(ops.COND_IF, condition, x, then_graph=body, else_graph=body)
    texts = problems_of(
        Graph([condition, x], chosen.outputs, [chosen]),
        TosaSpec.parse("TOSA-1.0+FP+cf"),
    )
    where = "graph then, operator 0 (EXP)"
    assert (
        f"{where}: TOSA EXP on bf16 needs EXT-BF16; the target is"
        " TOSA-1.0+FP+controlflow" in texts
    )


def nested_graph(depth: int) -> Graph:
    inner = value(1, dtype=DType.BOOL)
    graph = Graph([inner], [inner], [], name=f"body{depth}")
    for level in range(depth):
        x = value(1, dtype=DType.BOOL)
        chosen = make_operator(ops.COND_IF, x, x, then_graph=graph, else_graph=graph)
        graph = Graph([x], chosen.outputs, [chosen], name=f"body{depth - 1 - level}")
    return graph


def test_control_flow_nested_too_deep_is_a_violation():
    spec = TosaSpec.parse("TOSA-1.0+FP+cf")
    assert problems_of(nested_graph(5), spec) == []
    assert problems_of(nested_graph(6), spec) == [
        "graph: control flow is nested 6 deep, the program counts as well and"
        " MAX_NESTING is 6"
    ]


def test_graph_that_contains_itself_is_a_violation():
    flag = value(1, dtype=DType.BOOL)
    chosen = ops.COND_IF((flag, flag))
    chosen.outputs = (value(1, dtype=DType.BOOL),)
    graph = Graph([flag], chosen.outputs, [chosen], name="endless")
    chosen.then_graph = chosen.else_graph = graph
    assert (
        "nested without end"
        in problems_of(graph, TosaSpec.parse("TOSA-1.0+FP+cf+nolevel"))[-1]
    )


def test_every_limit_that_an_operator_exceeds():
    x = value(1, 20000, 20000, 1)
    pool = make_operator(
        ops.MAX_POOL2D,
        x,
        kernel=(10000, 10000),
        stride=(10000, 10000),
        pad=(0, 0, 0, 0),
    )
    texts = problems_of(Graph([x], pool.outputs, [pool]))
    for name, text in zip(
        ("kernel_y", "kernel_x", "stride_y", "stride_x"), texts, strict=True
    ):
        assert name in text


def test_official_validator_agrees_on_a_whole_graph():
    graph = merged(
        s.graph
        for s in samples()
        if s.allowed_by[0] == {"PRO-FP"} or s.allowed_by[0] == {"PRO-INT"}
    )
    assert problems_of(graph, DEFAULT) == []
    reference_tools.check_strictly_for_spec(TosaFile(graph, DEFAULT).join(), DEFAULT)
    assert problems_of(graph, FP) != []
    with pytest.raises(reference_tools.Refused):
        reference_tools.check_strictly_for_spec(TosaFile(graph, FP).join(), FP)
