"""From ATen to TOSA: one rule an operator, which is support check, type rule and lowering at once."""

from .aten import FAMILIES
from .builder import Tosa
from .interpreter import Origin, lower_program
from .registry import RULES, lowers

__all__ = ["FAMILIES", "RULES", "Origin", "Tosa", "lower_program", "lowers"]
