"""Lowers calls with lazy operands: complex, uint8 or quantized values."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ..builder import Tosa
from ..lazy.complex_numbers import Complex
from ..lazy.lazy_values import Lazy, any_lazy
from ..lazy.unsigned import Bytes
from ..registry import RULES, Result, Rule, checked
from ..torch_values.hints import no_operand
from ..torch_values.tensor_types import refused

LACKING: dict[type[Lazy], torch.dtype] = {Complex: torch.complex64, Bytes: torch.uint8}
"""Maps lazy values of types that TOSA lacks to that type.

Only rules on these kinds take them.
"""


def apply_lazy(t: Tosa, rule: Rule, node: Node, arguments: list[Any]) -> Result:
    """Return the result of a call of which at least one operand is lazy.

    ``rule`` is the operator's rule on ``Value``. Among complex, uint8 and quantized
    operands, the first kind that occurs decides. Raises Unsupported if the operator has
    no rule on complex or uint8 values, or if its rule refuses the call.
    """
    if any_lazy(arguments, Complex):
        return _by_rule_on(Complex, t, node, arguments)
    # imported late, because this imports (and so registers) all rules on integers and
    # uint8, which few programs need
    from . import quantized_calls

    if any_lazy(arguments, Bytes):
        return _by_rule_on(Bytes, t, node, arguments)
    return quantized_calls.apply_quantized(t, rule, node, arguments)


def _by_rule_on(kind: type[Lazy], t: Tosa, node: Node, arguments: list[Any]) -> Result:
    """Return the result of the operator's rule on operands of the class ``kind``."""
    rule_on_kind = RULES.get((node.target, kind))  # type: ignore[arg-type]
    if rule_on_kind is None:
        raise refused(no_operand(LACKING[kind]))
    return checked(rule_on_kind, node, lambda: rule_on_kind.function(t, *arguments))
