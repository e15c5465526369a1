"""``evaluate`` computes every float operator as accurately as the specification
requires, and the accuracy check detects inaccurate kernels.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from delegraph_tosa.evaluate import all_kernels, evaluate, why_not
from delegraph_tosa.evaluate.kernels import stored_numbers
from delegraph_tosa.ir import operators as ops
from delegraph_tosa.ir.graph import Graph, Literal, Value
from delegraph_tosa.ir.operators import OPERATORS
from delegraph_tosa.ir.types import ARRAY_DTYPES, DType, Type
from delegraph_tosa.spec import TosaSpec

from ..support.accuracy import (
    TERMS,
    accumulator,
    biased,
    factors,
    is_compliant,
    is_float,
    reference_results,
    rule,
)
from ..support.samples import RECIPES, make_operator, samples

SPEC = TosaSpec((1, 0))
ELEMENTWISE = {"CLAMP", "NEGATE", "MUL"}
UNBOUNDED = {"POW", "RESIZE"}
"""The accuracy bounds of these operators are undefined for some bit patterns, such as
negative bases or infinities.
"""
LARGER = {(2, 3): (40, 50), (1, 3): (1, 50)}
"""Shape of a sample's operand -> larger shape to test with."""
Case = tuple[Graph, list[np.ndarray]]


def enlarge_graph(graph: Graph, kind, random: np.random.Generator) -> Graph:
    """Return the graph of an elementwise operator with 40 x 50 instead of 2 x 3 elements."""
    (operator,) = graph.operators
    if operator.name in RECIPES.keys() - ELEMENTWISE:
        return graph
    operands = [
        Value(Type(LARGER[value.shape], value.dtype))
        if value.constant is None
        else value
        for value in operator.inputs
    ]
    larger = make_operator(type(operator), *operands, **operator.attribute_values())
    return Graph([v for v in operands if v.constant is None], larger.outputs, [larger])


def as_stored(numbers: np.ndarray, dtype: DType) -> np.ndarray:
    """Round the numbers to the element type and return them as stored in memory."""
    with np.errstate(over="ignore"):
        return stored_numbers(np.asarray(numbers, np.float32), dtype)


def random_numbers(type: Type, random: np.random.Generator) -> np.ndarray:
    """Numbers of both signs about zero."""
    return as_stored(random.standard_normal(type.shape) * 3, type.dtype)


def random_bits(type: Type, random: np.random.Generator) -> np.ndarray:
    """Any bit patterns: all magnitudes, also subnormal ones, infinities and NaN."""
    array = ARRAY_DTYPES[type.dtype]
    return np.frombuffer(
        random.bytes(math.prod(type.shape) * array.itemsize), array
    ).reshape(type.shape)


def positive(type: Type, random: np.random.Generator) -> np.ndarray:
    """Numbers above zero, most of them between 0.01 and 100."""
    return as_stored(np.exp(random.standard_normal(type.shape) * 2), type.dtype)


def about_one(type: Type, random: np.random.Generator) -> np.ndarray:
    """Numbers of one sign, so that sums grow and every addition rounds."""
    return as_stored(random.uniform(0.5, 1.5, type.shape), type.dtype)


def cases_of_table(kind, change=enlarge_graph) -> dict[str, Case]:
    """Return a case for each sample with a float operand or result.

    ``kind`` makes the float operands; indices and conditions are random zeros and ones.
    """
    random = np.random.default_rng(5)
    found = {}
    for sample in samples():
        (operator,) = sample.graph.operators
        values = (*sample.graph.inputs, *sample.graph.outputs)
        if any(is_float(v.dtype) for v in values) and not why_not(operator):
            graph = change(sample.graph, kind, random)
            if graph and not (kind is random_bits and operator.name in UNBOUNDED):
                found[f"{sample.label} {kind.__name__}"] = (
                    graph,
                    [_operand(value, kind, random) for value in graph.inputs],
                )
    return found


def _operand(value: Value, kind, random: np.random.Generator) -> np.ndarray:
    if is_float(value.dtype):
        return kind(value.type, random)
    if value.shape == LARGER[2, 3] and value.dtype is not DType.BOOL:  # of CAST
        return random_bits(value.type, random)
    return random.integers(0, 2, value.shape).astype(ARRAY_DTYPES[value.dtype])


# Operator -> operand shapes that give sums of hundreds of terms.
DEEP = {
    "MATMUL": ((2, 8, 300), (2, 300, 8)),
    "CONV2D": ((1, 7, 5, 64), (8, 3, 3, 64), (8,)),
    "CONV3D": ((1, 3, 5, 4, 64), (8, 1, 3, 3, 64), (8,)),
    "DEPTHWISE_CONV2D": ((1, 21, 20, 4), (13, 13, 4, 2), (8,)),
    "TRANSPOSE_CONV2D": ((1, 4, 5, 64), (5, 3, 2, 64), (5,)),
    "REDUCE_SUM": ((8, 512, 4),),
    "AVG_POOL2D": ((1, 13, 12, 8),),
}


