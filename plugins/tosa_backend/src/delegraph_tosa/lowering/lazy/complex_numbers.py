"""Complex numbers, which TOSA lacks: a delegate computes pairs of real numbers.

A Fourier transform returns a ``Complex`` value. Rules on such values (``lowers(...,
on=Complex)``) return complex values or real numbers (``abs``, ``view_as_real``). All
other operators on complex values are refused, and complex inputs and outputs of a
delegate too.
"""

from __future__ import annotations

import torch

from ...ir.graph import Value
from ..builder import Tosa
from ..torch_values.hints import no_dtype
from ..torch_values.tensor_types import refused
from .lazy_values import Lazy
from .quantization import Quantization


class Complex(Lazy):
    """complex64 [*S], held as ``parts``, fp32 [*S,2], as in ``torch.view_as_real``."""

    __slots__ = ("parts",)

    def __init__(self, parts: Value) -> None:
        """``parts`` is fp32 [*S,2]: the real and the imaginary part of each number."""
        super().__init__(parts.shape[:-1])
        self.parts = parts

    def integer(self, t: Tosa, to: Quantization) -> Value:
        """Raise Unsupported: complex numbers cannot be quantized."""
        raise refused(no_dtype(torch.complex64))

    def real(self, t: Tosa) -> Value:
        """Raise Unsupported: only rules on ``Complex`` take complex numbers."""
        raise refused(no_dtype(torch.complex64))
