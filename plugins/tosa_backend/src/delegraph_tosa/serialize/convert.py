"""Files of one version of TOSA as files of another."""

from __future__ import annotations

from ..spec import TosaSpec
from ..validate import validate
from .reader import read
from .trailer import trailer_of
from .writer import TosaFile


def convert(data: bytes | memoryview, spec: str) -> TosaFile:
    """The program of a ``.tosa`` file as one for the target ``spec``: ``TOSA-1.0+INT``
    of a file of 0.80, or back.

    Results, names of tensors and the scales of quantized borders stay. Raises
    FormatError for a damaged file, OptionError for a wrong target, InvalidGraph with
    the operators that the target does not have.
    """
    graph = read(data)
    target = TosaSpec.parse(spec)
    validate(graph, target)
    return TosaFile(graph, target, trailer=trailer_of(data))
