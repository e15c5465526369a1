"""Runs blobs on this host. Here PyTorch computes each instruction; your simulator or driver goes here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from delegraph.backend import CompileSpec
from delegraph.runtime import BackendRuntime, Delegate

from .blob import read, unpack
from .instructions import INSTRUCTIONS


class AcmeNpuRuntime(BackendRuntime):
    """What ``lowered(...)`` and ``delegraph lower --verify`` call. Reads nothing but the blob and its weights."""

    device_half = Path(__file__).parent / "device" / "acme_npu.cpp"

    @staticmethod
    def load(processed_bytes: bytes, compile_specs: Sequence[CompileSpec], named_data: Mapping[str, bytes]) -> Delegate:
        """Make a blob callable, with its inputs in calling order. Raises FormatError if it is damaged."""
        program = read(processed_bytes)
        constants = {name: unpack(c, named_data.get(c.key, b"")) for name, c in program.constants.items()}

        def run(*args: Any) -> tuple[Any, ...]:
            values = {**constants, **dict(zip(program.inputs, args, strict=True))}
            for name, operands, result in program.steps:
                values[result] = INSTRUCTIONS[name](*[None if o is None else values[o] for o in operands])
            return tuple(values[output] for output in program.outputs)

        return run
