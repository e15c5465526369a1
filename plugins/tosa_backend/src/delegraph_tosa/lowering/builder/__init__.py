"""The builder: ``Tosa``, the ``t`` of every rule, and its base classes.

From the ground up: ``emitter`` makes an operator and checks that the target has it.
``integer_widths`` computes integers in a width that the
target has. ``regions`` makes the graphs of branches and loops. ``operators`` has one
method for each operator. ``builder`` adds numbers that take several operators to
compute.
"""

from .builder import Tosa
from .emitter import Shape
from .operators import Operand

__all__ = ["Operand", "Shape", "Tosa"]
