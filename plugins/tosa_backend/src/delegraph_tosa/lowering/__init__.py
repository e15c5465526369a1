"""From ATen to TOSA: one rule an operator, which is support check, type rule and lowering at once."""

from .aten import FAMILIES
from .builder import Tosa
from .control import branches, repeated  # noqa: F401 - they register what lowers branches and loops
from .interpret.interpreter import Origin, lower_program
from .registry import CONTROL, INTEGER_RULES, RULES, lowers, lowers_quantized

__all__ = [
    "CONTROL",
    "FAMILIES",
    "INTEGER_RULES",
    "RULES",
    "Origin",
    "Tosa",
    "lower_program",
    "lowers",
    "lowers_quantized",
]
