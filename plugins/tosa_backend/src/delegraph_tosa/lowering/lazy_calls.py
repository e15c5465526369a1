"""Calls with lazy operands: those of complex numbers and of uint8 have rules of their own, the others are quantized."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch.fx import Node

from .builder import Tosa
from .complex_numbers import COMPLEX_RULES, Complex
from .hints import no_operand
from .lazy import Lazy, any_lazy
from .registry import Result, Rule, checked
from .torch_types import refused
from .unsigned import BYTES_RULES, Bytes


class _Kind(NamedTuple):
    """Lazy values of an element type that TOSA lacks. An operator that is not among ``rules`` is refused."""

    value: type[Lazy]
    rules: Mapping[OpOverload, Callable[..., Any]]
    dtype: torch.dtype


_KINDS = (_Kind(Complex, COMPLEX_RULES, torch.complex64), _Kind(Bytes, BYTES_RULES, torch.uint8))


def apply_lazy(t: Tosa, rule: Rule, node: Node, arguments: list[Any]) -> Result:
    """The result of a call that has a complex, an unsigned or a quantized operand."""
    for kind in _KINDS:
        if any_lazy(arguments, kind.value):
            return _apply_own(t, rule, node, arguments, kind)
    from .quantized_calls import apply_quantized  # imports the integer rules, which few programs need

    return apply_quantized(t, rule, node, arguments)


def _apply_own(t: Tosa, rule: Rule, node: Node, arguments: list[Any], kind: _Kind) -> Result:
    own = kind.rules.get(node.target)  # type: ignore[call-overload]
    if own is None:
        raise refused(no_operand(kind.dtype))
    return checked(rule._replace(lazy=True), node, lambda: own(t, *arguments))
