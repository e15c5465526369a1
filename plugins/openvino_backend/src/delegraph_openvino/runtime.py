"""Runs blobs with OpenVINO, on any of its devices that this machine has."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import count
from typing import Any

import numpy as np
import openvino as ov
import torch
from delegraph.backend import CompileSpec
from delegraph.delegates import Signature
from delegraph.errors import FormatError, InputError, NoRuntime, OptionError
from delegraph.io.sealed import unseal
from delegraph.runtime import (
    BackendRuntime,
    BlobHeader,
    Compatibility,
    Delegate,
    ObservedDelegate,
    ProfiledDelegate,
    Spent,
)

from .frontend import TYPES, reason_of
from .options import Options, from_compile_specs

DTYPES = {kind: str(dtype).removeprefix("torch.") for dtype, kind in TYPES.items()}
MARK = b"delegraph-openvino-2"
"""What a blob ends with: XML and small constants of an IR; behind it are told the size of the XML and the signature."""
WEIGHT = "openvino/"
"""What the name of a parameter begins with in whose place a weight belongs; it is a key of the named data."""
CACHE = "DELEGRAPH_OPENVINO_CACHE"
"""An environment variable: the folder in which OpenVINO keeps what it compiled. A program does not name it: a file of
somebody else would choose where this machine writes and what it reads."""
_VIRTUAL = {"AUTO", "MULTI", "HETERO", "BATCH"}


@cache
def core() -> ov.Core:
    """OpenVINO's core. On processors whose int8 kernels compute something else it computes quantized calls in floats.

    The property LP_TRANSFORMS_MODE=YES of a program asks for these kernels all the same.
    """
    made = ov.Core()
    if saturates(torch.cpu.get_capabilities()):
        made.set_property("CPU", {"LP_TRANSFORMS_MODE": "NO"})
    return made


def saturates(processor: Mapping[str, Any]) -> bool:
    """Whether a processor, described as torch does, adds two products of int8 in 16 bits, which stop at the ends.

    An x86 processor without VNNI has no other instruction for them. A network of two layers was off by ten steps there.
    """
    has_dot_product = processor.get("avx512_vnni") or processor.get("avx_vnni")
    return processor.get("architecture") == "x86_64" and not has_dot_product


def is_present(device: str) -> bool:
    """Whether this machine has the device, or those that a device such as ``HETERO:GPU,CPU`` is made of."""
    here = {name.partition(".")[0] for name in core().available_devices}
    kind, _, inside = device.partition(":")
    wanted = inside.split(",") if kind in _VIRTUAL else [device]
    return all(name.strip("-").partition(".")[0].partition("(")[0] in here for name in wanted if name)


def _absent(device: str) -> str:
    return f"OpenVINO has no {device:.40} on this machine; it has {', '.join(core().available_devices)}"


def compile_model(model: ov.Model, options: Options) -> Any:
    """OpenVINO's compiled model. Raises RuntimeError with OpenVINO's reason."""
    folder = os.environ.get(CACHE)
    return core().compile_model(model, options.device, options.config() | ({"CACHE_DIR": folder} if folder else {}))


class OpenVINORuntime(BackendRuntime):
    """Loads IRs into OpenVINO. Calls of one delegate in several threads have an inference request each."""

    thread_safe = True

    @staticmethod
    def load(processed_bytes: bytes, compile_specs: Sequence[CompileSpec], named_data: Mapping[str, bytes]) -> Delegate:
        """Raises FormatError for a damaged blob or missing weights, NoRuntime without the device."""
        return Loaded(*read_model(processed_bytes, named_data), from_compile_specs(compile_specs))

    @staticmethod
    def observe(
        processed_bytes: bytes, compile_specs: Sequence[CompileSpec], named_data: Mapping[str, bytes]
    ) -> ObservedDelegate:
        """As ``load``; each call's last operator becomes a result, so that OpenVINO fuses less than otherwise."""
        model, memory, signature = read_model(processed_bytes, named_data)
        last: dict[int, Any] = {}
        for node in model.get_ordered_ops():
            call = re.match(r"n(\d+)(?:_in)?/", node.get_friendly_name())
            if call and node.get_output_size() == 1 and node.get_element_type() in DTYPES:
                last[int(call.group(1))] = node.output(0)
        model.add_results([ov.opset13.result(output) for output in last.values()])
        shapes = (
            [size.get_max_length() if size.is_static else -1 for size in o.get_partial_shape()] for o in last.values()
        )
        inside = zip((DTYPES[o.get_element_type()] for o in last.values()), map(tuple, shapes), strict=True)
        results = len(signature.outputs)
        signature = replace(signature, outputs=(*signature.outputs, *inside))
        loaded = Loaded(model, memory, signature, from_compile_specs(compile_specs))

        def observed(*args: torch.Tensor | float) -> tuple[tuple[Any, ...], dict[int, list[torch.Tensor]]]:
            values = loaded(*args)
            return values[:results], {k: [value] for k, value in zip(last, values[results:], strict=True)}

        return observed

    @staticmethod
    def profile(
        processed_bytes: bytes, compile_specs: Sequence[CompileSpec], named_data: Mapping[str, bytes]
    ) -> ProfiledDelegate:
        """As ``load``; OpenVINO counts the time of its kernels. One that computes several calls counts for the first.

        OpenVINO tells means of all calls so far; what is told here is the time since the last reading.
        """
        options = from_compile_specs(compile_specs)
        counting = replace(options, properties=",".join(filter(None, (options.properties, "PERF_COUNT=YES"))))
        loaded = Loaded(*read_model(processed_bytes, named_data), counting)
        numbers = _calls_of_kernels(loaded.compiled.get_runtime_model())
        calls, told = count(), dict[str, float]()

        def read(calls_so_far: int) -> Spent:
            spent: dict[int | None, dict[str, float]] = {}
            for kernel in loaded.idle[-1].get_profiling_info():  # the request of the last call
                name = kernel.node_name
                before = told.get(name, 0.0)
                # means are whole microseconds, so that their sum may seem to fall: the next readings make up for it
                told[name] = max(calls_so_far * kernel.real_time.total_seconds(), before)
                spent.setdefault(numbers.get(name), {"seconds": 0.0})["seconds"] += told[name] - before
            return spent

        def profiled(*args: torch.Tensor | float) -> tuple[tuple[Any, ...], Callable[[], Spent]]:
            return loaded(*args), partial(read, 1 + next(calls))

        return profiled

    @staticmethod
    def compatible(
        header: BlobHeader, compile_specs: Sequence[CompileSpec], device: str | None = None
    ) -> Compatibility | None:
        """By the device, and by the release that wrote the IR: OpenVINO promises to read those of older releases."""
        if not header.beginning.startswith(b"<?xml"):
            return Compatibility("cannot", f"it begins with {header.beginning[:24]!r}, not as an IR in XML does")
        try:
            wanted = device or from_compile_specs(compile_specs).device
        except OptionError as e:
            return Compatibility("cannot", e.message)
        if not is_present(wanted):
            return Compatibility("cannot", _absent(wanted))
        return Compatibility.by_release(header.fingerprint, f"openvino {ov.get_version()}", reads_older=True)


