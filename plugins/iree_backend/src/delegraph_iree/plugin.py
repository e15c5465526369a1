"""The light module of delegraph-iree: what it offers, without importing torch, numpy or IREE."""

from __future__ import annotations

from delegraph.plugin import BackendSpec, FormatSpec, OptionSpec, PartitionerSpec, RuntimeSpec, hookimpl
from delegraph_tosa.plugin import KNOWN_DIFFERENCES
from delegraph_tosa.plugin import OPTIONS as TOSA_OPTIONS

INSTALL = "pip install 'delegraph-iree[engine]'"
DIFFERENCES = (
    *KNOWN_DIFFERENCES,
    (  # IREE begins a maximum with the least finite float, where TOSA's runtime begins with minus infinity
        "aten.max_pool2d.default aten.max_pool2d_with_indices.default aten.amax.default aten.amin.default "
        "aten.max.dim aten.min.dim",
        "of nothing but infinities of one sign is the number that is nearest to them",
    ),
    # MLIR makes a constant of such a product before it is compiled
    ("aten.mul.Tensor aten.mul.Scalar", "of NaN or infinity by a constant that is 0 everywhere is 0"),
)
OPTIONS = (
    OptionSpec("target", str, "llvm-cpu", choices=("llvm-cpu", "vulkan-spirv"), help="what IREE compiles for"),
    OptionSpec("cpu", str, "host", help="processor of llvm-cpu: host, generic, or a name that LLVM knows"),
    OptionSpec("flags", str, "", help="further arguments of iree-compile, separated by spaces"),
    *(option for option in TOSA_OPTIONS if option.name in ("spec", "debug_artifact_path")),
)


@hookimpl
def delegraph_backends() -> list[BackendSpec]:
    return [
        BackendSpec(
            name="iree",
            backend_id="IREEBackend",
            target="delegraph_iree.backend:IREEBackend",
            api=2,
            summary="IREE modules for processors and Vulkan, by way of TOSA",
            requires=("iree.compiler",),
            install_hint=INSTALL,
            options=OPTIONS,
            known_differences=DIFFERENCES,
            composes=("delegraph-tosa",),
        )
    ]


@hookimpl
def delegraph_partitioners() -> list[PartitionerSpec]:
    return [PartitionerSpec("iree", backend="iree", target="delegraph_iree.partitioner:IREEPartitioner", default=True)]


@hookimpl
def delegraph_runtimes() -> list[RuntimeSpec]:
    return [RuntimeSpec("iree", target="delegraph_iree.runtime:IREERuntime", requires=("iree.runtime",))]


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
