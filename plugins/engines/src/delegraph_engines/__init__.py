"""Code that plugins for engines share: types of a delegate's values, sealed files,
names of fused kernels.
"""

from .kernels import Kernel, computed_by
from .sealed import seal, unseal
from .signature import Signature
from .support import why_subgraph

__all__ = ["Kernel", "Signature", "computed_by", "seal", "unseal", "why_subgraph"]
