"""Complex numbers, which TOSA has not: inside of a delegate they are pairs of real ones.

A Fourier transform gives a ``Complex`` value. The rules that ``lowers_complex`` registers take such values and return
them, or real numbers (``abs``, ``view_as_real``); any other operator is refused, and so is a border that one crosses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from ...ir.graph import Value
from ..builder import Tosa
from ..registry import F
from ..torch_values.hints import no_dtype
from ..torch_values.types import refused
from .quantization import Quantization
from .values import Lazy

COMPLEX_RULES: dict[OpOverload, Callable[..., Any]] = {}
"""What operators do to complex values."""


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


def lowers_complex(*overloads: OpOverload) -> Callable[[F], F]:
    """Register what operators do to ``Complex`` operands; they have a rule already, whose parameters it has."""

    def register(function: F) -> F:
        COMPLEX_RULES.update(dict.fromkeys(overloads, function))
        return function

    return register
