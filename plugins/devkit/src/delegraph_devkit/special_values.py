"""Define programs with special values, which many devices get wrong.

The values are NaN, infinities, -0.0, wide integers, and integers that wrap around.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from delegraph_programs import operator_name, output_values
from torch.fx import Node

from .programs import Program, from_text

_FLOATS = "[nan, inf, -inf, -0.0, 0.0, 1.5, -2.0, 3.0]"
_WIDE = "[2**40 + 3, -(2**40), 2**62 + 1, -(2**63), 2**63 - 1, 0, -1, 7]"
"""Integers that do not fit in 32 bits, and the least and largest of 64 bits."""
_NARROW = {
    "int8": "[127, -128, 100, -100, 64, 1, 0, -1]",
    "uint8": "[255, 200, 128, 127, 64, 2, 1, 0]",
    "int16": "[32767, -32768, 30000, -300, 200, 1, 0, -1]",
    "int32": "[2**31 - 1, -(2**31), 2**30, 65537, -65537, 1, 0, -1]",
}
"""Integers whose sums and products wrap around."""
_UNARY = (
    "torch.relu(x)",
    "torch.clamp(x, -1.0, 1.0)",
    "torch.clamp(x, min=0.0)",
    "torch.clamp(x, max=1.0)",
    "F.hardtanh(x)",
    "F.relu6(x)",
    "F.leaky_relu(x)",
    "F.elu(x)",
    # for infinity, eager returns infinity or NaN, as the processor has vectors or not
    "F.gelu(torch.clamp(x, max=3.0))",
    "F.silu(x)",
    "F.hardswish(x)",
    "torch.abs(x)",
    "torch.neg(x)",
    "torch.exp(x)",
    "torch.tanh(x)",
    "torch.sigmoid(x)",
    "torch.sin(x)",
    "torch.floor(x)",
    "torch.ceil(x)",
    "torch.sqrt(x)",
    "torch.rsqrt(x)",
    "torch.reciprocal(x)",
    "torch.log(x)",
    "x + 1.0",
    "x * 2.0",
    "torch.pow(x, 2)",
    "x == x",
    "x > 0",
    "torch.isnan(x)",
)
_BINARY = (
    "x + y",
    "x - y",
    "x * y",
    "x / y",
    "torch.maximum(x, y)",
    "torch.minimum(x, y)",
    "x < y",
    "torch.where(x > 0, x, y)",
    "torch.cat([x, y])",
)
_MATRIX = (
    "torch.amax(x, 1)",
    "torch.amin(x, 1)",
    "torch.sum(x, 1)",
    "torch.mean(x, 1)",
    "torch.softmax(x, 1)",
    "torch.mm(x, x.transpose(0, 1))",
    "torch.transpose(x, 0, 1)",
    "F.pad(x, (1, 1))",
)
_IMAGE = ("F.max_pool2d(x, 2)", "F.avg_pool2d(x, 2)", "torch.amax(x, (2, 3))")
_INTEGERS = (
    "x + y",
    "x - y",
    "x * y",
    "torch.neg(x)",
    "torch.abs(x)",
    "torch.maximum(x, y)",
    "torch.sum(x)",
    "torch.clamp(x, min=-5)",
    "torch.relu(x)",
    "torch.amax(x, 0)",
    "torch.where(x > y, x, y)",
    "torch.cat([x, y])",
)
_INT64 = (
    *_INTEGERS,
    "x > 2**33",
    "torch.clamp(x, max=2**41)",
    "x.to(torch.float32)",
    "x + 1",
)


def _text(inputs: str, returned: str) -> str:
    parameters = "x, y" if "inputs = x," in inputs else "x"
    lines = [
        "import torch",
        "import torch.nn.functional as F",
        "from torch import inf, nan",
        "",
    ]
    lines += ["class Model(torch.nn.Module):", f"    def forward(self, {parameters}):"]
    lines += [f"        return {returned}", "", "model = Model().eval()", inputs]
    return "\n".join(lines)


def _group(name: str, inputs: str, *expressions: str) -> Program:
    """Return one program of all expressions, which torch exports fast.

    Each of its members has one expression.
    """
    members = tuple(
        from_text(f"{name}: {e}", _text(inputs, e), special=True) for e in expressions
    )
    return from_text(
        name,
        _text(inputs, f"({', '.join(expressions)},)"),
        special=True,
        members=members,
    )


def _integers(dtype: str, values: str, *expressions: str) -> Program:
    made = f"x = torch.tensor({values}, dtype=torch.{dtype})\ninputs = x, x.roll(2)"
    return _group(f"special values, {dtype}", made, *expressions)


_IMAGE_VALUES = (
    "[nan, 1.0, -inf, -inf, 2.0, 3.0, -inf, -inf, inf, 1.0, -1.0, -2.0, -inf, 0.0,"
    " -3.0, -4.0]"
)
_ROWS = (
    "[[nan, 1.0, inf], [-inf, 2.0, -0.0], [-3.0, -2.0, -1.0], [inf, 1.0, 2.0], [-inf,"
    " -inf, -inf]]"
)
"""Five rows: the softmax of three rows is NaN, for different reasons."""
SPECIAL: tuple[Program, ...] = (
    _group("special values", f"inputs = (torch.tensor({_FLOATS}),)", *_UNARY),
    _group(
        "special values, two",
        f"x = torch.tensor({_FLOATS})\ninputs = x, x.roll(3)",
        *_BINARY,
    ),
    _group(
        "special values, matrix",
        f"inputs = (torch.tensor({_ROWS}),)",
        *_MATRIX,
    ),
    _group(
        "special values, image",
        f"inputs = (torch.tensor({_IMAGE_VALUES}).reshape(1, 1, 4, 4),)",
        *_IMAGE,
    ),
    *(_integers(dtype, values, *_INTEGERS) for dtype, values in _NARROW.items()),
    _integers("int64", _WIDE, *_INT64),
)
"""Operators of most devices, with special values."""


def special_programs(names: Collection[str]) -> Iterator[Program]:
    """Yield programs of one expression that calls an operator with one of these names."""
    for group in SPECIAL:
        if group.exported is None:
            continue
        outputs = output_values(group.exported[0])
        for member, output in zip(group.members, outputs, strict=True):
            if not _operators_of(output).isdisjoint(names):
                yield member


def _operators_of(output: Any) -> set[str]:
    """Return the names of the operators that compute an output."""
    names: set[str] = set()
    waiting = [output]
    while waiting:
        node: Node = waiting.pop()
        if node.op == "call_function":
            # getitem has no second part
            names.update(operator_name(node).split(".")[1:2])
        waiting += node.all_input_nodes
    return names
