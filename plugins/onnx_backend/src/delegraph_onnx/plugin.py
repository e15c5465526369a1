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

NAN_IGNORED = (
    "aten.amax.default aten.amin.default aten.max.default aten.min.default"
    " aten.max.dim aten.min.dim aten.argmax.default aten.argmin.default"
    " aten.linalg_vector_norm.default aten.scatter_reduce.two"
    " aten.max_pool1d.default aten.max_pool2d.default aten.max_pool3d.default"
    " aten.max_pool1d_with_indices.default aten.max_pool2d_with_indices.default"
    " aten.max_pool3d_with_indices.default"
)
"""Operators that take the largest or smallest element."""
NAN_DIFFERS = (
    "aten.logit.default aten.heaviside.default aten.grid_sampler.default"
    " aten.grid_sampler_2d.default aten.grid_sampler_3d.default"
    " quantized_decomposed.quantize_per_tensor.default"
    " quantized_decomposed.quantize_per_channel.default"
)
"""Operators whose result for NaN is another on ONNX Runtime's CPU."""
KNOWN_DIFFERENCES = (
    (NAN_IGNORED, "may ignore NaN on ONNX Runtime's CPU"),
    (NAN_DIFFERS, "of NaN differs on ONNX Runtime's CPU"),
    ("aten.gelu.default", "of infinity is infinity; eager gives NaN"),
)
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
            traits=BackendTraits(known_differences=KNOWN_DIFFERENCES),
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
