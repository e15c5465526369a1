"""Runs blobs with OpenVINO, on any of its devices that this machine has."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import openvino as ov
import torch
from delegraph.backend import CompileSpec, from_specs
from delegraph.errors import FormatError, NoRuntime, OptionError
from delegraph.named_data import expect_data
from delegraph.runtime import (
    BackendRuntime,
    BlobHeader,
    Compatibility,
    Delegate,
)
from delegraph_engines import (
    Kernel,
    Signature,
    calls_in,
    computed_by,
    read_properties,
    saturates,
)

from .engine_calls import Counting, Observing, Pool
from .frontend import DTYPES, reason_of, type_of

MARK = b"delegraph-openvino-4"
"""The end of each blob, which holds the compressed XML and the small constants of an
IR.

Two facts are stored with it: the size of the XML, "xml", and its compressed size,
"packed".
"""
WEIGHT = "openvino/"
"""What the name of a parameter begins with in whose place a weight belongs; it is a key
of the named data.
"""
CACHE = "DELEGRAPH_OPENVINO_CACHE"
"""An environment variable: the folder in which OpenVINO keeps what it compiled. A
program does not name it: a file of somebody else would choose where this machine writes
and what it reads.
"""
PREFIX = "openvino_"
"""What the keys of the compile specs begin with; an option's name follows."""
DEFAULTS = {"device": "CPU", "precision": "f32", "properties": ""}
PRECISIONS = ("f32", "f16", "bf16", "default")
PROPERTIES = frozenset(
    "INFERENCE_NUM_THREADS NUM_STREAMS PERFORMANCE_HINT PERFORMANCE_HINT_NUM_REQUESTS"
    " EXECUTION_MODE_HINT INFERENCE_PRECISION_HINT ENABLE_CPU_PINNING"
    " ENABLE_CPU_RESERVATION ENABLE_HYPER_THREADING SCHEDULING_CORE_TYPE"
    " MODEL_DISTRIBUTION_POLICY MODEL_PRIORITY CPU_DENORMALS_OPTIMIZATION"
    " CPU_SPARSE_WEIGHTS_DECOMPRESSION_RATE DYNAMIC_QUANTIZATION_GROUP_SIZE"
    " KV_CACHE_PRECISION LP_TRANSFORMS_MODE PERF_COUNT COMPILATION_NUM_THREADS"
    " GPU_QUEUE_PRIORITY GPU_QUEUE_THROTTLE GPU_ENABLE_LOOP_UNROLLING"
    " GPU_DISABLE_WINOGRAD_CONVOLUTION NPU_TURBO NPU_TILES ALLOW_AUTO_BATCHING"
    " AUTO_BATCH_TIMEOUT ENABLE_STARTUP_FALLBACK ENABLE_RUNTIME_FALLBACK".split()
)
"""OpenVINO's properties that a program may set: of how it computes. Others, such as
WEIGHTS_PATH, name files.
"""
EXACT = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
"""OpenVINO would quantize the inputs of layers with integer weights, an error of one
percent (openvino 2026.4.1).
"""
Specs = Sequence[CompileSpec]
NamedData = Mapping[str, bytes]
ELEMENTWISE = ("Add", "Subtract", "Multiply", "Divide", "Maximum", "Minimum", "PRelu")
"""Operators whose result OpenVINO may write over a constant operand."""
_VIRTUAL = {"AUTO", "MULTI", "HETERO", "BATCH"}


def settings_of(compile_specs: Specs) -> dict[str, str]:
    """All options by name. Raises OptionError for any other compile spec, which nobody
    would read.
    """
    return from_specs(compile_specs, PREFIX, DEFAULTS, only=True)[0]


def properties_of(settings: Mapping[str, str]) -> dict[str, str]:
    """OpenVINO's properties. Raises OptionError for those that are not ``NAME=VALUE``
    or not in ``PROPERTIES``.
    """
    precision = settings["precision"]
    properties = read_properties("properties", settings["properties"], PROPERTIES)
    if precision not in PRECISIONS:
        raise OptionError(
            "option-invalid",
            f"option 'precision' is one of {PRECISIONS}, not {precision!r:.40}",
        )
    chosen = (
        {}
        if precision == "default"
        else {"INFERENCE_PRECISION_HINT": precision, **EXACT}
    )
    return {**chosen, **properties}


