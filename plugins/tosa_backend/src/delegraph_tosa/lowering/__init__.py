"""From ATen to TOSA: one rule an operator, which is support check, type rule and lowering at once."""

from . import elementwise
from .builder import Tosa
from .program import Origin, lower_program
from .rules import RULES, lowers

__all__ = ["RULES", "Origin", "Tosa", "elementwise", "lower_program", "lowers"]
