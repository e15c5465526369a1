"""Runs blobs with OpenVINO, on any of its devices that this machine has."""

from __future__ import annotations

import itertools
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import openvino as ov
import torch
from delegraph.backend import CompileSpec
from delegraph.errors import FormatError, NoRuntime, OptionError
from delegraph.runtime import (
    BackendRuntime,
    BlobHeader,
    Compatibility,
    Delegate,
)
from delegraph_engines import (
    Kernel,
    Observing,
    Signature,
    calls_in,
    compare_releases,
    computed_by,
    expect_data,
    from_specs,
    read_properties,
    saturates,
)

from .engine_calls import Counting, Pool
from .frontend import DTYPES, reason_of, type_of

MARK = b"delegraph-openvino-4"
"""The end of each blob, which holds the compressed XML and small constants of an IR.

Two facts are stored with it: the size of the XML, "xml", and its compressed size,
"packed".
"""
WEIGHT = "openvino/"
"""The beginning of the name of a parameter for a weight, a key of the named data."""
CACHE = "DELEGRAPH_OPENVINO_CACHE"
"""An environment variable: the folder for models that OpenVINO compiled.

It is no option of a program. Otherwise another user's file could choose where this
machine writes and reads.
"""
PREFIX = "openvino_"
"""The beginning of the keys of the compile specs; an option's name follows."""
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
"""OpenVINO's properties of the computation, which a program may set.

Others, such as WEIGHTS_PATH, name files.
"""
EXACT = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
"""Switches off OpenVINO's quantization of inputs of layers with integer weights.

It has an error of one percent (openvino 2026.4.1).
"""
Specs = Sequence[CompileSpec]
NamedData = Mapping[str, bytes]
ELEMENTWISE = ("Add", "Subtract", "Multiply", "Divide", "Maximum", "Minimum", "PRelu")
"""Operators with results that OpenVINO may write over a constant operand."""
_VIRTUAL = {"AUTO", "MULTI", "HETERO", "BATCH"}
"""Devices that pass a model to others. ``available_devices`` does not list them."""


def settings_of(compile_specs: Specs) -> dict[str, str]:
    """Return all options by name; OptionError for any other compile spec."""
    return from_specs(compile_specs, PREFIX, DEFAULTS, only=True)[0]


def properties_of(settings: Mapping[str, str]) -> dict[str, str]:
    """Return OpenVINO's properties.

    Raises OptionError for properties not in the form ``NAME=VALUE``, or not in
    ``PROPERTIES``.
    """
    precision = settings["precision"]
    properties = read_properties("properties", settings["properties"], PROPERTIES)
    if precision not in PRECISIONS:
        raise OptionError(
            "option-invalid",
            f"option 'precision' must be one of {PRECISIONS}, not {precision!r:.40}",
        )
    if precision == "default":
        return properties
    return {"INFERENCE_PRECISION_HINT": precision, **EXACT, **properties}


@cache
def core() -> ov.Core:
    """Return OpenVINO's core.

    On processors with wrong int8 kernels, it computes quantized calls in floats. The
    property LP_TRANSFORMS_MODE=YES of a program enables these kernels anyway.
    """
    made = ov.Core()
    if saturates(torch.cpu.get_capabilities()):
        made.set_property("CPU", {"LP_TRANSFORMS_MODE": "NO"})
    return made


def why_absent(device: str) -> str | None:
    """Return why this machine lacks a device, or a part of ``HETERO:GPU,CPU``, or None."""
    here = core().available_devices
    kinds = {name.partition(".")[0] for name in here}
    parts = set(re.findall(r"[A-Za-z_]+", device))
    if parts <= kinds | _VIRTUAL:
        return None
    return f"OpenVINO has no {device:.40} on this machine; it has {', '.join(here)}"


