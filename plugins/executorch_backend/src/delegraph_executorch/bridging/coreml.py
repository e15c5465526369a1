"""Bridge Core ML, ExecuTorch's backend for Apple's devices, which run the blobs."""

from __future__ import annotations

from delegraph_engines import quietly

from . import bridge

with quietly():
    from executorch.backends.apple.coreml.compiler import CoreMLBackend as TheirBackend
    from executorch.backends.apple.coreml.partition import (
        CoreMLPartitioner as TheirPartitioner,
    )

CoreMLBackend, CoreMLPartitioner, _ = bridge(TheirBackend, TheirPartitioner)
