"""Runs blobs of the demo compiler. Knows the blob, the compile specs and the named
data, and nothing of the program.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from delegraph.backend import CompileSpec
from delegraph.errors import DelegraphError, FormatError, InputError
from delegraph.runtime import (
    BackendRuntime,
    BlobHeader,
    Compatibility,
    ProfiledDelegate,
    Spent,
)

from .format import VERSION, Code, Constant, damaged, decode, expect_version
from .operators import Shape
from .options import from_compile_specs


class ValueOutOfRange(DelegraphError, RuntimeError):
    """An input, or a value that was computed, is larger than ``max_value`` allows, or
    NaN.
    """


class CompilerDemoRuntime(BackendRuntime):
    """The host's runtime of ``BackendWithCompilerDemo``, and where its device half is."""

    device_half = Path(__file__).parent.parent / "device" / "compiler_demo.cpp"

    @staticmethod
    def compatible(
        header: BlobHeader,
        compile_specs: Sequence[CompileSpec],
        device: str | None = None,
    ) -> Compatibility | None:
        """By the version of the format, which stands in the first five bytes: whatever
        the rest is, nothing raises.
        """
        if device is not None:
            return Compatibility(
                "cannot", f"it runs on this host alone, and not on {device!r}"
            )
        try:
            expect_version(header.beginning)
        except FormatError as e:
            return Compatibility(
                "cannot", f"{e.message}; {e.hint}" if e.hint else e.message
            )
        return Compatibility("runs", f"version {VERSION} of its format is read here")

    @staticmethod
    def load(
        processed_bytes: bytes,
        compile_specs: Sequence[CompileSpec],
        named_data: Mapping[str, bytes],
    ) -> LoadedCode:
        """Raises FormatError for a damaged blob and for a weight that is missing or has
        another size.
        """
        code = decode(processed_bytes)
        weights = [_weight(constant, named_data) for constant in code.constants]
        return LoadedCode(code, weights, from_compile_specs(compile_specs))

    @staticmethod
    def profile(
        processed_bytes: bytes,
        compile_specs: Sequence[CompileSpec],
        named_data: Mapping[str, bytes],
    ) -> ProfiledDelegate:
        """As ``load``; the delegate also tells the seconds of each instruction."""
        return CompilerDemoRuntime.load(
            processed_bytes, compile_specs, named_data
        ).timed


class LoadedCode:
    """Called with float32 tensors on the CPU, of the shapes that were compiled for;
    returns a tuple of new tensors.

    Raises InputError for other inputs and ValueOutOfRange. A call changes nothing here,
    so threads may share it.
    """

    def __init__(
        self, code: Code, weights: Sequence[torch.Tensor], max_value: float | None
    ) -> None:
        self.code = code
        self.weights = tuple(weights)
        self.max_value = max_value

    def __call__(
        self, *args: torch.Tensor | int | float | bool
    ) -> tuple[torch.Tensor, ...]:
        return self.timed(*args)[0]

    def timed(
        self, *args: torch.Tensor | int | float | bool
    ) -> tuple[tuple[torch.Tensor, ...], Spent]:
        """The outputs, and the seconds of each instruction by its position, which is
        its debug identifier.
        """
        values = [*self._inputs(args), *self.weights]
        ends = [time.perf_counter()]
        for instruction in self.code.instructions:
            operator = instruction.operator
            result = operator.compute(
                *(values[operand] for operand in instruction.operands)
            )
            values.append(self._in_range(result, f"a result of {operator.target}"))
            ends.append(time.perf_counter())
        spent = {
            k: {"seconds": end - start} for k, (start, end) in enumerate(pairwise(ends))
        }
        return tuple(values[output] for output in self.code.outputs), spent

    def _inputs(
        self, args: Sequence[torch.Tensor | int | float | bool]
    ) -> list[torch.Tensor]:
        if len(args) != len(self.code.inputs):
            raise InputError(
                "input-invalid",
                f"the delegate takes {len(self.code.inputs)} inputs, not {len(args)}",
            )
        pairs = enumerate(zip(args, self.code.inputs, strict=True))
        return [
            self._in_range(_input(k, arg, shape), f"input {k}")
            for k, (arg, shape) in pairs
        ]

    def _in_range(self, value: torch.Tensor, what: str) -> torch.Tensor:
        if self.max_value is None or not value.numel():
            return value
        largest = float(value.abs().max())
        if not largest <= self.max_value:  # also when it is NaN
            text = (
                f"{what} has an element of absolute value {largest:g}; max_value is"
                f" {self.max_value:g}"
            )
            hint = "scale the inputs, or lower with a larger max_value"
            raise ValueOutOfRange("compiler-demo/out-of-range", text, hint=hint)
        return value


def _input(
    position: int, arg: torch.Tensor | int | float | bool, shape: Shape
) -> torch.Tensor:
    wanted = (
        isinstance(arg, torch.Tensor)
        and arg.dtype is torch.float32
        and arg.device.type == "cpu"
    )
    if not isinstance(arg, torch.Tensor) or not wanted or tuple(arg.shape) != shape:
        given = (
            f"{arg.dtype} {list(arg.shape)} on {arg.device}"
            if isinstance(arg, torch.Tensor)
            else repr(arg)
        )
        text = (
            f"input {position} is a torch.float32 {list(shape)} on cpu, and it is given"
            f" {given}"
        )
        raise InputError("input-invalid", text)
    return arg


def _weight(constant: Constant, named_data: Mapping[str, bytes]) -> torch.Tensor:
    """The weight as a tensor of its own: named data is read-only, and other delegates
    may use it too.
    """
    data = named_data.get(constant.key)
    if data is None:
        raise damaged(f"there is no named data {constant.key!r}")
    if len(data) != constant.size:
        raise damaged(
            f"named data {constant.key!r} has {len(data)} bytes, not {constant.size}"
        )
    return torch.from_numpy(np.frombuffer(data, "<f4").astype(np.float32)).reshape(
        constant.shape
    )