def compile_model(model: ov.Model, settings: Mapping[str, str], **more: str) -> Any:
    """Return OpenVINO's compiled model, with ``more`` properties.

    Raises RuntimeError with OpenVINO's reason.
    """
    folder = os.environ.get(CACHE)
    if folder:
        more["CACHE_DIR"] = folder
    properties = {**properties_of(settings), **more}
    return core().compile_model(model, settings["device"], properties)


class OpenVINORuntime(BackendRuntime):
    """Loads IRs into OpenVINO.

    Each thread that calls a delegate has its own inference request.
    """

    thread_safe = True
    any_strides = True

    @staticmethod
    def load(
        processed_bytes: bytes, compile_specs: Specs, named_data: NamedData
    ) -> Delegate:
        """Load a blob.

        Raises FormatError for a damaged blob or missing weights, NoRuntime without the
        device.
        """
        return Loaded(read_model(processed_bytes, named_data), compile_specs)

    @staticmethod
    def observe(
        processed_bytes: bytes, compile_specs: Specs, named_data: NamedData
    ) -> Observing:
        """Load a blob that also returns the result of each call.

        A result is that of the call's last operator. With the additional results,
        OpenVINO fuses fewer operators.
        """
        model, memory, signature = read_model(processed_bytes, named_data)
        last: dict[int, Any] = {}
        for node in model.get_ordered_ops():
            calls = calls_in(node.get_friendly_name())
            has_one_result = node.get_output_size() == 1
            if calls and has_one_result and node.get_element_type() in DTYPES:
                last[calls[0]] = node.output(0)
        model.add_results(map(ov.opset13.result, last.values()))
        dtypes = [DTYPES[output.get_element_type()] for output in last.values()]
        any_shape = (-1,)
        observed = [(dtype, any_shape) for dtype in dtypes]
        signature = replace(signature, outputs=(*signature.outputs, *observed))
        return Observing(Loaded(Read(model, memory, signature), compile_specs), last)

    @staticmethod
    def profile(
        processed_bytes: bytes, compile_specs: Specs, named_data: NamedData
    ) -> Counting:
        """Load a blob whose delegate measures the seconds of each kernel.

        OpenVINO names the calls that a kernel computes, except norms that it folds. Its
        Reorder changes only the layout of a value.
        """
        loaded = Loaded(
            read_model(processed_bytes, named_data), compile_specs, PERF_COUNT="YES"
        )
        kernels = []
        for kernel in loaded.compiled.get_runtime_model().get_ordered_ops():
            name = kernel.get_friendly_name()
            info = kernel.get_rt_info()
            is_reorder = info["layerType"].astype(str) == "Reorder"
            calls = calls_in(f"{info['originalLayersNames'].astype(str)},{name}")
            kernels.append(Kernel(name, calls, _read_by(kernel), is_reorder))
        reads: list[tuple[int, int]] = []
        for node in loaded.kept.model.get_ordered_ops():
            operands = calls_in(",".join(_read_by(node)))
            calls = calls_in(node.get_friendly_name())
            reads += itertools.product(calls, operands)
        computes = computed_by(kernels, reads)

        def read(calls: int) -> Iterator[tuple[tuple[int, ...] | None, float]]:
            """Yield the calls of each kernel, and its seconds in all calls so far."""
            # OpenVINO reports the mean over the calls of a request
            for kernel in loaded.requests.idle[-1].get_profiling_info():
                seconds = calls * kernel.real_time.total_seconds()
                yield computes.get(kernel.node_name), seconds

        loaded.signature, borders = loaded.signature.timed()
        return Counting(loaded, read, borders)

    @staticmethod
    def compatible(
        header: BlobHeader, compile_specs: Specs, device: str | None = None
    ) -> Compatibility | None:
        """Compare the device, and the release that wrote the IR.

        OpenVINO promises to read IRs of older releases.
        """
        if not _is_packed_xml(header.beginning):
            return Compatibility(
                "cannot",
                f"it begins with {header.beginning[:24]!r}, not with a compressed IR"
                " in XML",
            )
        why = why_absent(device or settings_of(compile_specs)["device"])
        if why is not None:
            return Compatibility("cannot", why)
        return compare_releases(
            header.fingerprint, f"openvino {ov.get_version()}", reads_older=True
        )


