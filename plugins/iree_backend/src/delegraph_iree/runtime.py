"""``IREERuntime``: runs IREE modules on this host."""

from __future__ import annotations

import atexit
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from typing import Any
from weakref import WeakSet

import iree.runtime as iree
import numpy as np
import torch
from delegraph.backend import CompileSpec
from delegraph.errors import FormatError, InputError, NoRuntime
from delegraph.runtime import BackendRuntime, BlobHeader, Compatibility, Delegate

from .module import Signature, unpack

_DRIVERS = {"llvm-cpu": "local-task", "vulkan-spirv": "vulkan"}
"""Target of iree-compile -> the driver of IREE's runtime that runs what is compiled for it."""
_ELEMENTS = {
    torch.bool: (torch.bool, "BOOL_8"),
    torch.uint8: (torch.int8, "INT_8"),
    torch.int8: (torch.int8, "INT_8"),
    torch.int16: (torch.int16, "INT_16"),
    torch.int32: (torch.int32, "INT_32"),
    torch.int64: (torch.int64, "INT_64"),
    torch.float16: (torch.float16, "FLOAT_16"),
    torch.bfloat16: (torch.int16, "BFLOAT_16"),
    torch.float32: (torch.float32, "FLOAT_32"),
}
"""Dtype of a tensor -> the one of equal size that numpy has, and IREE's element type."""
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in _ELEMENTS}


class IREERuntime(BackendRuntime):
    """Runs modules for llvm-cpu on all processors of the host, those for vulkan-spirv on its first Vulkan device."""

    @staticmethod
    def load(processed_bytes: bytes, compile_specs: Sequence[CompileSpec], named_data: Mapping[str, bytes]) -> Delegate:
        """Load a module. FormatError if it is damaged, NoRuntime if the host has no device for its target."""
        return _Module(*_checked_blob(processed_bytes))

    @staticmethod
    def compatible(
        header: BlobHeader, compile_specs: Sequence[CompileSpec], device: str | None = None
    ) -> Compatibility | None:
        """By the releases of IREE, which promises no more than that a runtime reads modules of its own release."""
        if device is not None and device not in _DRIVERS.values():
            return Compatibility(
                "cannot", f"IREE has no driver {device!r:.40} here, but {', '.join(_DRIVERS.values())}"
            )
        theirs, ours = (_RELEASE.match(text) for text in (header.fingerprint, f"iree-base-compiler {version(RUNTIME)}"))
        if theirs is None or ours is None:
            return None
        told = f"compiled by IREE {theirs.group(1)}, and its runtime here is {ours.group(1)}"
        return Compatibility("runs" if theirs.group(1) == ours.group(1) else "rebuild", told)


_RELEASE = re.compile(r"iree-base-compiler (\d{1,6}\.\d{1,6})")
RUNTIME = "iree-base-runtime"


def _checked_blob(blob: bytes) -> tuple[memoryview, Signature]:
    """The parts of a blob, if its signature has targets and types that there are; else FormatError."""
    module, signature = unpack(blob)
    for dtype, shape in (*signature.inputs, *signature.outputs):
        if dtype not in DTYPES or any(type(size) is not int or size < -1 for size in shape):
            raise FormatError("format-invalid", f"an IREE module with a tensor of {dtype!r:.40} and {shape!r:.80}")
    return module, signature


@cache
def _device(target: str) -> Any:
    """The device that runs modules of a target; NoRuntime says what IREE says if there is none."""
    driver = _DRIVERS.get(target)
    if driver is None:
        raise FormatError("format-invalid", f"an IREE module for {target!r}, which is no target of delegraph-iree")
    try:
        return iree.get_device(driver)
    except Exception as error:
        raise NoRuntime("no-runtime", f"IREE has no device for {target} here: {error}") from error


_LOADED: WeakSet[_Module] = WeakSet()


@atexit.register
def _unload() -> None:
    """Let go of what IREE's bindings made: they print a page about each object that outlives the interpreter."""
    for module in _LOADED:
        del module._context, module._function, module._device
    _device.cache_clear()


class _Module:
    """A loaded module, called with tensors in the order of its inputs."""

    def __init__(self, module: memoryview, signature: Signature) -> None:
        self._signature, self._device = signature, _device(signature.target)
        instance = iree.VmInstance()
        hal = iree.create_hal_module(instance, self._device)
        try:
            loaded = iree.VmModule.copy_buffer(instance, module)
            self._context = iree.VmContext(instance, [hal, loaded])
            self._function = loaded.lookup_function("main")
        except Exception as error:
            raise FormatError("format-invalid", f"IREE cannot load the module: {error}") from error
        _LOADED.add(self)
        self._dtypes = [DTYPES[dtype] for dtype, _ in signature.outputs]

    def __call__(self, *args: torch.Tensor | int | float | bool) -> tuple[torch.Tensor, ...]:
        inputs, results = iree.VmVariantList(len(args)), iree.VmVariantList(len(self._dtypes))
        if len(args) != len(self._signature.inputs):
            text = f"the delegate takes {len(self._signature.inputs)} inputs; {len(args)} were given"
            raise InputError("input-invalid", text)
        for position, (arg, (dtype, shape)) in enumerate(zip(args, self._signature.inputs, strict=True)):
            inputs.push_ref(self._view(_checked(position, arg, dtype, shape)))
        self._context.invoke(self._function, inputs, results)
        views = (results.get_as_object(k, iree.HalBufferView) for k in range(len(self._dtypes)))
        return tuple(_tensor(view, dtype) for view, dtype in zip(views, self._dtypes, strict=True))

    def _view(self, tensor: torch.Tensor) -> Any:
        """A copy of a tensor in memory of the device."""
        held, element = _ELEMENTS[tensor.dtype]
        return self._device.allocator.allocate_buffer_copy(
            memory_type=iree.MemoryType.DEVICE_LOCAL,
            allowed_usage=iree.BufferUsage.DEFAULT | iree.BufferUsage.MAPPING,
            device=self._device,
            buffer=tensor.detach().contiguous().view(held).numpy(),
            element_type=getattr(iree.HalElementType, element),
        )


def _checked(position: int, arg: Any, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """An argument, if it is what the module takes; InputError if not. IREE would read beyond a tensor that is short."""
    fits = isinstance(arg, torch.Tensor) and arg.dim() == len(shape) and str(arg.dtype) == f"torch.{dtype}"
    if not fits or any(wanted not in (-1, size) for size, wanted in zip(arg.shape, shape, strict=True)):
        told = f"{arg.dtype} {tuple(arg.shape)}" if isinstance(arg, torch.Tensor) else type(arg).__name__
        raise InputError("input-invalid", f"input {position}: {dtype} {shape} is wanted, {told} was given")
    return arg  # type: ignore[no-any-return]


def _tensor(view: Any, dtype: torch.dtype) -> torch.Tensor:
    """A result as a tensor with memory of its own."""
    held, _ = _ELEMENTS[dtype]
    array = view.map().asarray(tuple(view.shape), np.dtype(str(held).removeprefix("torch.")))
    return torch.from_numpy(np.array(array)).view(dtype)
