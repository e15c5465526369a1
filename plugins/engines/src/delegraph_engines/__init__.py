"""Code that plugins for engines share: signatures, sealed files, support, kernels."""

from .kernels import Kernel, computed_by
from .numbered_calls import NumberedCalls, calls_in
from .processors import saturates
from .properties import read_properties
from .sealed import seal, unseal
from .signature import Signature
from .support import why_subgraph
from .trial_compilation import TrialCompilation

__all__ = [
    "Kernel",
    "NumberedCalls",
    "Signature",
    "TrialCompilation",
    "calls_in",
    "computed_by",
    "read_properties",
    "saturates",
    "seal",
    "unseal",
    "why_subgraph",
]