def _read_by(node: Any) -> list[str]:
    """Return the names of the nodes whose results ``node`` reads."""
    return [
        operand.get_source_output().get_node().get_friendly_name()
        for operand in node.inputs()
    ]


class Read(NamedTuple):
    """A model with its weights, the arrays that must outlive it, and the signature."""

    model: ov.Model
    memory: list[Any]
    signature: Signature


def read_model(blob: bytes, named_data: NamedData) -> Read:
    """Return the model in a blob.

    Raises FormatError if it is damaged, or if the model does not fit its signature.
    """
    files, signature, facts = Signature.unseal(blob, MARK)
    xml, constants = _unpack(files, facts)
    memory = [np.frombuffer(constants or b"\0", np.uint8)]
    try:
        stored = ov.Tensor(memory[0], [len(constants)], ov.Type.u8)
        model = core().read_model(xml, stored)
        for parameter in model.get_parameters():
            key = parameter.get_friendly_name()
            if not key.startswith(WEIGHT):
                continue
            kind = parameter.get_element_type()
            shape = parameter.output(0).get_shape()
            data = expect_data(named_data, key, int(np.prod(shape)) * kind.size)
            memory.append(np.frombuffer(data, np.uint8))
            tensor = ov.Tensor(memory[-1], shape, kind)
            weight = ov.op.Constant(tensor, shared_memory=True)
            parameter.output(0).replace(weight.output(0))
            model.remove_parameter(parameter)
        model.validate_nodes_and_infer_types()
    except RuntimeError as e:
        raise FormatError(
            "format-invalid", f"OpenVINO cannot read this blob: {reason_of(e)}"
        ) from e
    taken = {
        parameter.get_friendly_name(): type_of(parameter.output(0))
        for parameter in model.get_parameters()
    }
    # None: the model has no such input, because no operator reads it
    inputs = [taken.get(f"x{place}") for place in range(len(signature.inputs))]
    why = signature.why_mismatch(inputs, map(type_of, model.outputs))
    if len(model.get_parameters()) > len(inputs) - inputs.count(None):
        why = "it takes more inputs than calls pass"
    if why is not None:
        # OpenVINO would read memory by the types of the model, without a check
        raise FormatError(
            "format-invalid", f"the IR does not fit the signature in its blob: {why}"
        )
    fold_operands(model)
    return Read(model, memory, signature)


def _unpack(files: memoryview, facts: Mapping[str, Any]) -> tuple[bytes, memoryview]:
    """Return the XML and the constants of an IR; FormatError if ``facts`` do not fit."""
    size: Any = facts.get("xml")
    packed: Any = facts.get("packed")
    is_valid = type(size) is int and type(packed) is int
    if not is_valid or size < 0 or not 0 <= packed <= len(files):
        raise FormatError(
            "format-invalid",
            "the blob of OpenVINOBackend is damaged: it does not begin with the size of its XML",
        )
    try:
        reader = zlib.decompressobj()
        xml = reader.decompress(files[:packed], size + 1)
    except zlib.error as e:
        raise FormatError(
            "format-invalid",
            f"the XML in the blob of OpenVINOBackend cannot be unpacked: {e}",
        ) from e
    # OpenVINO reads other formats as well, and ONNX names files to read
    if len(xml) != size or not reader.eof or not xml.startswith(b"<?xml"):
        raise FormatError(
            "format-invalid", "the blob of OpenVINOBackend contains no IR in XML"
        )
    return xml, files[packed:]


def _is_packed_xml(beginning: bytes) -> bool:
    """Return whether these are the first bytes of compressed XML."""
    try:
        return zlib.decompressobj().decompress(beginning, 5) == b"<?xml"
    except zlib.error:
        return False


