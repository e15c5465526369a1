"""Chooses the calls that the compiler supports."""

from __future__ import annotations

from delegraph.partitioner import CapabilityPartitioner

from .backend import BackendWithCompilerDemo, why_not
from .options import to_compile_specs


class CompilerDemoPartitioner(CapabilityPartitioner):
    """Gives the backend the calls that it compiles.

    ``max_value``: the largest absolute value of an input or a result at run time; None
    for any. Raises OptionError if it is negative or NaN.
    """

    def __init__(self, max_value: float | None = None) -> None:
        super().__init__(
            why_not, BackendWithCompilerDemo.__name__, to_compile_specs(max_value)
        )
