"""The light module of delegraph-vgf; it imports neither torch, numpy nor Arm's SDK."""

from __future__ import annotations

from delegraph.plugin import (
    BackendSpec,
    BackendTraits,
    FormatSpec,
    OptionSpec,
    PartitionerSpec,
    RuntimeSpec,
    hookimpl,
)
from delegraph_tosa.plugin import KNOWN_DIFFERENCES
from delegraph_tosa.plugin import OPTIONS as TOSA_OPTIONS

INSTALL = "pip install 'delegraph-vgf[runtime]'"
OPTIONS = (
    OptionSpec(
        "flags",
        str,
        "",
        help="further arguments of model-converter, separated by spaces",
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
            name="vgf",
            backend_id="VgfBackend",
            target="delegraph_vgf.backend:VgfBackend",
            api=1,
            summary="VGF files for Vulkan's ML extensions, by way of TOSA",
            requires=("model_converter",),
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
            "vgf",
            backend="vgf",
            target="delegraph_vgf.partitioner:VgfPartitioner",
            default=True,
        )
    ]


@hookimpl
def delegraph_runtimes() -> list[RuntimeSpec]:
    needs = ("scenario_runner", "emulation_layer")
    native = "a program for the Vulkan driver"
    return [
        RuntimeSpec(
            "vgf",
            target="delegraph_vgf.runtime:VgfRuntime",
            requires=needs,
            native=native,
        )
    ]


@hookimpl
def delegraph_formats() -> list[FormatSpec]:
    return [
        FormatSpec(
            ".vgf", "delegraph_vgf.format:VgfFormat", "a VGF file, one whole delegate"
        )
    ]