def _calls_of_kernels(compiled: ov.Model) -> dict[str, int]:
    """The names of OpenVINO's kernels, and for each the number of the call that it computes, if that is known."""
    calls = {}
    for node in compiled.get_ordered_ops():
        name, made_of = node.get_friendly_name(), node.get_rt_info()["originalLayersNames"].astype(str)
        named = re.search(r"(?:^|[_,])n(\d+)(?:_in)?/", f"{made_of},{name}")
        if named:
            calls[name] = int(named.group(1))
    return calls


def read_model(blob: bytes, named_data: Mapping[str, bytes]) -> tuple[ov.Model, list[Any], Signature]:
    """The model of a blob with its weights, the arrays that have to outlive it, and the types of a call."""
    files, told = unseal(blob, MARK)
    size, *sides = told if isinstance(told, list) and told else [None]
    signature = Signature.read(sides)
    # OpenVINO reads other formats as well, and ONNX names files to read
    if type(size) is not int or not 0 <= size <= len(files) or bytes(files[:5]) != b"<?xml":
        raise FormatError("format-invalid", "a blob of OpenVINOBackend that holds no IR in XML")
    memory = [np.frombuffer(files[size:] or b"\0", np.uint8)]
    try:
        model = core().read_model(bytes(files[:size]), ov.Tensor(memory[0], [len(files) - size], ov.Type.u8))
        for parameter in model.get_parameters():
            key = parameter.get_friendly_name()
            if not key.startswith(WEIGHT):
                continue
            kind, shape = parameter.get_element_type(), parameter.output(0).get_shape()
            data = named_data.get(key)
            if data is None or len(data) != int(np.prod(shape)) * kind.size:
                text = f"the weight {key:.80} is missing, or has another size than the blob says"
                raise FormatError("format-invalid", text)
            memory.append(np.frombuffer(data, np.uint8))
            weight = ov.op.Constant(ov.Tensor(memory[-1], shape, kind), shared_memory=True)
            parameter.output(0).replace(weight.output(0))
            model.remove_parameter(parameter)
        model.validate_nodes_and_infer_types()
    except RuntimeError as e:
        raise FormatError("format-invalid", f"OpenVINO does not read this blob: {reason_of(e)}") from e
    if (why := _why_called_otherwise(model, signature)) is not None:
        raise FormatError("format-invalid", f"an IR that {why}")
    return model, memory, signature


