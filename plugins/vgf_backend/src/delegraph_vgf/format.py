"""``.vgf`` files for Arm's ML SDK for Vulkan. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from delegraph.errors import FormatError
from delegraph.formats import (
    ConstantSummary,
    DelegateFormat,
    MethodSummary,
    Summary,
    TensorSummary,
)
from delegraph.io.escape_for_terminal import printable

from .content import MARK, Tensor, content_of

_SAMPLED = frozenset(
    "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32".split()
)
_MOST = 1 << 28
"""The most elements of a random input: a few bytes of a file can request any number."""


class VgfInspection(Summary):
    """The summary of a file as text, with a line for each input and output."""

    def __str__(self) -> str:
        (method,) = self.methods
        lines = [f"{self.kind} {self.version}: {self.bytes} bytes"]
        lines.append(f"constants: {self.constants}, {self.constant_bytes} bytes")
        lines += [f"input {tensor}" for tensor in method.inputs]
        lines += [f"output {tensor}" for tensor in method.outputs]
        return "\n".join(map(printable, lines))


class VgfFormat(DelegateFormat):
    """A VGF file, the blob of one delegate.

    Other readers of VGF can read it, and VGF files of other tools can be inspected.
    """

    backend_id = "VgfBackend"

    @staticmethod
    def inspect(path: Path) -> VgfInspection:
        """Return the content of any VGF file; FormatError if it is damaged."""
        data = path.read_bytes()
        content = content_of(data)
        constants = [
            ConstantSummary(str(c.slot), c.dtype, c.shape, c.bytes)
            for c in content.constants
        ]
        inputs = _summaries(content.inputs)
        outputs = _summaries(content.outputs)
        return VgfInspection(
            "VGF file",
            content.version,
            len(data),
            {},
            (MethodSummary("forward", inputs, outputs, {}),),
            len(constants),
            sum(constant.bytes for constant in constants),
            Summary.largest_of(constants),
        )

    @staticmethod
    def summarize(path: Path) -> Summary:
        """Return the result of ``inspect``."""
        return VgfFormat.inspect(path)

    @staticmethod
    def sample(path: Path, seed: int) -> list[np.ndarray[Any, Any]]:
        """Return random inputs: floats are standard normal, integers 0 or 1.

        Raises FormatError unless delegraph wrote the file.
        """
        from delegraph_engines import Signature  # imports torch

        generator = np.random.default_rng(seed)
        arrays = []
        signature = Signature.unseal(path.read_bytes(), MARK).signature
        for dtype, shape in signature.inputs:
            is_valid = min(shape, default=0) >= 0 and prod(shape) <= _MOST
            if not is_valid or dtype not in _SAMPLED:
                raise FormatError(
                    "format-invalid",
                    f"the VGF file has an input {dtype} {shape}, for which no random"
                    " values can be drawn; pass inputs",
                )
            numbers: Any
            if "float" in dtype:
                numbers = generator.standard_normal(shape)
            else:
                numbers = generator.integers(0, 2, shape)
            # numpy has no bfloat16
            numpy_dtype = "float32" if dtype == "bfloat16" else dtype
            arrays.append(np.asarray(numbers, numpy_dtype))
        return arrays


def _summaries(tensors: Iterable[Tensor]) -> tuple[TensorSummary, ...]:
    return tuple(
        TensorSummary(tensor.name or str(tensor.slot), tensor.dtype, tensor.shape)
        for tensor in tensors
    )
