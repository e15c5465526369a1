"""Declare the backend, the runtime and the format of this distribution."""

from __future__ import annotations

from importlib.util import find_spec

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

ON_NAN = "aten.max_pool2d.default"
"""Operators of which ONNX Runtime's CPU computes something else for NaN."""
WHEELS = ("qnn", "openvino", "webgpu", "nv-tensorrt-rtx", "mlx")
"""Execution providers that are wheels; others are found by their names as well."""
NEEDS = ("onnx", "onnxscript", "onnxruntime")
INSTALL = "pip install 'delegraph-onnx[runtime]'"


def package_of(ep: str) -> str:
    """Return the name of the installed package of a provider; "" if there is none."""
    stem = ep.replace("-", "_")
    for name in (f"onnxruntime_{stem}", f"onnxruntime_ep_{stem}"):
        if find_spec(name) is not None:
            return name
    return ""


@hookimpl
def delegraph_backends() -> list[BackendSpec]:
    providers = ["cpu", *(ep for ep in WHEELS if package_of(ep))]
    options = (
        OptionSpec(
            "ep",
            default="cpu",
            help="execution provider: cpu, qnn, openvino, cuda, ...",
        ),
        OptionSpec("ep_options", help="options of the provider: NAME=VALUE,NAME=VALUE"),
        OptionSpec("soc", help="with ep=qnn: a Snapdragon, such as SM8750"),
        OptionSpec("htp_arch", help="with ep=qnn: version of its NPU, such as 79"),
        OptionSpec(
            "threads",
            int,
            default=0,
            help="threads of a call; 0: ONNX Runtime's choice",
        ),
        OptionSpec(
            "session",
            help="session options: graph_optimization_level=extended,NAME=VALUE",
        ),
    )
    return [
        BackendSpec(
            name="onnx",
            backend_id="OnnxBackend",
            target="delegraph_onnx.backend:OnnxBackend",
            api=1,
            summary=f"ONNX Runtime; execution providers here: {', '.join(providers)}",
            requires=NEEDS,
            install_hint=INSTALL,
            options=options,
            traits=BackendTraits(
                known_differences=((ON_NAN, "of NaN is another on ONNX Runtime's CPU"),)
            ),
        )
    ]


@hookimpl
def delegraph_partitioners() -> list[PartitionerSpec]:
    return [
        PartitionerSpec(
            "onnx", "onnx", "delegraph_onnx.support:OnnxPartitioner", default=True
        )
    ]


@hookimpl
def delegraph_runtimes() -> list[RuntimeSpec]:
    return [
        RuntimeSpec(
            "onnx",
            "delegraph_onnx.runtime:OnnxRuntime",
            requires=("onnx", "onnxruntime"),
            native="a program for ONNX Runtime's compilers",
        )
    ]


@hookimpl
def delegraph_quantizers() -> list[QuantizerSpec]:
    """Declare the quantizer of TOSA, which belongs to another distribution."""
    return [
        QuantizerSpec(
            "onnx",
            "delegraph_tosa.quantizer:TOSAQuantizer",
            requires=("delegraph_tosa", "torchao"),
            install_hint="pip install delegraph-tosa delegraph-quantize",
        )
    ]


@hookimpl
def delegraph_formats() -> list[FormatSpec]:
    return [
        FormatSpec(
            ".onnx",
            "delegraph_onnx.format:OnnxFormat",
            "an ONNX model, one whole delegate",
            requires=("onnx", "onnxruntime"),
            install_hint=INSTALL,
        )
    ]
