"""The steps of a lowering; ``pipeline`` runs them in order.

The modules are private. These names are public: ``lower_programs`` and
``whole_delegate`` for plugins with entry points of their own, ``extract_partition`` for
support checks.
"""

from .extract import extract_partition
from .pipeline import lower_programs
from .whole_method_delegate import whole_delegate

__all__ = ["extract_partition", "lower_programs", "whole_delegate"]
