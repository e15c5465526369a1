"""``.vgf`` files, which Arm's ML SDK for Vulkan runs. Imports no torch."""

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
from delegraph.io.escape import printable

from .content import MARK, Tensor, content_of

_SAMPLED = frozenset(
    "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32".split()
)
_MOST = 1 << 28
"""Elements of an input that is drawn: a few bytes of a file can ask for any number."""


class VgfInspection(Summary):
    """The summary of a file as text, a line for its size and for each input and output."""

    def __str__(self) -> str:
        (method,) = self.methods
        lines = [f"{self.kind} {self.version}: {self.bytes} bytes"]
        lines += [f"constants: {self.constants}, {self.constant_bytes} bytes"]
        lines += [f"input {tensor}" for tensor in method.inputs] + [
            f"output {tensor}" for tensor in method.outputs
        ]
        return "\n".join(map(printable, lines))


class VgfFormat(DelegateFormat):
    """A VGF file, the blob of one delegate; other readers of VGF read it as well, and
    theirs can be inspected here.
    """

    backend_id = "VgfBackend"

    @staticmethod
    def inspect(path: Path) -> VgfInspection:
        """The content of any VGF file. FormatError if it is damaged."""
        data = path.read_bytes()
        content = content_of(data)
        constants = [
            ConstantSummary(str(c.slot), c.dtype, c.shape, c.bytes)
            for c in content.constants
        ]
        rows = (
            len(constants),
            sum(c.bytes for c in constants),
            Summary.largest_of(constants),
        )
        method = MethodSummary(
            "forward", _summaries(content.inputs), _summaries(content.outputs), {}
        )
        return VgfInspection(
            "VGF file", content.version, len(data), {}, (method,), *rows
        )

    @staticmethod
    def summarize(path: Path) -> Summary:
        """The same."""
        return VgfFormat.inspect(path)

    @staticmethod
    def sample(path: Path, seed: int) -> list[np.ndarray[Any, Any]]:
        """Random inputs: floats are standard normal, integers 0 or 1. FormatError
        unless delegraph wrote the file.
        """
        from delegraph_engines import Signature  # imports torch

        generator = np.random.default_rng(seed)
        arrays = []
        for dtype, shape in Signature.unseal(path.read_bytes(), MARK)[1].inputs:
            if (
                min(shape, default=0) < 0
                or prod(shape) > _MOST
                or dtype not in _SAMPLED
            ):
                raise FormatError(
                    "format-invalid",
                    f"a VGF file for which no input {dtype} {shape} can be drawn",
                )
            numbers = (
                generator.standard_normal(shape)
                if "float" in dtype
                else generator.integers(0, 2, shape)
            )
            arrays.append(
                np.asarray(numbers, "float32" if dtype == "bfloat16" else dtype)
            )
        return arrays


def _summaries(tensors: Iterable[Tensor]) -> tuple[TensorSummary, ...]:
    return tuple(
        TensorSummary(tensor.name or str(tensor.slot), tensor.dtype, tensor.shape)
        for tensor in tensors
    )
