"""The operators of the demo compiler, in one table.

The partitioner, the compiler, the reader and the runtime use it. A row has the names of
an operator in PyTorch and in a blob, its shape function and its computation. A new
operator needs only a row. Everything is float32, so the shape of a value is its type.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from delegraph.errors import Unsupported
from delegraph.partitioner import Reason
from torch._ops import OpOverload

aten = torch.ops.aten
Shape = tuple[int, ...]
RANKS = 64
"""The largest rank of a value."""
ELEMENTS = 2**32
"""A value has fewer elements than this."""


def refused(reason: str, **more: Any) -> Unsupported:
    """Return the error for a call that cannot be compiled.

    The report shows the reason, with ``hint`` and the like.
    """
    return Unsupported("unsupported", Reason(reason, **more), hint=more.get("hint"))


def fitting(shape: Shape) -> Shape:
    """Return ``shape`` if a value may have it; raise Unsupported otherwise.

    A dimension of 0 counts as 1.
    """
    if len(shape) > RANKS or math.prod(max(d, 1) for d in shape) >= ELEMENTS:
        raise refused(
            f"a value may have up to {RANKS} dimensions and less than {ELEMENTS}"
            f" elements; its shape is {list(shape)}"
        )
    return shape


@dataclass(frozen=True)
class Operator:
    """An operator of the compiler.

    ``infer`` returns the result's shape for the operands' shapes, or raises
    Unsupported. ``compute`` returns the result. Operands are the first arguments of the
    ATen schema, from ``min_operands`` to ``max_operands``. Every further argument must
    have its default value. ``code`` identifies the operator in blobs: it is never
    changed and never used again.
    """

    code: int
    target: OpOverload
    min_operands: int
    max_operands: int
    infer: Callable[..., Shape]
    compute: Callable[..., torch.Tensor]

    def accepts(self, count: int) -> bool:
        """Return whether the operator may have so many operands."""
        return self.min_operands <= count <= self.max_operands

    def check_shapes(self, *operands: Shape) -> Shape:
        """Return the result's shape; raise Unsupported for operands that do not fit."""
        return fitting(self.infer(*operands))


def broadcast(a: Shape, b: Shape) -> Shape:
    """Return the shape that [*S] and [*T] broadcast to."""
    pairs = list(zip_longest(reversed(a), reversed(b), fillvalue=1))
    if any(p != q and 1 not in (p, q) for p, q in pairs):
        raise refused(f"shapes {list(a)} and {list(b)} do not broadcast")
    return tuple(q if p == 1 else p for p, q in reversed(pairs))


def mm(a: Shape, b: Shape) -> Shape:
    """Return the shape of a matrix product: [N, K], [K, M] -> [N, M]."""
    if len(a) != 2 or len(b) != 2 or a[1] != b[0]:
        raise refused(f"shapes {list(a)} and {list(b)} cannot be multiplied by mm")
    return a[0], b[1]


def addmm(bias: Shape, a: Shape, b: Shape) -> Shape:
    """Return the shape of a product with a bias: bias, [N, K], [K, M] -> [N, M]."""
    result = mm(a, b)
    if broadcast(result, bias) != result:
        raise refused(
            f"a bias of shape {list(bias)} does not broadcast to {list(result)}"
        )
    return result


def linear(x: Shape, weight: Shape, bias: Shape = ()) -> Shape:
    """Return the shape of a linear layer: [*S, K], [M, K], bias [M] or [] -> [*S, M].

    torch accepts more, such as a vector as weight.
    """
    if not x or len(weight) != 2 or x[-1] != weight[1] or bias not in ((), weight[:1]):
        raise refused(
            f"input {list(x)}, weight {list(weight)} and bias {list(bias)} do not fit"
            " each other in a linear layer"
        )
    return (*x[:-1], weight[0])


def same(x: Shape) -> Shape:
    """Return the shape of the operand."""
    return x


TABLE = (
    Operator(1, aten.add.Tensor, 2, 2, broadcast, torch.add),
    Operator(2, aten.mul.Tensor, 2, 2, broadcast, torch.mul),
    Operator(3, aten.mm.default, 2, 2, mm, torch.mm),
    Operator(4, aten.addmm.default, 3, 3, addmm, torch.addmm),
    Operator(5, aten.linear.default, 2, 3, linear, torch.nn.functional.linear),
    Operator(6, aten.sin.default, 1, 1, same, torch.sin),
)
BY_TARGET = {row.target: row for row in TABLE}
BY_CODE = {row.code: row for row in TABLE}
