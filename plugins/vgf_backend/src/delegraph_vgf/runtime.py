"""``VgfRuntime``: runs VGF files on this host, by Arm's scenario runner and emulation layer."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scenario_runner
import torch
from delegraph.backend import CompileSpec
from delegraph.errors import FormatError, InputError
from delegraph.runtime import BackendRuntime, BlobHeader, Compatibility, Delegate

from . import vulkan
from .blob import Signature, unseal
from .content import FORMATS, Content, Tensor, content_of, version_of

_SAME_SIZE = {torch.bfloat16: torch.int16, torch.uint8: torch.int8, torch.bool: torch.uint8}
"""Dtype that numpy or the scenario runner does not have -> one of its size."""


class VgfRuntime(BackendRuntime):
    """Runs VGF files on the first Vulkan device of this host."""

    @staticmethod
    def is_available() -> bool:
        """True; NoRuntime says what is missing."""
        vulkan.require()
        return True

    @staticmethod
    def compatible(
        header: BlobHeader, compile_specs: Sequence[CompileSpec], device: str | None = None
    ) -> Compatibility | None:
        """Drivers compile what a VGF file holds when they load it, so that only the file's version matters."""
        try:
            return Compatibility("runs", f"VGF {version_of(header.beginning)}")
        except FormatError as error:
            return Compatibility("cannot", error.message)

    @staticmethod
    def load(processed_bytes: bytes, compile_specs: Sequence[CompileSpec], named_data: Mapping[str, bytes]) -> Delegate:
        """Load a file. FormatError if it is damaged, NoRuntime if this host cannot run it."""
        vgf, signature = unseal(processed_bytes)
        content = content_of(vgf)
        vulkan.require()
        return _Loaded(vgf, content, signature)


class _Loaded:
    """A loaded file, called with tensors in the order of its inputs."""

    def __init__(self, vgf: memoryview, content: Content, signature: Signature) -> None:
        self._signature, borders = signature, (*content.inputs, *content.outputs)
        builder, info = scenario_runner.ScenarioBuilder(), scenario_runner.VgfInfo()
        bound = [(tensor, builder.add_tensor(list(tensor.shape), _format(tensor))) for tensor in borders]
        numbers = [number for _, number in bound]
        self._inputs, self._outputs = numbers[: len(content.inputs)], numbers[len(content.inputs) :]
        with tempfile.NamedTemporaryFile(prefix="delegraph-vgf-", suffix=".vgf") as file:
            file.write(vgf)
            file.flush()
            info.load_source(file.name)
            dispatch = scenario_runner.DispatchVgfData(builder.add_vgf(info))
            kind = scenario_runner.DescriptorType.TensorArm
            dispatch.bindings = [scenario_runner.TypedBinding(0, t.slot, number, kind) for t, number in bound]
            builder.add_dispatch_vgf(dispatch)
            try:
                with vulkan.layers():
                    self._scenario = builder.build()
            except RuntimeError as error:
                raise FormatError("format-invalid", f"the Vulkan driver does not load the file: {error}") from error

    def __call__(self, *args: torch.Tensor | int | float | bool) -> tuple[torch.Tensor, ...]:
        if len(args) != len(self._inputs):
            text = f"the delegate takes {len(self._inputs)} inputs; {len(args)} were given"
            raise InputError("input-invalid", text)
        rows = zip(args, self._inputs, self._signature.inputs, strict=True)
        for position, (arg, number, (dtype, shape)) in enumerate(rows):
            self._scenario.upload(number, _array(_checked(position, arg, dtype, shape)))
        self._scenario.run()
        results = zip(self._outputs, self._signature.outputs, strict=True)
        return tuple(_tensor(self._scenario.download(number), *wanted) for number, wanted in results)


def _format(tensor: Tensor) -> Any:
    return getattr(scenario_runner.Format, FORMATS[tensor.format][1])


def _checked(position: int, arg: Any, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """An argument, if it is what the file takes; InputError if not."""
    if isinstance(arg, torch.Tensor) and tuple(arg.shape) == shape and str(arg.dtype) == f"torch.{dtype}":
        return arg
    told = f"{arg.dtype} {tuple(arg.shape)}" if isinstance(arg, torch.Tensor) else type(arg).__name__
    raise InputError("input-invalid", f"input {position}: {dtype} {shape} is wanted, {told} was given")


def _array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The elements in order, of a type that the scenario runner copies."""
    whole = tensor.detach().contiguous()
    return whole.view(_SAME_SIZE.get(tensor.dtype, tensor.dtype)).reshape(tensor.shape or (1,)).numpy()


def _tensor(array: np.ndarray[Any, Any], dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """A result as a tensor with memory of its own."""
    wanted = getattr(torch, dtype)
    bits = np.array(array).view(str(_SAME_SIZE.get(wanted, wanted)).removeprefix("torch."))
    return torch.from_numpy(bits).view(wanted).reshape(shape)
