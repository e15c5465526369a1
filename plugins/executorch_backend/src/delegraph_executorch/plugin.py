"""Declare the plugin's backends and format, without importing torch or numpy."""

from __future__ import annotations

from delegraph.plugin import (
    BackendSpec,
    BackendTraits,
    FormatSpec,
    OptionSpec,
    PartitionerSpec,
    QuantizerSpec,
    RuntimeSpec,
    hookimpl,
)

NEEDS = ("executorch",)
HINT = 'pip install "delegraph-executorch[runtime]"'


@hookimpl
def delegraph_backends() -> list[BackendSpec]:
    return [
        BackendSpec(
            name="xnnpack",
            backend_id="XnnpackBackend",
            target="delegraph_executorch.bridging.xnnpack:XnnpackBackend",
            api=1,
            summary="ExecuTorch's XNNPACK, for CPUs",
            requires=NEEDS,
            install_hint=HINT,
            options=(
                OptionSpec(
                    "per_op_mode",
                    bool,
                    False,
                    help="make one delegate for each operator",
                ),
            ),
            traits=BackendTraits(composes=NEEDS),
        ),
        BackendSpec(
            name="vulkan",
            backend_id="VulkanBackend",
            target="delegraph_executorch.bridging.vulkan:VulkanBackend",
            api=1,
            summary=(
                "ExecuTorch's Vulkan, for phone GPUs; compiles here, runs on the device"
            ),
            requires=NEEDS,
            install_hint=HINT,
        ),
        BackendSpec(
            name="coreml",
            backend_id="CoreMLBackend",
            target="delegraph_executorch.bridging.coreml:CoreMLBackend",
            api=1,
            summary=(
                "ExecuTorch's Core ML, for Apple's devices; compiles here, runs on the"
                " device"
            ),
            requires=(*NEEDS, "coremltools"),
            install_hint=f"{HINT}, and pip install coremltools",
        ),
    ]


@hookimpl
def delegraph_partitioners() -> list[PartitionerSpec]:
    modules = "delegraph_executorch.bridging"
    return [
        PartitionerSpec(
            name="xnnpack",
            backend="xnnpack",
            target=f"{modules}.xnnpack:XnnpackPartitioner",
            default=True,
        ),
        PartitionerSpec(
            name="coreml",
            backend="coreml",
            target=f"{modules}.coreml:CoreMLPartitioner",
            default=True,
        ),
        PartitionerSpec(
            name="vulkan",
            backend="vulkan",
            target=f"{modules}.vulkan:VulkanPartitioner",
            default=True,
        ),
    ]


@hookimpl
def delegraph_runtimes() -> list[RuntimeSpec]:
    return [
        RuntimeSpec(
            backend="xnnpack",
            target="delegraph_executorch.bridging.xnnpack:XnnpackRuntime",
            requires=NEEDS,
            native="a program for XNNPACK, which does not check it",
        )
    ]


@hookimpl
def delegraph_quantizers() -> list[QuantizerSpec]:
    return [
        QuantizerSpec(
            backend="xnnpack",
            target="delegraph_executorch.bridging.quantizer:make_xnnpack_quantizer",
            requires=(*NEEDS, "torchao"),
            install_hint=f"{HINT}, and pip install delegraph-quantize",
        )
    ]


@hookimpl
def delegraph_formats() -> list[FormatSpec]:
    return [
        FormatSpec(
            suffix=".pte",
            target="delegraph_executorch.format:PteFormat",
            summary="a whole program for ExecuTorch's runtime",
            runtimes=("executorch",),
        )
    ]