@cache
def core() -> ov.Core:
    """OpenVINO's core. On processors whose int8 kernels compute something else it
    computes quantized calls in floats.

    The property LP_TRANSFORMS_MODE=YES of a program asks for these kernels all the
    same.
    """
    made = ov.Core()
    if saturates(torch.cpu.get_capabilities()):
        made.set_property("CPU", {"LP_TRANSFORMS_MODE": "NO"})
    return made


def why_absent(device: str) -> str | None:
    """Why this machine has no such device, or not all parts of one like
    ``HETERO:GPU,CPU``; None if it has them.
    """
    here = core().available_devices
    if {*re.findall(r"[A-Za-z_]+", device)} <= {
        name.partition(".")[0] for name in here
    } | _VIRTUAL:
        return None
    return f"OpenVINO has no {device:.40} on this machine; it has {', '.join(here)}"


def compile_model(model: ov.Model, settings: Mapping[str, str], **more: str) -> Any:
    """OpenVINO's compiled model, with ``more`` of its properties. Raises RuntimeError
    with OpenVINO's reason.
    """
    if folder := os.environ.get(CACHE):
        more["CACHE_DIR"] = folder
    return core().compile_model(
        model, settings["device"], {**properties_of(settings), **more}
    )


class OpenVINORuntime(BackendRuntime):
    """Loads IRs into OpenVINO. Calls of one delegate in several threads have an
    inference request each.
    """

    thread_safe = any_strides = True

    @staticmethod
    def load(
        processed_bytes: bytes, compile_specs: Specs, named_data: NamedData
    ) -> Delegate:
        """Raises FormatError for a damaged blob or missing weights, NoRuntime without
        the device.
        """
        return Loaded(read_model(processed_bytes, named_data), compile_specs)

    @staticmethod
    def observe(
        processed_bytes: bytes, compile_specs: Specs, named_data: NamedData
    ) -> Observing:
        """As ``load``; each call's last operator becomes a result, so that OpenVINO
        fuses less than otherwise.
        """
        model, memory, signature = read_model(processed_bytes, named_data)
        last: dict[int, Any] = {}
        for node in model.get_ordered_ops():
            if node.get_output_size() == 1 and node.get_element_type() in DTYPES:
                last |= dict.fromkeys(
                    calls_in(node.get_friendly_name())[:1], node.output(0)
                )
        model.add_results([ov.opset13.result(output) for output in last.values()])
        # of any shape
        inside = [
            (DTYPES[output.get_element_type()], (-1,)) for output in last.values()
        ]
        signature = replace(signature, outputs=(*signature.outputs, *inside))
        return Observing(Loaded((model, memory, signature), compile_specs), last)

    @staticmethod
    def profile(
        processed_bytes: bytes, compile_specs: Specs, named_data: NamedData
    ) -> Counting:
        """As ``load``; OpenVINO counts the time of kernels, and names their calls, but
        those that it folds a norm into.

        Its Reorder changes nothing but the layout of a value.
        """
        loaded = Loaded(
            read_model(processed_bytes, named_data), compile_specs, PERF_COUNT="YES"
        )
        kernels = []
        for kernel in loaded.compiled.get_runtime_model().get_ordered_ops():
            name = kernel.get_friendly_name()
            info = kernel.get_rt_info()
            kind, made_of = (
                info[key].astype(str) for key in ("layerType", "originalLayersNames")
            )
            kernels.append(
                Kernel(
                    name,
                    calls_in(f"{made_of},{name}"),
                    _read_by(kernel),
                    kind == "Reorder",
                )
            )
        named = [
            (calls_in(node.get_friendly_name()), _read_by(node))
            for node in loaded.kept[0].get_ordered_ops()
        ]
        reads = [
            (call, operand)
            for calls, names in named
            for call in calls
            for operand in calls_in(",".join(names))
        ]
        computes = computed_by(kernels, reads)

        def read(calls: int) -> Iterator[tuple[tuple[int, ...] | None, float]]:
            # means of all calls
            for kernel in loaded.requests.idle[-1].get_profiling_info():
                yield (
                    computes.get(kernel.node_name),
                    calls * kernel.real_time.total_seconds(),
                )

        loaded.signature, borders = loaded.signature.timed()
        return Counting(loaded, read, borders)

    @staticmethod
    def compatible(
        header: BlobHeader, compile_specs: Specs, device: str | None = None
    ) -> Compatibility | None:
        """By the device, and by the release that wrote the IR: OpenVINO promises to
        read those of older releases.
        """
        if not _is_packed_xml(header.beginning):
            return Compatibility(
                "cannot",
                f"it begins with {header.beginning[:24]!r}, not with a compressed IR"
                " in XML",
            )
        if why := why_absent(device or settings_of(compile_specs)["device"]):
            return Compatibility("cannot", why)
        return Compatibility.by_release(
            header.fingerprint, f"openvino {ov.get_version()}", reads_older=True
        )


