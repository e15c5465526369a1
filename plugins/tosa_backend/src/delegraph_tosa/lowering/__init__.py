"""From ATen to TOSA: one rule for each operator, which is support check, type rule and
lowering at once.
"""

from .aten import FAMILIES
from .builder import Tosa

# - they register what lowers branches and loops
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
