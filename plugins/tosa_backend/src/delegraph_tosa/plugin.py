"""Light module of delegraph-tosa. Imports neither torch nor numpy."""

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

OPTIONS = (
    OptionSpec(
        "spec",
        str,
        "TOSA-1.0+FP+INT",
        help="target: version, profiles, extensions, level (TOSA-1.0+FP+8k)",
    ),
    OptionSpec(
        "debug_artifact_path",
        str,
        None,
        help="folder that gets a .tosa file of every partition",
    ),
    OptionSpec(
        "input_order",
        str,
        None,
        help="comma-separated permutation of the delegate's inputs",
    ),
    OptionSpec(
        "locations",
        bool,
        False,
        help="whether the file names node, module and source line of each operator",
    ),
    OptionSpec(
        "metadata",
        bool,
        True,
        help=(
            "whether the file ends with the scales of its quantized inputs and outputs"
        ),
    ),
    OptionSpec(
        "named_constants",
        bool,
        False,
        help="whether large constants are named data, once for all methods",
    ),
    OptionSpec(
        "int32_inputs",
        list,
        help="int64 inputs that fit into 32 bits: name, or name=LOWEST..HIGHEST",
    ),
)

_BORDERS = (
    "is finite next to an infinity at the border; eager multiplies it by 0, which"
    " gives NaN"
)
KNOWN_DIFFERENCES = (
    (
        "aten.gelu.default",
        "of infinity is infinity; eager gives NaN, except for tensors of one element",
    ),
    ("aten.upsample_bilinear2d.default", _BORDERS),
    ("aten.upsample_bilinear2d.vec", _BORDERS),
)


@hookimpl
def delegraph_backends() -> list[BackendSpec]:
    return [
        BackendSpec(
            name="tosa",
            backend_id="TOSABackend",
            target="delegraph_tosa.backend:TOSABackend",
            api=1,
            summary=(
                "TOSA 1.0 flatbuffers for Arm NPUs and anything else that reads TOSA"
            ),
            options=OPTIONS,
            traits=BackendTraits(known_differences=KNOWN_DIFFERENCES),
            default=True,
        )
    ]


@hookimpl
def delegraph_partitioners() -> list[PartitionerSpec]:
    return [
        PartitionerSpec(
            "tosa",
            backend="tosa",
            target="delegraph_tosa.partitioner:TOSAPartitioner",
            default=True,
        )
    ]


@hookimpl
def delegraph_runtimes() -> list[RuntimeSpec]:
    return [RuntimeSpec("tosa", target="delegraph_tosa.runtime:TOSARuntime")]


@hookimpl
def delegraph_quantizers() -> list[QuantizerSpec]:
    hint = "pip install delegraph-quantize"
    return [
        QuantizerSpec(
            "tosa",
            "delegraph_tosa.quantizer:TOSAQuantizer",
            requires=("torchao",),
            install_hint=hint,
        )
    ]


@hookimpl
def delegraph_formats() -> list[FormatSpec]:
    return [
        FormatSpec(
            ".tosa",
            "delegraph_tosa.format:TosaFormat",
            "a TOSA flatbuffer, one whole delegate",
        )
    ]
