"""uint8, of which TOSA has no tensors: inside of a delegate it is int8 that is 128 less.

RESCALE alone reads and writes unsigned numbers, so it stands at the border. Dequantized values are the same real
numbers, with a zero point that is 128 less; what else takes uint8 is refused.
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
    """uint8 [*S] as ``q`` int8 [*S], 128 less; ``held`` is what arrives, if it arrives."""

    __slots__ = ("held", "q")

    def __init__(self, q: Value, held: Value | None = None) -> None:
        Value.__init__(self, q.type, q.constant)
        self.q, self.held = q, held

    @staticmethod
    def arriving(t: Tosa, held: Value) -> Bytes:
        """Of an input of the graph, int8 with the bits of uint8."""
        return Bytes(_across(t, held, arrives=True), held)

    def leaving(self, t: Tosa) -> Value:
        """int8 with the bits of uint8."""
        return _across(t, self.q, arrives=False)

    def integer(self, t: Tosa, to: Quantization) -> Value:
        raise refused(no_dtype(torch.uint8))

    def real(self, t: Tosa) -> Value:
        raise refused(no_dtype(torch.uint8))


def _across(t: Tosa, x: Value, arrives: bool) -> Value:
    """x - 128 of an unsigned x, or x + 128 as an unsigned number."""
    zero, half = t.constant(0, DType.INT8), t.constant(-HALF, DType.INT8)  # which has the bits of 128
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
    """Whether a node's value is a tensor of uint8."""
    return isinstance(val, torch.Tensor) and val.dtype is torch.uint8


def type_of_bytes(val: torch.Tensor, what: str) -> Type:
    """The type of what the graph has for uint8."""
    return type_of(val, what, dtype=torch.int8)


def constant_bytes(name: str, tensor: torch.Tensor) -> Bytes:
    """A weight of uint8; nothing is read before it is written."""
    type = type_of_bytes(tensor, f"the constant {name}")
    return Bytes(Value(type, Deferred(lambda: (array_of(tensor) ^ HALF).view("int8")), name))
