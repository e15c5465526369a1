"""Runs blobs of the demo compiler.

It reads the blob, the compile specs and the named data, and never the program.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
    """An input or a result is NaN, or larger than ``max_value``."""


class CompilerDemoRuntime(BackendRuntime):
    """The host runtime of ``BackendWithCompilerDemo``, and the path of its device half."""

    device_half = Path(__file__).parent.parent / "device" / "compiler_demo.cpp"

    @staticmethod
    def compatible(
        header: BlobHeader,
        compile_specs: Sequence[CompileSpec],
        device: str | None = None,
    ) -> Compatibility | None:
        """Compare the version of the format, in the first five bytes.

        Damage after them raises nothing.
        """
        if device is not None:
            return Compatibility("cannot", f"it runs only on hosts, not on {device!r}")
        try:
            expect_version(header.beginning)
        except FormatError as e:
            why = f"{e.message}; {e.hint}" if e.hint else e.message
            return Compatibility("cannot", why)
        return Compatibility("runs", f"it has version {VERSION} of the format")

    @staticmethod
    def load(
        processed_bytes: bytes,
        compile_specs: Sequence[CompileSpec],
        named_data: Mapping[str, bytes],
    ) -> LoadedCode:
        """Load a blob.

        Raises FormatError for a damaged blob, and for a weight that is missing or has
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
        """Load a blob; the delegate also returns the seconds of each instruction."""
        loaded = CompilerDemoRuntime.load(processed_bytes, compile_specs, named_data)
        return loaded.timed


class LoadedCode:
    """A loaded blob, called with float32 CPU tensors.

    It returns a tuple of new tensors. Raises InputError for inputs of other types or shapes, and ValueOutOfRange. A call
    changes nothing in this object, so threads may share it.
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
        """Return the outputs, and the seconds of each instruction by its position.

        The position is its debug identifier.
        """
        values = [*self._inputs(args), *self.weights]
        spent: dict[Any, dict[str, Any]] = {}
        for position, instruction in enumerate(self.code.instructions):
            start = time.perf_counter()
            operator = instruction.operator
            operands = [values[operand] for operand in instruction.operands]
            result = operator.compute(*operands)
            values.append(self._check_range(result, f"a result of {operator.target}"))
            end = time.perf_counter()
            spent[position] = {"seconds": end - start, "intervals": [(start, end)]}
        return tuple(values[output] for output in self.code.outputs), spent

    def _inputs(
        self, args: Sequence[torch.Tensor | int | float | bool]
    ) -> list[torch.Tensor]:
        """Return the checked arguments of a call."""
        if len(args) != len(self.code.inputs):
            raise InputError(
                "input-invalid",
                f"the delegate takes {len(self.code.inputs)} inputs, not {len(args)}",
            )
        inputs: list[torch.Tensor] = []
        for arg, shape in zip(args, self.code.inputs, strict=True):
            position = len(inputs)
            tensor = _checked_input(position, arg, shape)
            inputs.append(self._check_range(tensor, f"input {position}"))
        return inputs

    def _check_range(self, value: torch.Tensor, name: str) -> torch.Tensor:
        """Return ``value``; raise ValueOutOfRange if an element exceeds ``max_value``."""
        if self.max_value is None or not value.numel():
            return value
        largest = float(value.abs().max())
        if not largest <= self.max_value:  # also when it is NaN
            text = (
                f"{name} has an element of absolute value {largest:g}; max_value is"
                f" {self.max_value:g}"
            )
            hint = "scale the inputs, or lower with a larger max_value"
            raise ValueOutOfRange("compiler-demo/out-of-range", text, hint=hint)
        return value


def _checked_input(
    position: int, arg: torch.Tensor | int | float | bool, shape: Shape
) -> torch.Tensor:
    """Return an argument; InputError unless it is float32 on the CPU of this shape."""
    given = repr(arg)
    if isinstance(arg, torch.Tensor):
        is_float32_on_cpu = arg.dtype is torch.float32 and arg.device.type == "cpu"
        if is_float32_on_cpu and tuple(arg.shape) == shape:
            return arg
        given = f"{arg.dtype} {list(arg.shape)} on {arg.device}"
    raise InputError(
        "input-invalid",
        f"input {position} must be torch.float32 {list(shape)} on cpu, not {given}",
    )


def _weight(constant: Constant, named_data: Mapping[str, bytes]) -> torch.Tensor:
    """Return the weight as a writable tensor.

    Named data is read-only, and other delegates may share it.
    """
    data = named_data.get(constant.key)
    if data is None:
        raise damaged(f"there is no named data {constant.key!r}")
    if len(data) != constant.size:
        raise damaged(
            f"named data {constant.key!r} has {len(data)} bytes, not {constant.size}"
        )
    array = np.frombuffer(data, "<f4").astype(np.float32)
    return torch.from_numpy(array).reshape(constant.shape)
