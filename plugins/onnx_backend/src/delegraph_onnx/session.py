"""Sessions of ONNX Runtime: their weights, and calls with tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from delegraph.errors import DelegraphError, FormatError
from delegraph_engines import Signature, expect_data
from onnxruntime import OrtValue

from .providers import make_options
from .settings import Settings, check_settings

MARK = b"delegraph-onnx-1"
"""The end of each blob, which holds an ONNX model.

One fact is stored with it: "weights", see ``read_weights``.
"""
WEIGHT = "onnx/"
"""The beginning of the keys of weights, which are named data."""
BFLOAT16 = 16
"""The number of bfloat16 among ONNX's types; numpy has none."""
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
    """Return the part of an error of ONNX Runtime that has the cause."""
    text = str(error).strip().replace("\n", " ")
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    # sources of ONNX Runtime, and the C++ functions there
    text = re.sub(r"\S*/onnxruntime/\S+\.(cc|h):\d+ \S+(\([^)]*\))? ?", "", text)
    return f"ONNX Runtime: {text:.300}"


def read_weights(facts: Mapping[str, Any], data: NamedData) -> dict[str, OrtValue]:
    """Return the weights that lie beside a model, by the names of initializers.

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
            f"a blob of OnnxBackend whose weights cannot be read: {error}",
        ) from error
    return weights


def ort_value(tensor: torch.Tensor) -> OrtValue:
    """Return a value of ONNX Runtime with the memory of a tensor in C order."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    bits = tensor.view(torch.int16) if dtype == "bfloat16" else tensor
    return _ort_value(bits.numpy(), dtype)


def _value(data: bytes, dtype: str, sizes: Sequence[int]) -> OrtValue:
    """Return a tensor with the memory of ``data``."""
    kind = "int16" if dtype == "bfloat16" else dtype
    return _ort_value(np.frombuffer(data, kind).reshape(sizes), dtype)


def _ort_value(array: np.ndarray[Any, Any], dtype: str) -> OrtValue:
    """Return a value of ONNX Runtime with the memory of ``array``."""
    if dtype == "bfloat16":
        return OrtValue.ortvalue_from_numpy_with_onnx_type(array, BFLOAT16)
    return OrtValue.ortvalue_from_numpy(array)


def types_of(values: Any) -> list[tuple[str | None, tuple[int, ...]]]:
    """Return dtype and shape of inputs or outputs of a session; -1: any size."""
    types = []
    for value in values:
        sizes = tuple(size if isinstance(size, int) else -1 for size in value.shape)
        types.append((DTYPES.get(value.type), sizes))
    return types


class Loaded:
    """A session, called with tensors. Results are new tensors."""

    def __init__(self, session: ort.InferenceSession, signature: Signature) -> None:
        """Raises FormatError if the model takes or returns other types."""
        self.session = session
        self.signature = signature
        inputs = types_of(session.get_inputs())
        outputs = types_of(session.get_outputs())
        if (why := signature.why_mismatch(inputs, outputs)) is not None:
            raise FormatError(
                "format-invalid", f"the ONNX model does not fit its blob: {why}"
            )
        self._names = [value.name for value in session.get_inputs()]
        types = [dtype for dtype, _ in (*signature.inputs, *signature.outputs)]
        self._has_bfloat16 = "bfloat16" in types

    def __call__(self, *args: torch.Tensor | int | float | bool) -> tuple[Any, ...]:
        arrays = self.signature.arrays(args)
        if self._has_bfloat16:
            results = self._run_with_bfloat16(arrays)
        else:
            results = self.session.run(
                None, dict(zip(self._names, arrays, strict=True))
            )
        return self.signature.results(results)

    def _run_with_bfloat16(
        self, arrays: Sequence[np.ndarray[Any, Any]]
    ) -> Iterator[np.ndarray[Any, Any]]:
        """Yield results as arrays of the same bits: numpy has no bfloat16."""
        types = [dtype for dtype, _ in self.signature.inputs]
        values = map(_ort_value, arrays, types)
        feeds = dict(zip(self._names, values, strict=True))
        for value in self.session.run_with_ort_values(None, feeds):
            tensor = torch.utils.dlpack.from_dlpack(value._get_c_value().to_dlpack())
            if tensor.dtype is torch.bfloat16:
                tensor = tensor.view(torch.int16)
            yield tensor.numpy()
