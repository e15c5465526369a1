"""Lowers ATen to TOSA by one rule for each operator.

The rule is support check, type rule and lowering at once.
"""

from .aten import FAMILIES
from .builder import Tosa

# - they register the rules of branches and loops
from .control import branches, map_and_scan  # noqa: F401
from .interpret.interpreter import Origin, lower_program
from .registry import CONTROL, RULES, has_rule, lowering_of, lowers

__all__ = [
    "CONTROL",
    "FAMILIES",
    "RULES",
    "Origin",
    "Tosa",
    "has_rule",
    "lower_program",
    "lowering_of",
    "lowers",
]
