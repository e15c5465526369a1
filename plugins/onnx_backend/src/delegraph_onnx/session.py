"""Sessions of ONNX Runtime: their weights, and calls with tensors."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import onnxruntime as ort
import torch
from delegraph.errors import DelegraphError, FormatError
from delegraph_engines import Signature, expect_data
from delegraph_engines.signature import NUMBER_DTYPES, NUMBERS
from onnxruntime import OrtValue

from .providers import make_options
from .settings import Settings, check_settings

MARK = b"delegraph-onnx-1"
"""The end of each blob, which holds an ONNX model.

One fact is stored with it: "weights", see ``read_weights``.
"""
WEIGHT = "onnx/"
"""The beginning of the keys of weights, which are named data."""
TYPE_NUMBERS = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "bfloat16": 16,
    "int": 7,
    "float": 11,
}
"""Types of a signature -> ONNX's numbers of them."""
DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(bfloat16)": "bfloat16",
    "tensor(double)": "float64",
    "tensor(int8)": "int8",
    "tensor(uint8)": "uint8",
    "tensor(int16)": "int16",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(bool)": "bool",
}
"""ONNX Runtime's names of types -> torch's."""
HOST = ort.OrtDevice.make("cpu", 0)._get_c_device()
"""The memory of this host."""
NamedData = Mapping[str, bytes]


def make_session(
    model: bytes,
    settings: Settings,
    weights: Mapping[str, OrtValue],
    profile: str = "",
) -> ort.InferenceSession:
    """Return a session of a model. Raises FormatError with ONNX Runtime's reason.

    ``weights``: values of initializers that the model does not hold, by name. ONNX
    Runtime reads them where they are. ``profile``: the beginning of the name of the
    file to which the session writes a profile; "" for none.
    """
    options = make_options(settings)
    if profile:
        options.enable_profiling = True
        options.profile_file_prefix = profile
    if weights:
        options.add_external_initializers(list(weights), list(weights.values()))
    try:
        session = ort.InferenceSession(model, options)
    except Exception as error:  # ONNX Runtime's errors have no common class
        if isinstance(error, (DelegraphError, MemoryError)):
            raise
        raise FormatError("format-invalid", reason_of(error)) from error
    return session


def why_not_loaded(model: bytes) -> str | None:
    """Return a reason if ONNX Runtime's CPU refuses a model; None if it loads it."""
    try:
        make_session(model, check_settings({"threads": "1"}), {})
    except FormatError as error:
        return error.message
    return None


def reason_of(error: Exception) -> str:
    """Return the cause in an error of ONNX Runtime, without its code and C++ sources."""
    text = str(error).strip().replace("\n", " ")
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    # sources of ONNX Runtime, and the C++ functions there
    text = re.sub(r"\S*/onnxruntime/\S+\.(cc|h):\d+ \S+(\([^)]*\))? ?", "", text)
    return f"ONNX Runtime: {text:.300}"


def read_weights(facts: Mapping[str, Any], data: NamedData) -> dict[str, OrtValue]:
    """Return the weights that are stored outside of a model, by the names of initializers.

    The fact "weights" is a mapping: name of the initializer -> key of the named data,
    dtype, sizes. Raises FormatError if it is none, or if data are missing.
    """
    listed = facts.get("weights", {})
    try:
        rows = [(name, *row) for name, row in listed.items()]
        weights = {}
        for name, key, dtype, sizes in rows:
            kind = getattr(torch, dtype)
            size = prod(sizes) * kind.itemsize
            weights[name] = _value(expect_data(data, key, size), dtype, sizes)
    except (AttributeError, TypeError, ValueError) as error:
        raise FormatError(
            "format-invalid",
            f"the weights of a blob of OnnxBackend cannot be read: {error}",
        ) from error
    return weights


