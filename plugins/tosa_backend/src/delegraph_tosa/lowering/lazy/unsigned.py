"""uint8, which TOSA lacks: a delegate computes int8, with elements 128 less.

Only RESCALE reads and writes unsigned numbers, so each uint8 input and output of a
delegate takes a RESCALE. Dequantizing takes no operator: a zero point that is 128 less
gives the same real numbers. Operators without a rule on ``Bytes`` are refused.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np
import torch

from ...ir import operators as tosa
from ...ir.graph import Array, Deferred, Value
from ...ir.types import DType, RoundingMode, Type
from ..builder import Tosa
from ..torch_values.hints import no_dtype
from ..torch_values.tensor_types import array_of, refused, type_of
from .lazy_values import Lazy
from .quantization import Quantization, Scale, multipliers

HALF = 128


class Bytes(Lazy):
    """uint8 [*S], held as ``q``, int8 [*S], where each element is 128 less.

    ``held`` is the graph's input that holds the bits of the uint8; None if the value is
    computed or a constant.
    """

    __slots__ = ("held", "q")

    def __init__(self, q: Value, held: Value | None = None) -> None:
        """Create a value of the integers ``q``, such as -128 for the uint8 0.

        ``held`` is the int8 input of the graph with the bits of the uint8, such as -56
        for 200.
        """
        Value.__init__(self, q.type, q.constant)
        self.q = q
        self.held = held

    @staticmethod
    def arriving(t: Tosa, held: Value) -> Bytes:
        """Return the value of a uint8 input of the graph.

        ``held`` is the input, an int8 tensor with the bits of the uint8.
        """
        return Bytes(_shifted_by_half(t, held, arrives=True), held)

    def leaving(self, t: Tosa) -> Value:
        """Return the value as a result: int8 with the bits of the uint8."""
        return _shifted_by_half(t, self.q, arrives=False)

    def integer(self, t: Tosa, to: Quantization) -> Value:
        """Raise Unsupported: only rules on ``Bytes`` take uint8."""
        raise refused(no_dtype(torch.uint8))

    def real(self, t: Tosa) -> Value:
        """Raise Unsupported: only rules on ``Bytes`` take uint8."""
        raise refused(no_dtype(torch.uint8))


def _shifted_by_half(t: Tosa, x: Value, arrives: bool) -> Value:
    """Convert between uint8 x and int8 x - 128, by a RESCALE with ratio 1.

    If x ``arrives`` as an input, it is uint8 and becomes int8; otherwise the reverse.
    uint8 is in tensors of int8 with the same bits.
    """
    # the zero point 128 of an unsigned number, in int8: -128 has the same bits
    zero = t.constant(0, DType.INT8)
    half = t.constant(-HALF, DType.INT8)
    before = half if arrives else zero
    after = zero if arrives else half
    multiplier, shift = multipliers(t, Scale(1.0), 31)
    return t.emit(
        tosa.RESCALE,
        (x, multiplier, shift, before, after),
        fold=False,
        scale32=True,
        rounding_mode=RoundingMode.SINGLE_ROUND,
        per_channel=False,
        input_unsigned=arrives,
        output_unsigned=not arrives,
        dtype=DType.INT8,
    )


def is_bytes(val: Any) -> TypeGuard[torch.Tensor]:
    """Return whether ``val``, as recorded by torch for a node, is a uint8 tensor."""
    return isinstance(val, torch.Tensor) and val.dtype is torch.uint8


def type_of_bytes(val: torch.Tensor, what: str) -> Type:
    """Return the type of the int8 tensor for the uint8 tensor ``val``.

    ``what`` names it in a refusal.
    """
    return type_of(val, what, dtype=torch.int8)


def constant_bytes(name: str, tensor: torch.Tensor) -> Bytes:
    """Return a constant of uint8; its elements are read when the file is written."""

    def load() -> Array:
        """Return the elements, each 128 less, as int8."""
        # flipping the highest bit subtracts 128 and makes the byte signed
        flipped: Array = array_of(tensor) ^ HALF
        return flipped.view(np.int8)

    type = type_of_bytes(tensor, f"the constant {name}")
    return Bytes(Value(type, Deferred(load), name))
