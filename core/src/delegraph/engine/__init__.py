"""The work of a lowering; ``pipeline`` lists its steps.

The names below are public, for other faces of the one pipeline and for support checks;
the modules are not.
"""

from .extract import extract_partition
from .pipeline import lower_programs
from .whole_method_delegate import whole_delegate

__all__ = ["extract_partition", "lower_programs", "whole_delegate"]