def ort_value(tensor: torch.Tensor) -> OrtValue:
    """Return a value of ONNX Runtime with the memory of a tensor in C order."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    bits = tensor.view(torch.int16) if dtype == "bfloat16" else tensor
    return _ort_value(bits.numpy(), dtype)


def _value(data: bytes, dtype: str, sizes: Sequence[int]) -> OrtValue:
    """Return a value of ONNX Runtime with the memory of ``data``."""
    kind = "int16" if dtype == "bfloat16" else dtype
    return _ort_value(np.frombuffer(data, kind).reshape(sizes), dtype)


def _ort_value(array: np.ndarray[Any, Any], dtype: str) -> OrtValue:
    """Return a value of ONNX Runtime with the memory of ``array``."""
    if dtype == "bfloat16":
        return OrtValue.ortvalue_from_numpy_with_onnx_type(array, TYPE_NUMBERS[dtype])
    return OrtValue.ortvalue_from_numpy(array)


def types_of(values: Any) -> list[tuple[str | None, tuple[int, ...]]]:
    """Return dtype and shape of inputs or outputs of a session; -1: any size."""
    types = []
    for value in values:
        sizes = tuple(size if isinstance(size, int) else -1 for size in value.shape)
        types.append((DTYPES.get(value.type), sizes))
    return types


class _Output(NamedTuple):
    """An output of a session."""

    name: str
    dtype: torch.dtype
    type_number: int
    sizes: tuple[int, ...] | None
    """Its shape; None if each call chooses it, or if there are no elements."""
    python_type: type | None
    """int or float if the output is a number, else None."""

    @classmethod
    def of(cls, name: str, dtype: str, sizes: tuple[int, ...]) -> _Output:
        """Return the output for its declaration in the signature of the delegate.

        ``dtype`` is the name of a torch dtype, or that of a Python number.
        """
        kind = NUMBER_DTYPES.get(dtype) or getattr(torch, dtype)
        is_known = all(size > 0 for size in sizes)
        return cls(
            name=name,
            dtype=kind,
            type_number=TYPE_NUMBERS[dtype],
            sizes=sizes if is_known else None,
            python_type=NUMBERS.get(dtype),
        )

    def bind(self, binding: Any) -> torch.Tensor | None:
        """Bind the output to a new tensor, and return it.

        If its shape is not known, ONNX Runtime makes a tensor, and this returns None.
        """
        if self.sizes is None:
            binding.bind_output(self.name, HOST)
            return None
        result = torch.empty(self.sizes, dtype=self.dtype)
        binding.bind_output(
            self.name, HOST, self.type_number, self.sizes, result.data_ptr()
        )
        return result


class Loaded:
    """A session, called with tensors. Results are new tensors.

    A call passes the addresses of tensors. With numpy's arrays, a call of a small model
    took 30 us longer.
    """

    def __init__(self, session: ort.InferenceSession, signature: Signature) -> None:
        """Check the types of the model; FormatError if they are not ``signature``."""
        self.session = session
        self.signature = signature
        inputs = types_of(session.get_inputs())
        outputs = types_of(session.get_outputs())
        why = signature.why_mismatch(inputs, outputs)
        if why is not None:
            raise FormatError(
                "format-invalid",
                f"the ONNX model does not fit the signature in its blob: {why}",
            )
        self._inputs = [
            (value.name, TYPE_NUMBERS[dtype])
            for value, (dtype, _) in zip(
                session.get_inputs(), signature.inputs, strict=True
            )
        ]
        self._outputs = [
            _Output.of(value.name, *declared)
            for value, declared in zip(
                session.get_outputs(), signature.outputs, strict=True
            )
        ]
        # a binding serves one call at a time, so each thread has its own
        self._bindings = threading.local()

    def __call__(self, *args: torch.Tensor | int | float | bool) -> tuple[Any, ...]:
        tensors = self.signature.tensors(args)
        binding = self._binding()
        # IOBinding's own methods make an OrtDevice each time, which takes 8 us
        fast_binding = binding._iobinding
        for (name, type_number), tensor in zip(self._inputs, tensors, strict=True):
            fast_binding.bind_input(
                name, HOST, type_number, tensor.shape, tensor.data_ptr()
            )
        results: list[Any] = [output.bind(fast_binding) for output in self._outputs]
        self.session.run_with_iobinding(binding)
        for k, output in enumerate(self._outputs):
            if output.sizes is None:  # ONNX Runtime made the tensor
                results[k] = _copied(binding.get_outputs()[k])
            elif output.python_type is not None:
                results[k] = output.python_type(results[k].item())
        return tuple(results)

    def _binding(self) -> ort.IOBinding:
        """Return the binding of inputs and outputs for calls of this thread."""
        binding: ort.IOBinding | None = getattr(self._bindings, "binding", None)
        if binding is None:
            binding = self.session.io_binding()
            self._bindings.binding = binding
        return binding


def _copied(value: OrtValue) -> torch.Tensor:
    """Return a result of a session as a tensor with memory of its own."""
    shared: torch.Tensor = torch.utils.dlpack.from_dlpack(value)
    return shared.clone()