def _why_called_otherwise(model: ov.Model, signature: Signature) -> str | None:
    """Why a model cannot be called as ``signature`` says, None if it can: OpenVINO reads memory as the model says."""
    if len(model.outputs) != len(signature.outputs):
        return f"returns {len(model.outputs)} results, and its signature says {len(signature.outputs)}"
    inputs = {f"x{place}": wanted for place, wanted in enumerate(signature.inputs)}
    for parameter in model.get_parameters():
        name, sizes = parameter.get_friendly_name(), parameter.get_partial_shape()
        dtype, shape = inputs.get(name, ("nothing", ()))
        kind = DTYPES.get(parameter.get_element_type())
        if kind != {"int": "int64"}.get(dtype, dtype) or not sizes.compatible(ov.PartialShape(list(shape))):
            return f"takes {kind} {sizes} as {name:.40}, and its signature says {dtype} {shape}"
    return None


class Loaded:
    """A compiled model, called with tensors; the results are new tensors."""

    def __init__(self, model: ov.Model, memory: list[Any], signature: Signature, options: Options) -> None:
        if not is_present(options.device):
            hint = "lower with the option device set to one of these"
            raise NoRuntime("no-runtime", _absent(options.device), hint=hint)
        try:
            self.compiled = compile_model(model, options)
        except RuntimeError as e:
            raise FormatError("format-invalid", f"OpenVINO does not compile this blob: {reason_of(e)}") from e
        self.kept = model, memory  # OpenVINO reads constants where they lie, and does not keep them alive
        self.signature = signature
        # the frontend leaves out inputs that no result depends on; the name of one tells its place in a call
        self.inputs = [(int(p.get_friendly_name()[1:]), p.get_element_type()) for p in model.get_parameters()]
        self.outputs = range(len(signature.outputs))
        self.wide = [k for k, (dtype, _) in enumerate(signature.inputs) if dtype in ("int64", "int")]
        self.idle: deque[Any] = deque()

    def __call__(self, *args: torch.Tensor | float) -> tuple[Any, ...]:
        arrays = self.signature.arrays(args)  # lives until the request has read it
        for place in self.wide:
            _check_integers(arrays[place])
        try:
            request = self.idle.pop()
        except IndexError:
            request = self.compiled.create_infer_request()
        for k, (place, kind) in enumerate(self.inputs):
            request.set_input_tensor(k, ov.Tensor(arrays[place], arrays[place].shape, kind))
        request.infer()
        # Copied, since OpenVINO with memory of ours for its results writes those that are an input as it is
        # into that input, and leaves the result as it was.
        results = self.signature.results(request.get_output_tensor(k).data for k in self.outputs)
        self.idle.append(request)
        return results


def _check_integers(array: np.ndarray[Any, Any]) -> None:
    """Raise InputError for integers that OpenVINO would cut to 32 bits without a word."""
    if array.size:
        least, most = int(array.min()), int(array.max())
        if least < -(2**31) or most >= 2**31:
            text = f"OpenVINO computes int64 in 32 bits, and an input has elements from {least} to {most}"
            raise InputError("input-invalid", text, hint="keep what computes with such numbers on the host")
