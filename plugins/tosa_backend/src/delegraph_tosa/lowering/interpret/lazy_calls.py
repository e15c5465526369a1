"""Calls with lazy operands: those of complex numbers and of uint8 have rules of their own, the others are quantized."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

from ..builder import Tosa
from ..lazy.complex_numbers import COMPLEX_RULES, Complex
from ..lazy.unsigned import BYTES_RULES, Bytes
from ..lazy.values import any_lazy
from ..registry import Result, Rule, checked
from ..torch_values.hints import no_operand
from ..torch_values.types import refused


def apply_lazy(t: Tosa, rule: Rule, node: Node, arguments: list[Any]) -> Result:
    """The result of a call that has a complex, an unsigned or a quantized operand."""
    if any_lazy(arguments, Complex):
        return _apply_own(t, rule, node, arguments, COMPLEX_RULES, torch.complex64)
    from .quantized_calls import apply_quantized  # imports the rules for integers and uint8, which few programs need

    if any_lazy(arguments, Bytes):
        return _apply_own(t, rule, node, arguments, BYTES_RULES, torch.uint8)
    return apply_quantized(t, rule, node, arguments)


def _apply_own(
    t: Tosa, rule: Rule, node: Node, arguments: list[Any], rules: Mapping[OpOverload, Any], dtype: torch.dtype
) -> Result:
    """The result for an element type that TOSA lacks. An operator that is not among ``rules`` is refused."""
    own = rules.get(node.target)  # type: ignore[call-overload]
    if own is None:
        raise refused(no_operand(dtype))
    return checked(rule._replace(lazy=True), node, lambda: own(t, *arguments))
