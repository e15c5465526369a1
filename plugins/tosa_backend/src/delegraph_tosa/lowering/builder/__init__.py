"""What makes TOSA operators: ``Tosa``, the ``t`` of every rule, and the layers that it stands on.

From the ground up: ``emitter`` makes one operator and asks the target, ``integer_widths`` computes integers in a width
that the target has, ``regions`` makes graphs of control flow, ``operators`` has one method an operator, ``builder``
adds numbers that are computed by several operators.
"""

from .builder import Tosa
from .emitter import Shape
from .operators import Operand

__all__ = ["Operand", "Shape", "Tosa"]
