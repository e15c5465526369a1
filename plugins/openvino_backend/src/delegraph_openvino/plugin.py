"""The light module: what this distribution offers. Imports neither torch nor numpy nor OpenVINO."""

from __future__ import annotations

from delegraph.plugin import BackendSpec, OptionSpec, PartitionerSpec, RuntimeSpec, hookimpl

ON_NAN = (
    "aten.relu.default aten.clamp.default aten.hardtanh.default aten.relu6.default aten.exp.default aten.gt.Scalar "
    "aten.maximum.default aten.minimum.default aten.where.self aten.amax.default aten.amin.default aten.gt.Tensor "
    "aten._softmax.default aten.softmax.int aten.max_pool2d.default aten.max_pool2d_with_indices.default"
)
"""Operators that OpenVINO's CPU computes for numbers; of NaN and infinities it makes something else than eager does."""


@hookimpl
def delegraph_backends() -> list[BackendSpec]:
    options = (
        OptionSpec("device", default="CPU", help="as OpenVINO names it: CPU, GPU, GPU.1, NPU, AUTO, HETERO:GPU,CPU"),
        # not declared as choices: with any of these a backend has to compute what eager computes
        OptionSpec("precision", default="f32", help="of floats: f32, f16, bf16, or default: OpenVINO's for the device"),
        OptionSpec("properties", help="more of OpenVINO's properties: INFERENCE_NUM_THREADS=4,NUM_STREAMS=2"),
    )
    return [
        BackendSpec(
            name="openvino",
            backend_id="OpenVINOBackend",
            target="delegraph_openvino.backend:OpenVINOBackend",
            api=2,
            summary="Intel's CPUs, GPUs and NPUs, through OpenVINO",
            requires=("openvino",),
            install_hint="pip install openvino==2026.4.1",
            options=options,
            known_differences=((ON_NAN, "of NaN or infinity is another on OpenVINO's CPU"),),
        )
    ]


@hookimpl
def delegraph_partitioners() -> list[PartitionerSpec]:
    return [PartitionerSpec("openvino", "openvino", "delegraph_openvino.support:OpenVINOPartitioner", default=True)]


@hookimpl
def delegraph_runtimes() -> list[RuntimeSpec]:
    runtime = "delegraph_openvino.runtime:OpenVINORuntime"
    return [RuntimeSpec("openvino", runtime, requires=("openvino",), native="a program for OpenVINO's compiler")]