def fold_operands(model: ov.Model, largest: int | None = None) -> None:
    """Replace operands that operators compute from constants by constants.

    Only operands of elementwise operators and some tables of Gather are replaced, for
    example dequantized operands and the first state of an LSTM. OpenVINO would compute
    them when it compiles, and may let the operator write its result over them. The next
    call would read that result (openvino 2026.4.1). Weights of matrix products and
    convolutions stay quantized.

    ``largest``: the most bytes of an operand that is computed; None for any number.
    Large operands are computed when a blob is loaded, since a quantized constant takes
    a quarter of the file.
    """
    operands = _constant_operands(model)
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


def _constant_operands(model: ov.Model) -> list[Any]:
    """Return the operands that ``fold_operands`` may compute.

    Operators compute these operands, and read no input of the model.
    """
    varying = {node.get_name() for node in model.get_parameters()}
    operands = list[Any]()
    for node in model.get_ordered_ops():
        constant = [i for i in node.inputs() if _source(i).get_name() not in varying]
        if len(constant) == len(node.inputs()):
            # the result is constant as well
            continue
        varying.add(node.get_name())
        if node.get_type_name() in ELEMENTWISE:
            operands += [i for i in constant if _source(i).inputs()]
        elif node.get_type_name() == "Gather":
            if _has_scales_within_rows(node.input_value(0).get_node()):
                operands.append(node.input(0))
    return operands


def _source(operand: Any) -> Any:
    """Return the node that computes an input of an operator."""
    return operand.get_source_output().get_node()


def _has_scales_within_rows(table: Any) -> bool:
    """Return whether a row of a dequantized table has several scales.

    OpenVINO's kernel supports one scale for each row. With more, it writes beyond its
    memory (openvino 2026.4.1).
    """
    if table.get_type_name() != "Multiply":
        return False
    scales = table.input_value(1).get_partial_shape()
    return scales.rank.is_dynamic or any(size != 1 for size in list(scales)[1:])


def _bytes_of(operand: Any) -> int:
    """Return the bytes of an input of an operator; 0 if its shape is not known."""
    if operand.get_partial_shape().is_dynamic:
        return 0
    elements = int(np.prod(list(operand.get_shape())))
    return elements * int(operand.get_element_type().size)


class Loaded:
    """A compiled model, called with tensors; the results are new tensors."""

    def __init__(self, read: Read, compile_specs: Specs, **properties: str) -> None:
        # OpenVINO does not copy constants: they must stay alive
        self.kept = read
        self.signature = read.signature
        settings = settings_of(compile_specs)
        why = why_absent(settings["device"])
        if why is not None:
            raise NoRuntime(
                "no-runtime",
                why,
                hint="lower with the option device set to one of these",
            )
        try:
            self.compiled = compile_model(read.model, settings, **properties)
        except RuntimeError as e:
            raise FormatError(
                "format-invalid", f"OpenVINO cannot compile this blob: {reason_of(e)}"
            ) from e
        # the frontend leaves out inputs that no result depends on; the number in a name
        # is the position of the argument
        self.inputs = [
            (int(p.get_friendly_name()[1:]), p.get_element_type())
            for p in read.model.get_parameters()
        ]
        self.requests = Pool(self.compiled.create_infer_request)

    def __call__(self, *args: torch.Tensor | float) -> tuple[Any, ...]:
        # ``arrays`` must live until the request has read the memory
        arrays = self.signature.arrays(args, int64_bits=32)
        with self.requests.one() as request:
            for k, (position, kind) in enumerate(self.inputs):
                array = arrays[position]
                request.set_input_tensor(k, ov.Tensor(array, array.shape, kind))
            request.infer()
            # The results are copied. If OpenVINO got our memory for them, it would
            # write a result that is an unchanged input into that input, and leave the
            # result unset. They are copied one by one: a list of all takes 40
            # microseconds.
            return self.signature.results(
                request.get_output_tensor(k).data
                for k in range(len(self.signature.outputs))
            )
