"""The light module of delegraph-openvino; it imports neither torch, numpy nor OpenVINO."""

from __future__ import annotations

from delegraph.plugin import (
    BackendSpec,
    BackendTraits,
    OptionSpec,
    PartitionerSpec,
    QuantizerSpec,
    RuntimeSpec,
    hookimpl,
)

ON_NAN = (
    "aten.relu.default aten.hardtanh.default aten.relu6.default"
    " aten.hardsigmoid.default aten.amax.default aten.amin.default aten.max.default"
    " aten.min.default aten.max.dim aten.min.dim aten.argmax.default"
    " aten.argmin.default aten.sort.default aten.sort.stable aten.argsort.default"
    " aten.topk.default aten._softmax.default aten.softmax.int"
    " aten._log_softmax.default aten.log_softmax.int aten.logsumexp.default"
    " aten.scaled_dot_product_attention.default aten.layer_norm.default"
    " aten.linalg_vector_norm.default aten.max_pool1d.default aten.max_pool2d.default"
    " aten.max_pool3d.default aten.max_pool2d_with_indices.default"
    " aten.max_pool3d_with_indices.default aten.adaptive_max_pool1d.default"
    " aten.adaptive_max_pool2d.default aten.adaptive_max_pool3d.default"
    " aten.grid_sampler_2d.default aten.bucketize.Tensor"
)
"""Operators that differ from eager on OpenVINO's CPU for NaN and infinities."""
ON_SUBNORMAL = (
    "aten.div.Tensor aten.div.Tensor_mode aten.exp.default aten.sigmoid.default"
)
"""Operators that take a subnormal divisor or result for 0 on OpenVINO's CPU."""


KNOWN_DIFFERENCES = (
    (ON_NAN, "of NaN or infinity differs on OpenVINO's CPU"),
    (ON_SUBNORMAL, "takes subnormal numbers for 0 on OpenVINO's CPU"),
)


@hookimpl
def delegraph_backends() -> list[BackendSpec]:
    options = (
        OptionSpec(
            "device",
            default="CPU",
            help="OpenVINO's device name: CPU, GPU, GPU.1, NPU, AUTO, HETERO:GPU,CPU",
        ),
        # not declared as choices: with each choice, a backend must compute the same as
        # eager
        OptionSpec(
            "precision",
            default="f32",
            help="type of floats: f32, f16, bf16, or default: OpenVINO's for the device",
        ),
        OptionSpec(
            "properties",
            help="further OpenVINO properties: INFERENCE_NUM_THREADS=4,NUM_STREAMS=2",
        ),
    )
    return [
        BackendSpec(
            name="openvino",
            backend_id="OpenVINOBackend",
            target="delegraph_openvino.backend:OpenVINOBackend",
            api=1,
            summary="Intel's CPUs, GPUs and NPUs, through OpenVINO",
            requires=("openvino",),
            install_hint="pip install openvino==2026.4.1",
            options=options,
            traits=BackendTraits(known_differences=KNOWN_DIFFERENCES),
        )
    ]


@hookimpl
def delegraph_partitioners() -> list[PartitionerSpec]:
    return [
        PartitionerSpec(
            "openvino",
            "openvino",
            "delegraph_openvino.support:OpenVINOPartitioner",
            default=True,
        )
    ]


@hookimpl
def delegraph_runtimes() -> list[RuntimeSpec]:
    runtime = "delegraph_openvino.runtime:OpenVINORuntime"
    return [
        RuntimeSpec(
            "openvino",
            runtime,
            requires=("openvino",),
            native="a program for OpenVINO's compiler",
        )
    ]


@hookimpl
def delegraph_quantizers() -> list[QuantizerSpec]:
    """Declare the quantizer of TOSA, which belongs to another distribution."""
    needs = ("delegraph_tosa", "torchao")
    hint = "pip install delegraph-tosa delegraph-quantize"
    return [
        QuantizerSpec(
            "openvino",
            "delegraph_tosa.quantizer:TOSAQuantizer",
            requires=needs,
            install_hint=hint,
        )
    ]
