"""Bridge Vulkan, ExecuTorch's backend for GPUs. The wheel compiles, but cannot run it."""

from __future__ import annotations

from delegraph_engines import quietly

from . import bridge

with quietly():
    from executorch.backends.vulkan.partitioner.vulkan_partitioner import (
        VulkanPartitioner as TheirPartitioner,
    )
    from executorch.backends.vulkan.vulkan_preprocess import (
        VulkanBackend as TheirBackend,
    )

VulkanBackend, VulkanPartitioner, _ = bridge(TheirBackend, TheirPartitioner)
