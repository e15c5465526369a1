"""Runs blobs on this host: PyTorch computes each instruction. Replace this by your simulator or driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from delegraph.backend import CompileSpec
from delegraph.runtime import BackendRuntime, Delegate

from .blob import read, unpack
from .instructions import INSTRUCTIONS


class AcmeNpuRuntime(BackendRuntime):
    """Runs delegates for ``lowered(...)`` and ``delegraph lower --verify``. Reads only the blob and its weights."""

    device_half = Path(__file__).parent / "device" / "acme_npu.cpp"

    @staticmethod
    def load(processed_bytes: bytes, compile_specs: Sequence[CompileSpec], named_data: Mapping[str, bytes]) -> Delegate:
        """Return a function that runs a blob on its inputs. Raises FormatError if the blob is damaged."""
        program = read(processed_bytes)
        constants = {name: unpack(c, named_data.get(c.key, b"")) for name, c in program.constants.items()}

        def run(*args: Any) -> tuple[Any, ...]:
            values = {**constants, **dict(zip(program.inputs, args, strict=True))}
            for step in program.steps:
                operands = [None if name is None else values[name] for name in step.operands]
                values[step.result] = INSTRUCTIONS[step.instruction](*operands)
            return tuple(values[output] for output in program.outputs)

        return run
