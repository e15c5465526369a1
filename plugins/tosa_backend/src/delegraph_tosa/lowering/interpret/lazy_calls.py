"""Calls with lazy operands: those on complex numbers and on uint8 have their own rules, all others are quantized."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ..builder import Tosa
from ..lazy.complex_numbers import Complex
from ..lazy.unsigned import Bytes
from ..lazy.values import Lazy, any_lazy
from ..registry import RULES, Result, Rule, checked
from ..torch_values.hints import no_operand
from ..torch_values.types import refused

LACKING: dict[type[Lazy], torch.dtype] = {Complex: torch.complex64, Bytes: torch.uint8}
"""Kinds of lazy values whose element type TOSA lacks -> that type. Only their own rules compute with them."""


def apply_lazy(t: Tosa, rule: Rule, node: Node, arguments: list[Any]) -> Result:
    """The result of a call with a complex, an unsigned or a quantized operand.

    ``rule`` is the operator's rule on ``Value``.
    """
    kind: type[Lazy] = next(kind for kind in (Complex, Bytes, Lazy) if any_lazy(arguments, kind))
    if kind is not Complex:
        # it imports the rules for integers and uint8, which few programs need
        from . import quantized_calls
    if kind is Lazy:
        return quantized_calls.apply_quantized(t, rule, node, arguments)
    own = RULES.get((node.target, kind))  # type: ignore[arg-type]
    if own is None:
        raise refused(no_operand(LACKING[kind]))
    return checked(own, node, lambda: own.function(t, *arguments))
