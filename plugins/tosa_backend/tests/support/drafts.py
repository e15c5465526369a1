"""Graphs that tests of passes draw, and what they look at afterwards."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
from delegraph_tosa.evaluate import evaluate
from delegraph_tosa.ir import operators as tosa
from delegraph_tosa.ir.graph import Graph, Literal, Operator, Value, literal
from delegraph_tosa.ir.types import ARRAY_DTYPES, DType, Type
from delegraph_tosa.passes import run_passes
from delegraph_tosa.spec import TosaSpec

FP = TosaSpec.parse("TOSA-1.0+FP")
NHWC = (0, 2, 3, 1)
NCHW = (0, 3, 1, 2)


class Draft:
    """A graph under construction. ``conv`` and ``norm`` emit what lowering does: NCHW
    outside, NHWC inside.
    """

    def __init__(self, seed: int = 0, dtype: DType = DType.FP32) -> None:
        self.dtype = dtype
        self.random = np.random.default_rng(seed)
        self.inputs: list[Value] = []
        self.operators: list[Operator] = []
        self.no_shift = literal([0], DType.INT8, np.int8)

    def input(self, *shape: int, dtype: DType | None = None) -> Value:
        self.inputs.append(
            Value(Type(shape, dtype or self.dtype), name=f"x{len(self.inputs)}")
        )
        return self.inputs[-1]

    def op(self, cls: type[Operator], *inputs: Value, **attributes) -> Value:
        operator = cls(
            inputs, source=f"{cls.__name__}:{len(self.operators)}", **attributes
        )
        operator.outputs = tuple(
            Value(type, producer=operator) for type in operator.infer()
        )
        self.operators.append(operator)
        return operator.outputs[0]

    def op_without_result(
        self, cls: type[Operator], *inputs: Value, **attributes
    ) -> None:
        self.operators.append(
            cls(inputs, source=f"{cls.__name__}:{len(self.operators)}", **attributes)
        )

    def constant(self, *shape: int) -> Value:
        elements = self.random.integers(-8, 9, shape) / 4
        return Value(
            Type(shape, self.dtype), Literal(elements.astype(ARRAY_DTYPES[self.dtype]))
        )

    def zero(self) -> Value:
        return literal([0], self.dtype, ARRAY_DTYPES[self.dtype])

    def transpose(self, x: Value, *perms: int) -> Value:
        return self.op(tosa.TRANSPOSE, x, perms=perms)

    def reshape(self, x: Value, *shape: int) -> Value:
        return self.op(tosa.RESHAPE, x, sizes(shape))

    def slice(self, x: Value, start: tuple[int, ...], size: tuple[int, ...]) -> Value:
        return self.op(tosa.SLICE, x, sizes(start), sizes(size))

    def pad(self, x: Value, *padding: int, number: float = 1.5) -> Value:
        return self.op(
            tosa.PAD, x, sizes(padding), literal([number], DType.FP32, np.float32)
        )

    def mul(self, a: Value, b: Value) -> Value:
        return self.op(tosa.MUL, a, b, self.no_shift)

    def add(self, a: Value, b: Value) -> Value:
        return self.op(tosa.ADD, a, b)

    def relu(self, x: Value) -> Value:
        return self.op(tosa.CLAMP, x, min_val=0.0, max_val=math.inf)

    def conv(self, x: Value, channels: int = 3, kernel: int = 1) -> Value:
        """x [N,C,H,W] -> [N,channels,H,W]"""
        weight = self.constant(channels, kernel, kernel, x.shape[1])
        return self.around(x, tosa.CONV2D, weight, self.constant(channels))

    def depthwise(self, x: Value, kernel: int = 3, multiplier: int = 1) -> Value:
        """x [N,C,H,W] -> [N,C*multiplier,H,W]"""
        weight = self.constant(kernel, kernel, x.shape[1], multiplier)
        return self.around(
            x, tosa.DEPTHWISE_CONV2D, weight, self.constant(x.shape[1] * multiplier)
        )

    def around(
        self, x: Value, cls: type[Operator], weight: Value, bias: Value
    ) -> Value:
        return self.transpose(
            self.bare(self.transpose(x, *NHWC), cls, weight, bias), *NCHW
        )

    def bare(self, x: Value, cls: type[Operator], weight: Value, bias: Value) -> Value:
        """x [N,H,W,C], a convolution that keeps height and width"""
        kernel = weight.shape[1] if cls is tosa.CONV2D else weight.shape[0]
        attributes = {
            "pad": (kernel // 2,) * 4,
            "stride": (1, 1),
            "dilation": (1, 1),
            "acc_type": DType.FP32,
        }
        return self.op(cls, x, weight, bias, self.zero(), self.zero(), **attributes)

    def shuffle(self, x: Value, groups: int) -> Value:
        """x [N,C,H,W], channel j of group i becomes channel i of group j"""
        n, c, h, w = x.shape
        return self.reshape(
            self.transpose(
                self.reshape(x, n, groups, c // groups, h, w), 0, 2, 1, 3, 4
            ),
            n,
            c,
            h,
            w,
        )

    def linear(self, x: Value, channels: int) -> Value:
        """x [N,L,C] or [L,C] -> [N,L,channels] or [L,channels]"""
        *rows, depth = x.shape
        image = (1, 1, *rows, depth) if len(rows) == 1 else (rows[0], 1, rows[1], depth)
        weight = self.constant(channels, 1, 1, depth)
        bias = self.constant(channels)
        y = self.bare(self.reshape(x, *image), tosa.CONV2D, weight, bias)
        return self.reshape(y, *rows, channels)

    def norm(self, x: Value) -> Value:
        """x [N,C,H,W], scaled and shifted by channel, as batch norm is."""
        channels = (1, x.shape[1], 1, 1)
        return self.add(self.mul(x, self.constant(*channels)), self.constant(*channels))

    def mean(self, x: Value) -> Value:
        """x [N,C,H,W] -> [N,C,1,1]"""
        total = self.op(tosa.REDUCE_SUM, self.op(tosa.REDUCE_SUM, x, axis=2), axis=3)
        return self.mul(total, self.constant(1, 1, 1, 1))

    def matmul(self, a: Value, b: Value) -> Value:
        return self.op(tosa.MATMUL, a, b, self.zero(), self.zero(), dtype=DType.FP32)

    def graph(self, *outputs: Value) -> Graph:
        return Graph(self.inputs, outputs, self.operators)

    def example(self) -> list[np.ndarray]:
        return [
            (self.random.integers(-8, 9, value.shape) / 4).astype(
                ARRAY_DTYPES[value.dtype]
            )
            for value in self.inputs
        ]


def sizes(entries: tuple[int, ...]) -> Value:
    return literal(entries, DType.SHAPE, np.int64)


def count_operators(graph: Graph) -> Counter:
    return Counter(operator.name for operator in graph.operators)


def snapshot(graph: Graph) -> list:
    seen = [graph.inputs[:], graph.outputs[:], graph.operators[:]]
    for op in graph.operators:
        seen += [
            op.inputs,
            op.outputs,
            op.source,
            op.attribute_values(),
            [(output.type, output.name) for output in op.outputs],
        ]
    return seen


def optimize_and_compare(
    draft: Draft, *outputs: Value, spec: TosaSpec = FP, exact: bool = False
) -> Graph:
    """The optimized graph, after it was seen to compute the same, to be well formed and
    to leave its input alone.
    """
    graph = draft.graph(*outputs)
    before = snapshot(graph)
    result = run_passes(graph, spec)
    assert snapshot(graph) == before
    assert [output.type for output in result.outputs] == [
        output.type for output in graph.outputs
    ]
    assert_well_formed(result, spec)
    arrays = draft.example()
    for old, new in zip(evaluate(graph, arrays), evaluate(result, arrays), strict=True):
        scale = 0 if exact else 1e-6 * float(np.abs(old).max(initial=1))
        np.testing.assert_allclose(new, old, rtol=0, atol=scale)
    return result


def assert_well_formed(graph: Graph, spec: TosaSpec) -> None:
    known = set(graph.inputs)
    for op in graph.operators:
        assert all(value in known or value.constant is not None for value in op.inputs)
        assert all(output.producer is op for output in op.outputs)
        assert tuple(output.type for output in op.outputs) == op.infer()
        assert spec.why_not(op) is None
        known.update(op.outputs)
    made = known - set(graph.inputs)
    assert len(set(graph.outputs)) == len(graph.outputs)
    assert made.issuperset(graph.outputs)