def deepened(graph: Graph, kind, random: np.random.Generator) -> Graph | None:
    """Return the graph of a summing operator with hundreds of terms in each sum."""
    (operator,) = graph.operators
    if operator.name not in DEEP:
        return None
    operands = list(operator.inputs)
    attributes = operator.attribute_values()
    for i, shape in enumerate(DEEP[operator.name]):
        type = Type(shape, operands[i].dtype)
        operands[i] = Value(type, operands[i].constant and Literal(kind(type, random)))
    changes = {
        "local_bound": True,
        "kernel": (9, 8),
        "pad": (0,) * len(attributes.get("pad", ())),
    }
    attributes |= {name: value for name, value in changes.items() if name in attributes}
    deep = make_operator(OPERATORS[operator.name], *operands, **attributes)
    return Graph([v for v in operands if v.constant is None], deep.outputs, [deep])


ORDINARY = (
    cases_of_table(random_numbers)
    | cases_of_table(random_bits)
    | cases_of_table(positive)
)
SUMS = cases_of_table(about_one, deepened) | cases_of_table(random_numbers, deepened)
CASES = ORDINARY | {f"deep {label}": case for label, case in SUMS.items()}


@pytest.fixture(scope="module")
def reference_by_case():
    return dict(
        zip(
            CASES,
            reference_results(*zip(*CASES.values(), strict=True), SPEC),
            strict=True,
        )
    )


VERIFIER_MODES = {
    "ulp": ("ULP", ""),
    "abs_error_mode": ("ABS_ERROR", "abs_error_"),
    "precomputed_mode": ("PRECOMPUTED", ""),
    "relative_scale": ("MAX_RELATIVE", "relative_"),
}
"""Key of a rule in the generator of the conformance tests -> the verifier's name of the
mode, and the prefix that the generator puts before the rule's numbers.
"""


def official_rule(rule: dict[str, Any], dtype: DType) -> dict[str, Any]:
    """Translate a rule of the generator for one element type into the verifier's form."""
    mode, prefix = next(VERIFIER_MODES[key] for key in VERIFIER_MODES if key in rule)
    numbers = {}
    for key, number in rule.items():
        if key.endswith("_mode"):
            continue
        name = key.removeprefix(prefix).replace("bounds", "bound")
        if isinstance(number, dict):
            number = next(n for t, n in number.items() if t.name == dtype.name)
        numbers[name] = number
    if not numbers:
        return {"mode": mode}
    return {"mode": mode, f"{mode.lower()}_info": numbers}


def test_accuracy_rules_equal_those_of_the_conformance_tests():
    generator = pytest.importorskip(
        "generator.tosa_test_gen", reason="tosa-tools is not installed"
    )
    rows = generator.TosaTestGen.TOSA_OP_LIST.values()
    rules = {row["op"].name: row["compliance"] for row in rows if "compliance" in row}

    compared = set()
    for graph, arrays in ORDINARY.values():
        (operator,) = graph.operators
        dtype = operator.outputs[0].dtype
        if operator.name in rules and is_float(dtype):
            ours = rule(operator, arrays)
            # This number depends on the operands; the generator's rule lacks it.
            ours.get("max_relative_info", {}).pop("max", None)
            assert ours == official_rule(rules[operator.name], dtype)
            compared.add(operator.name)

    assert compared == rules.keys() - {"CAST_TO_BLOCK_SCALED"}


@pytest.mark.parametrize("label", SUMS)
def test_bounds_of_sums_equal_those_of_the_conformance_tests(label):
    builder = pytest.importorskip(
        "generator.tosa_build_gen", reason="tosa-tools is not installed"
    ).TosaBuildGen
    from generator.tosa_utils import DataGenType
    from tosa_serializer import DType as OfficialDType

    def official(dtype: DType) -> OfficialDType:
        return getattr(OfficialDType, dtype.name)

    graph, _ = SUMS[label]
    (operator,) = graph.operators
    (result,) = operator.outputs

    expected = builder._get_compliance_tens(
        {"op": None},
        [official(factor.dtype) for factor in factors(operator)],
        {
            "dg_type": DataGenType.DOT_PRODUCT,
            "s": -1,  # number of the test set
            "ks": TERMS[type(operator)](operator),  # terms in a sum
            "acc_type": official(accumulator(operator, result.dtype)),
            "ksb_increment": biased(operator),  # the bias is one more term
        },
        "result",
        official(result.dtype),
        list(result.shape),
    )

    assert rule(operator)["dot_product_info"] == expected["dot_product_info"]


