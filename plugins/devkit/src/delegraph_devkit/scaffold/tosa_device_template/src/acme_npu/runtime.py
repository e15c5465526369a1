"""Runs blobs on this host: PyTorch computes each operator. Replace this by your simulator or driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from delegraph.backend import CompileSpec
from delegraph.runtime import BackendRuntime, Delegate

from .blob import read

COMPUTE: dict[str, Any] = {
    "ADD": lambda _, x, y: x + y,
    "CLAMP": lambda limits, x: torch.clamp(x, *limits.view("<f4").tolist()),
    "CONV2D": lambda _, x, weight, bias, *zero_points: x @ weight.flatten(1).T + bias,
    "IDENTITY": lambda _, x: x,
    "MATMUL": lambda _, x, y, *zero_points: torch.bmm(x, y),
    "MUL": lambda _, x, y: x * y,
    "RESHAPE": lambda _, x: x,  # each result gets its shape
    "SUB": lambda _, x, y: x - y,
    "TRANSPOSE": lambda axes, x: x.permute(axes.tolist()),
}
"""TOSA operator -> a function of its attributes and operands."""


class AcmeNpuRuntime(BackendRuntime):
    """Runs delegates for ``lowered(...)`` and ``delegraph lower --verify``. Reads only the blob."""

    device_half = Path(__file__).parent / "device" / "acme_npu.cpp"

    @staticmethod
    def load(processed_bytes: bytes, compile_specs: Sequence[CompileSpec], named_data: Mapping[str, bytes]) -> Delegate:
        """Return a function that runs a blob on its inputs. Raises FormatError if the blob is damaged."""
        steps, outputs = read(processed_bytes)
        stored = [step for step in steps if step.operation == "CONST"]  # they come first, then the inputs
        constants = [torch.tensor(step.attributes.view("<f4")).reshape(step.shape) for step in stored]

        def run(*args: Any) -> tuple[Any, ...]:
            values = [*constants, *args]
            for step in steps[len(values) :]:
                result = COMPUTE[step.operation](step.attributes, *[values[k] for k in step.operands])
                values.append(result.reshape(step.shape))
            # copies, since a result must not share memory with an input or a constant
            return tuple(values[k].clone(memory_format=torch.contiguous_format) for k in outputs)

        return run
