"""Converts files from one version of TOSA to another."""

from __future__ import annotations

from ..spec import TosaSpec
from ..validate import validate
from .reader import read
from .trailer import trailer_of
from .writer import TosaFile


def convert(data: bytes | memoryview, spec: str) -> TosaFile:
    """Convert a ``.tosa`` file to the target ``spec``, from or to TOSA 0.80.

    Keeps the results, names of tensors and scales of quantized borders. Raises
    FormatError for a damaged file, OptionError for a wrong target, and InvalidGraph
    with the operators that the target lacks.
    """
    graph = read(data)
    target = TosaSpec.parse(spec)
    validate(graph, target)
    return TosaFile(graph, target, trailer=trailer_of(data))
