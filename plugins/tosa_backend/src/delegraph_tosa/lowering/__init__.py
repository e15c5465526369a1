"""From ATen to TOSA: one rule an operator, which is support check, type rule and lowering at once."""

from .aten import activation, cast, comparison, conv, create, elementwise, linear, noop, norm, pool, reduce, resize, shape
from .builder import Tosa
from .interpreter import Origin, lower_program
from .registry import RULES, lowers

FAMILIES = (activation, cast, comparison, conv, create, elementwise, linear, noop, norm, pool, reduce, resize, shape)
"""The modules whose import registers the rules."""

__all__ = ["FAMILIES", "RULES", "Origin", "Tosa", "lower_program", "lowers"]
