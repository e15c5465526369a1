"""Complex numbers, which TOSA has not: inside of a delegate they are pairs of real ones.

A Fourier transform gives a ``Complex`` value. Rules on such values (``lowers(..., on=Complex)``) return them, or real
numbers (``abs``, ``view_as_real``); any other operator is refused, and so is a border that one crosses.
"""

from __future__ import annotations

import torch

from ...ir.graph import Value
from ..builder import Tosa
from ..torch_values.hints import no_dtype
from ..torch_values.types import refused
from .quantization import Quantization
from .values import Lazy


class Complex(Lazy):
    """complex64 [*S] as ``parts`` fp32 [*S,2], as ``torch.view_as_real`` has them."""

    __slots__ = ("parts",)

    def __init__(self, parts: Value) -> None:
        super().__init__(parts.shape[:-1])
        self.parts = parts

    def integer(self, t: Tosa, to: Quantization) -> Value:
        raise refused(no_dtype(torch.complex64))

    def real(self, t: Tosa) -> Value:
        raise refused(no_dtype(torch.complex64))
