"""XNNPACK, ExecuTorch's backend for CPUs."""

from __future__ import annotations

from . import bridge
from .quiet import quietly

with quietly():
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner as TheirPartitioner
    from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend as TheirBackend

XnnpackBackend, XnnpackPartitioner, XnnpackRuntime = bridge(TheirBackend, TheirPartitioner)
