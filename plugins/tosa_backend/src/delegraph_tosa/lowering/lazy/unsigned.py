"""uint8, of which TOSA has no tensors: inside of a delegate it is int8, and each element is 128 less.

Only RESCALE reads and writes unsigned numbers, so one stands where a uint8 tensor crosses the delegate's border.
Dequantizing needs no operator: the real numbers are the same with a zero point that is 128 less. Other operators on
uint8 are refused.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import torch

from ...ir import operators as tosa
from ...ir.graph import Deferred, Value
from ...ir.types import DType, RoundingMode, Type
from ..builder import Tosa
from ..torch_values.hints import no_dtype
from ..torch_values.types import array_of, refused, type_of
from .quantization import Quantization, Scale, multipliers
from .values import Lazy

HALF = 128


class Bytes(Lazy):
    """uint8 [*S], held as ``q``, int8 [*S], 128 less.

    ``held`` is the input of the graph that it comes from, if it is one.
    """

    __slots__ = ("held", "q")

    def __init__(self, q: Value, held: Value | None = None) -> None:
        Value.__init__(self, q.type, q.constant)
        self.q, self.held = q, held

    @staticmethod
    def arriving(t: Tosa, held: Value) -> Bytes:
        """The uint8 of an input of the graph, ``held``, which is int8 with the same bits."""
        return Bytes(_shifted_by_half(t, held, arrives=True), held)

    def leaving(self, t: Tosa) -> Value:
        """A result of the graph: int8 with the bits of the uint8."""
        return _shifted_by_half(t, self.q, arrives=False)

    def integer(self, t: Tosa, to: Quantization) -> Value:
        """Raise Unsupported: only rules on ``Bytes`` take uint8."""
        raise refused(no_dtype(torch.uint8))

    def real(self, t: Tosa) -> Value:
        """Raise Unsupported: only rules on ``Bytes`` take uint8."""
        raise refused(no_dtype(torch.uint8))


def _shifted_by_half(t: Tosa, x: Value, arrives: bool) -> Value:
    """x - 128 of an unsigned x that arrives; else x + 128 as an unsigned number.

    A RESCALE by 1 with other zero points.
    """
    # -128 has the bits of 128
    zero, half = t.constant(0, DType.INT8), t.constant(-HALF, DType.INT8)
    points = (half, zero) if arrives else (zero, half)
    return t.emit(
        tosa.RESCALE,
        (x, *multipliers(t, Scale(1.0), 31), *points),
        fold=False,
        scale32=True,
        rounding_mode=RoundingMode.SINGLE_ROUND,
        per_channel=False,
        input_unsigned=arrives,
        output_unsigned=not arrives,
        dtype=DType.INT8,
    )


def is_bytes(val: Any) -> TypeGuard[torch.Tensor]:
    """Whether ``val``, what torch recorded of a node, is a tensor of uint8."""
    return isinstance(val, torch.Tensor) and val.dtype is torch.uint8


def type_of_bytes(val: torch.Tensor, what: str) -> Type:
    """The type of the int8 tensor that stands for the uint8 tensor ``val``; ``what`` names it in a refusal."""
    return type_of(val, what, dtype=torch.int8)


def constant_bytes(name: str, tensor: torch.Tensor) -> Bytes:
    """A constant of uint8; its elements are read when the file is written."""
    # flipping the highest bit subtracts 128 and makes the byte signed
    type = type_of_bytes(tensor, f"the constant {name}")
    return Bytes(Value(type, Deferred(lambda: (array_of(tensor) ^ HALF).view("int8")), name))