def _read_by(node: Any) -> list[str]:
    return [
        operand.get_source_output().get_node().get_friendly_name()
        for operand in node.inputs()
    ]


Read = tuple[ov.Model, list[Any], Signature]
"""A model with its weights, the arrays that have to outlive it, and the types of a
call.
"""


def read_model(blob: bytes, named_data: NamedData) -> Read:
    """What a blob holds. Raises FormatError if it is damaged, or is called otherwise
    than it says.
    """
    files, signature, facts = Signature.unseal(blob, MARK)
    xml, constants = _unpack(files, facts)
    memory = [np.frombuffer(constants or b"\0", np.uint8)]
    try:
        model = core().read_model(
            xml, ov.Tensor(memory[0], [len(constants)], ov.Type.u8)
        )
        for parameter in (
            p
            for p in model.get_parameters()
            if p.get_friendly_name().startswith(WEIGHT)
        ):
            key = parameter.get_friendly_name()
            kind = parameter.get_element_type()
            shape = parameter.output(0).get_shape()
            memory.append(
                np.frombuffer(
                    expect_data(named_data, key, int(np.prod(shape)) * kind.size),
                    np.uint8,
                )
            )
            weight = ov.op.Constant(
                ov.Tensor(memory[-1], shape, kind), shared_memory=True
            )
            parameter.output(0).replace(weight.output(0))
            model.remove_parameter(parameter)
        model.validate_nodes_and_infer_types()
    except RuntimeError as e:
        raise FormatError(
            "format-invalid", f"OpenVINO does not read this blob: {reason_of(e)}"
        ) from e
    taken = {
        parameter.get_friendly_name(): type_of(parameter.output(0))
        for parameter in model.get_parameters()
    }
    # None: it is left out, nobody reads it
    inputs = [taken.get(f"x{place}") for place in range(len(signature.inputs))]
    why = signature.why_otherwise(inputs, map(type_of, model.outputs))
    if len(model.get_parameters()) > len(inputs) - inputs.count(None):
        why = "takes inputs that no call gives"
    if why is not None:  # OpenVINO reads memory as the model says
        raise FormatError("format-invalid", f"an IR that {why}")
    fold_operands(model)
    return model, memory, signature


def _unpack(files: memoryview, facts: Mapping[str, Any]) -> tuple[bytes, memoryview]:
    """Return the XML and the constants of an IR. Raises FormatError if they are not
    what ``facts`` say.
    """
    size = facts.get("xml")
    packed = facts.get("packed")
    if (
        type(size) is not int
        or type(packed) is not int
        or not 0 <= packed <= len(files)
        or size < 0
    ):
        raise FormatError(
            "format-invalid", "a blob of OpenVINOBackend without the size of its XML"
        )
    try:
        reader = zlib.decompressobj()
        xml = reader.decompress(files[:packed], size + 1)
    except zlib.error as e:
        raise FormatError(
            "format-invalid",
            f"a blob of OpenVINOBackend whose XML cannot be unpacked: {e}",
        ) from e
    # OpenVINO reads other formats as well, and ONNX names files to read
    if len(xml) != size or not reader.eof or not xml.startswith(b"<?xml"):
        raise FormatError(
            "format-invalid", "a blob of OpenVINOBackend that holds no IR in XML"
        )
    return xml, files[packed:]


