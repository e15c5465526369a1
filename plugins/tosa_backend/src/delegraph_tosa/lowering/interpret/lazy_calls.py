"""Calls with lazy operands: complex numbers and uint8 have rules of their own, all other lazy values are quantized."""

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
"""Lazy values whose element type TOSA lacks -> this type. Only rules on these kinds take them."""


def apply_lazy(t: Tosa, rule: Rule, node: Node, arguments: list[Any]) -> Result:
    """The result of a call with a complex, uint8 or quantized operand; ``rule`` is the operator's rule on ``Value``.

    Raises Unsupported if the operator has no rule on complex or uint8 values, or if its rule refuses the call.
    """
    kind: type[Lazy] = next(kind for kind in (Complex, Bytes, Lazy) if any_lazy(arguments, kind))
    if kind is not Complex:
        # imported here, because it imports all rules for integers and uint8, which few programs need
        from . import quantized_calls
    if kind is Lazy:
        return quantized_calls.apply_quantized(t, rule, node, arguments)
    rule_on_kind = RULES.get((node.target, kind))  # type: ignore[arg-type]
    if rule_on_kind is None:
        raise refused(no_operand(LACKING[kind]))
    return checked(rule_on_kind, node, lambda: rule_on_kind.function(t, *arguments))
