"""The light module of delegraph-iree; it imports neither torch, numpy nor IREE."""

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
from delegraph_tosa.plugin import KNOWN_DIFFERENCES
from delegraph_tosa.plugin import OPTIONS as TOSA_OPTIONS

INSTALL = "pip install 'delegraph-iree[engine]'"
OPTIONS = (
    OptionSpec(
        "target",
        str,
        "llvm-cpu",
        choices=("llvm-cpu", "vulkan-spirv"),
        help="the target that IREE compiles for",
    ),
    OptionSpec(
        "cpu",
        str,
        "host",
        help="processor of llvm-cpu: host, generic, or a name that LLVM knows",
    ),
    OptionSpec(
        "driver",
        str,
        "local-sync",
        choices=("local-sync", "local-task"),
        help=(
            "runs modules of llvm-cpu: local-sync in the calling thread, local-task on"
            " all processors"
        ),
    ),
    OptionSpec(
        "flags", str, "", help="further arguments of iree-compile, separated by spaces"
    ),
    *(
        option
        for option in TOSA_OPTIONS
        if option.name in ("spec", "debug_artifact_path")
    ),
)


@hookimpl
def delegraph_backends() -> list[BackendSpec]:
    return [
        BackendSpec(
            name="iree",
            backend_id="IREEBackend",
            target="delegraph_iree.backend:IREEBackend",
            api=1,
            summary="IREE modules for processors and Vulkan, by way of TOSA",
            requires=("iree.compiler",),
            install_hint=INSTALL,
            options=OPTIONS,
            traits=BackendTraits(
                known_differences=KNOWN_DIFFERENCES, composes=("delegraph-tosa",)
            ),
        )
    ]


@hookimpl
def delegraph_partitioners() -> list[PartitionerSpec]:
    return [
        PartitionerSpec(
            "iree",
            backend="iree",
            target="delegraph_iree.partitioner:IREEPartitioner",
            default=True,
        )
    ]


@hookimpl
def delegraph_runtimes() -> list[RuntimeSpec]:
    return [
        RuntimeSpec(
            "iree",
            target="delegraph_iree.runtime:IREERuntime",
            requires=("iree.runtime",),
            native="machine code",
        )
    ]


@hookimpl
def delegraph_quantizers() -> list[QuantizerSpec]:
    """Declare the quantizer of TOSA, which belongs to another distribution."""
    needs = ("delegraph_tosa", "torchao")
    hint = "pip install delegraph-tosa delegraph-quantize"
    return [
        QuantizerSpec(
            "iree",
            "delegraph_tosa.quantizer:TOSAQuantizer",
            requires=needs,
            install_hint=hint,
        )
    ]


@hookimpl
def delegraph_formats() -> list[FormatSpec]:
    return [
        FormatSpec(
            ".vmfb",
            "delegraph_iree.format:VmfbFormat",
            "an IREE module, one whole delegate",
            requires=("iree.runtime",),
            install_hint=INSTALL,
        )
    ]