def _is_packed_xml(beginning: bytes) -> bool:
    """Whether these are the first bytes of compressed XML."""
    try:
        return zlib.decompressobj().decompress(beginning, 5) == b"<?xml"
    except zlib.error:
        return False


def fold_operands(model: ov.Model, largest: int | None = None) -> None:
    """Compute the constant operands of elementwise operators, such as dequantized ones
    or the first state of an LSTM.

    OpenVINO would compute them when it compiles, and may let the operator write its
    result over them. The next call would find that result there (openvino 2026.4.1).
    Weights of matrix products and convolutions stay quantized.

    ``largest``: the most bytes of an operand that is computed; None for any number.
    Large operands are computed when a blob is loaded, since a quantized constant takes
    a quarter of the file.
    """
    varying = {node.get_name() for node in model.get_parameters()}
    operands = list[Any]()
    for node in model.get_ordered_ops():
        constant = [
            i
            for i in node.inputs()
            if i.get_source_output().get_node().get_name() not in varying
        ]
        if len(constant) == len(node.inputs()):
            continue
        varying.add(node.get_name())
        if node.get_type_name() in ELEMENTWISE:
            operands += [
                i for i in constant if i.get_source_output().get_node().inputs()
            ]
        elif node.get_type_name() == "Gather" and _has_scales_within_rows(
            node.input_value(0).get_node()
        ):
            operands.append(node.input(0))
    if largest is not None:
        operands = [operand for operand in operands if _bytes_of(operand) < largest]
    if not operands:
        return
    computed = ov.Model([operand.get_source_output() for operand in operands], [])
    compiled = ov.compile_model(computed, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    request = compiled.create_infer_request()
    request.infer()
    for k, operand in enumerate(operands):
        # a tensor keeps its type; as an array of numpy, bfloat16 would become float16
        value = ov.op.Constant(request.get_output_tensor(k))
        operand.replace_source_output(value.output(0))


def _has_scales_within_rows(table: Any) -> bool:
    """Whether the elements of one row of a dequantized table have several scales.

    OpenVINO has a kernel for one scale a row: with others it writes beyond its memory
    (openvino 2026.4.1).
    """
    if table.get_type_name() != "Multiply":
        return False
    scales = table.input_value(1).get_partial_shape()
    return scales.rank.is_dynamic or any(size != 1 for size in list(scales)[1:])


def _bytes_of(operand: Any) -> int:
    """Return the bytes of an input of an operator; 0 if its shape is not known."""
    if operand.get_partial_shape().is_dynamic:
        return 0
    return int(np.prod(list(operand.get_shape()))) * int(
        operand.get_element_type().size
    )


class Loaded:
    """A compiled model, called with tensors; the results are new tensors."""

    def __init__(self, read: Read, compile_specs: Specs, **properties: str) -> None:
        # OpenVINO reads constants where they lie: they have to stay
        self.kept = model, _, self.signature = read
        settings = settings_of(compile_specs)
        if why := why_absent(settings["device"]):
            raise NoRuntime(
                "no-runtime",
                why,
                hint="lower with the option device set to one of these",
            )
        try:
            self.compiled = compile_model(model, settings, **properties)
        except RuntimeError as e:
            raise FormatError(
                "format-invalid", f"OpenVINO does not compile this blob: {reason_of(e)}"
            ) from e
        # the frontend leaves out inputs that no result depends on; the name of one
        # tells its place in a call
        self.inputs = [
            (int(p.get_friendly_name()[1:]), p.get_element_type())
            for p in model.get_parameters()
        ]
        self.requests = Pool(self.compiled.create_infer_request)

    def __call__(self, *args: torch.Tensor | float) -> tuple[Any, ...]:
        # lives until the request has read it
        arrays = self.signature.arrays(args, int64_bits=32)
        with self.requests.one() as request:
            for k, (place, kind) in enumerate(self.inputs):
                request.set_input_tensor(
                    k, ov.Tensor(arrays[place], arrays[place].shape, kind)
                )
            request.infer()
            # Copied, since OpenVINO with memory of ours for its results writes those
            # that are an input as it is into that input, and leaves the result as it
            # was. One after the other: a list of all takes 40 microseconds.
            return self.signature.results(
                request.get_output_tensor(k).data
                for k in range(len(self.signature.outputs))
            )