@pytest.mark.parametrize("label", CASES)
def test_results_are_as_accurate_as_the_specification_requires(
    label, reference_by_case
):
    graph, arrays = CASES[label]

    results = evaluate(graph, arrays)

    assert is_compliant(graph, arrays, results, reference_by_case[label])


def round_like(numbers: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Round to fp16 if ``like`` is fp16, else to bf16 (which is held in fp32)."""
    if like.dtype == np.float16:
        return numbers.astype(np.float16)
    return (
        np.asarray(numbers, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    ).view(np.float32)


def narrow_matmul(op, a, b, a_zp, b_zp):
    """MATMUL that rounds the sum to the operands' type after each product."""
    total = np.zeros((*a.shape[:2], b.shape[2]), a.dtype)
    for i in range(a.shape[2]):
        total = round_like(total + a[:, :, i, None] * b[:, None, i], a)
    return total


def narrow_conv(op, x, weight, bias, x_zp, weight_zp):
    """CONV2D that rounds the sum to the operands' type after each product."""
    (sy, sx), (top, bottom, left, right) = op.stride, op.pad
    x = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
    _, height, width, _ = op.outputs[0].shape
    total = np.zeros(op.outputs[0].shape, x.dtype)
    for ky, kx, c in np.ndindex(weight.shape[1:]):
        taken = x[:, ky : ky + height * sy : sy, kx : kx + width * sx : sx, c, None]
        total = round_like(total + taken[:, :height, :width] * weight[:, ky, kx, c], x)
    return total + bias


def narrow_sum(op, x):
    """REDUCE_SUM that rounds to the operand's type after each addition."""
    total = np.zeros(op.outputs[0].shape, x.dtype)
    for i in range(x.shape[op.axis]):
        total = round_like(total + np.take(x, [i], op.axis), x)
    return total


def of_half(function):
    """The function with its operand rounded to fp16."""
    return lambda op, x: function(x.astype(np.float16).astype(x.dtype))


def away_from_zero(op, x, y):
    """ADD that rounds away from zero instead of to the nearest number."""
    exact = x.astype(np.float64) + y.astype(np.float64)
    nearest = (x + y).astype(x.dtype)
    return np.where(
        np.abs(nearest) < np.abs(exact),
        np.nextafter(nearest, np.copysign(np.inf, nearest)),
        nearest,
    )


def tanh_like_erf(op, x):
    """The tanh approximation of ERF that GELU uses."""
    return np.tanh(x * (1.1283792 + 0.1009 * x * x))


def quick_rsqrt(op, x):
    """The fast inverse square root with one Newton step."""
    guess = (np.uint32(0x5F3759DF) - (x.astype(np.float32).view(np.uint32) >> 1)).view(
        np.float32
    )
    return guess * (1.5 - 0.5 * x * guess * guess)


# Start of a case label -> kernel that is less accurate than the specification allows.
INACCURATE_KERNELS = {
    "CONV2D(fp16, fp16, fp16, fp32": narrow_conv,
    "CONV2D(bf16, bf16, bf16, fp32": narrow_conv,
    "MATMUL(fp16, fp16, fp32)": narrow_matmul,
    "MATMUL(bf16, bf16, fp32)": narrow_matmul,
    "REDUCE_SUM(bf16, fp32)": narrow_sum,
    "ADD(fp32)": away_from_zero,
    "ERF(fp32)": tanh_like_erf,
    "EXP(fp32)": of_half(np.exp),
    "SIN(fp32)": of_half(np.sin),
    "LOG(fp32)": of_half(np.log),
    "RSQRT(fp32)": quick_rsqrt,
    "MAXIMUM(fp16)": lambda op, x, y: np.fmax(x, y),
    "RESIZE(fp16": lambda op, x, *_: np.repeat(np.repeat(x, 2, 1), 2, 2),
    "SIGMOID(fp32)": lambda op, x: np.exp(x) / (np.exp(x) + 1),
}


@pytest.mark.parametrize("row", INACCURATE_KERNELS)
def test_inaccurate_kernels_fail_the_accuracy_check(
    row, reference_by_case, monkeypatch
):
    cases = {
        label: case
        for label, case in CASES.items()
        if label.removeprefix("deep ").startswith(row)
    }

    def all_compliant() -> bool:
        return all(
            is_compliant(*case, evaluate(*case), reference_by_case[label])
            for label, case in cases.items()
        )

    assert cases
    assert all_compliant()
    operator_name = row.partition("(")[0]
    monkeypatch.setitem(
        all_kernels(), getattr(ops, operator_name), INACCURATE_KERNELS[row]
    )

    assert not all_compliant()
