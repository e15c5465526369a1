"""``IREERuntime``: runs IREE modules on this host."""

from __future__ import annotations

import atexit
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from itertools import chain
from typing import Any
from weakref import WeakSet

import iree.runtime as iree
import numpy as np
import torch
from delegraph.backend import CompileSpec
from delegraph.errors import FormatError, InputError, NoRuntime
from delegraph.runtime import BackendRuntime, BlobHeader, Compatibility, Delegate
from delegraph_engines import Signature, compare_releases

from .backend import MARK
from .for_iree import OUT_OF_RANGE

_DRIVERS = {"llvm-cpu": ("local-sync", "local-task"), "vulkan-spirv": ("vulkan",)}
"""Target of iree-compile -> the drivers that run its modules, the default first."""
_ELEMENTS = {
    "bool": (np.bool_, iree.HalElementType.BOOL_8),
    "uint8": (np.int8, iree.HalElementType.INT_8),
    "int8": (np.int8, iree.HalElementType.INT_8),
    "int16": (np.int16, iree.HalElementType.INT_16),
    "int32": (np.int32, iree.HalElementType.INT_32),
    "int64": (np.int64, iree.HalElementType.INT_64),
    "float16": (np.float16, iree.HalElementType.FLOAT_16),
    "bfloat16": (np.int16, iree.HalElementType.BFLOAT_16),
    "float32": (np.float32, iree.HalElementType.FLOAT_32),
}
"""Dtype of a tensor -> numpy's type of its bits, and IREE's element type.

TOSA's integer types have no sign.
"""


class IREERuntime(BackendRuntime):
    """Runs IREE modules.

    Modules for llvm-cpu run on the processor, modules for vulkan-spirv on the first
    Vulkan device of the host.
    """

    @staticmethod
    def load(
        processed_bytes: bytes,
        compile_specs: Sequence[CompileSpec],
        named_data: Mapping[str, bytes],
    ) -> Delegate:
        """Load a module.

        Raises FormatError if it is damaged, NoRuntime if the host has no device for it.
        """
        module, signature, facts = Signature.unseal(processed_bytes, MARK)
        for dtype, _ in (*signature.inputs, *signature.outputs):
            if dtype not in _ELEMENTS:
                raise FormatError(
                    "format-invalid",
                    f"the IREE module has a tensor of {dtype}, which delegraph-iree does"
                    " not support",
                )
        target = str(facts.get("target"))
        return _Module(module, _device(target, str(facts.get("driver", ""))), signature)

    @staticmethod
    def compatible(
        header: BlobHeader,
        compile_specs: Sequence[CompileSpec],
        device: str | None = None,
    ) -> Compatibility | None:
        """Compare the releases of IREE.

        IREE promises only that a runtime reads modules of its own release.
        """
        drivers = list(chain.from_iterable(_DRIVERS.values()))
        if device is not None and device not in drivers:
            why = f"{device!r:.40} is no driver of IREE; use {', '.join(drivers)}"
            return Compatibility("cannot", why)
        here = f"iree-base-compiler {version('iree-base-runtime')}"
        return compare_releases(header.fingerprint, here, reads_older=False)


@cache
def _device(target: str, driver: str) -> Any:
    """Return the device for modules of a target; ``driver`` is "" in files without one.

    Raises FormatError for a target or driver that delegraph-iree does not use,
    NoRuntime if this host has no such device.
    """
    drivers = _DRIVERS.get(target)
    if drivers is None:
        raise FormatError(
            "format-invalid",
            f"the IREE module is for {target!r:.40}; delegraph-iree has the targets"
            f" {', '.join(_DRIVERS)}",
        )
    if driver and driver not in drivers:
        raise FormatError(
            "format-invalid",
            f"the IREE module is for {target} and the driver {driver!r:.40}; the"
            f" drivers of this target are {', '.join(drivers)}",
        )
    try:
        return iree.get_device(driver or drivers[0])
    except Exception as error:
        raise NoRuntime(
            "no-runtime", f"IREE has no device for {target} here: {error}"
        ) from error


_LOADED: WeakSet[_Module] = WeakSet()
"""All modules that are in use; ``_unload`` needs them."""


@atexit.register
def _unload() -> None:
    """Release the objects of IREE's bindings before the interpreter ends.

    Otherwise the bindings print a page about each object.
    """
    for module in _LOADED:
        del module._context, module._function, module._device
    _device.cache_clear()


class _Module:
    """A loaded module, called with tensors in the order of its inputs."""

    def __init__(self, module: memoryview, device: Any, signature: Signature) -> None:
        self._signature = signature
        self._device = device
        instance = iree.VmInstance()
        hal = iree.create_hal_module(instance, self._device)
        try:
            loaded = iree.VmModule.copy_buffer(instance, module)
            self._context = iree.VmContext(instance, [hal, loaded])
            self._function = loaded.lookup_function("main")
        except Exception as error:
            raise FormatError(
                "format-invalid", f"IREE cannot load the module: {error}"
            ) from error
        _LOADED.add(self)

    def __call__(self, *args: torch.Tensor | int | float | bool) -> tuple[Any, ...]:
        computed = self._compute(self._signature.arrays(args))
        if isinstance(computed, str):
            if OUT_OF_RANGE in computed:
                raise InputError("input-invalid", OUT_OF_RANGE)
            raise FormatError(
                "format-invalid",
                f"IREE's module does not fit the signature of its blob: {computed}",
            )
        return self._signature.results(computed)

    def _compute(
        self, arrays: list[np.ndarray[Any, Any]]
    ) -> list[np.ndarray[Any, Any]] | str:
        """Return the results, or IREE's error message as text.

        The exception itself is not kept, because its traceback would keep objects of
        the bindings. The bindings have no base class of errors.
        """
        inputs = iree.VmVariantList(len(arrays))
        results = iree.VmVariantList(len(self._signature.outputs))
        for array, (dtype, _) in zip(arrays, self._signature.inputs, strict=True):
            inputs.push_ref(self._copy_to_device(array, dtype))
        try:
            self._context.invoke(self._function, inputs, results)
            outputs = enumerate(self._signature.outputs)
            return [
                _array_in_place(results.get_as_object(k, iree.HalBufferView), dtype)
                for k, (dtype, _) in outputs
            ]
        except Exception as error:
            return str(error)

    def _copy_to_device(self, array: np.ndarray[Any, Any], dtype: str) -> Any:
        """Return a copy of an array in memory of the device."""
        numpy_type, element = _ELEMENTS[dtype]
        return self._device.allocator.allocate_buffer_copy(
            memory_type=iree.MemoryType.DEVICE_LOCAL,
            allowed_usage=iree.BufferUsage.DEFAULT | iree.BufferUsage.MAPPING,
            device=self._device,
            buffer=array.view(numpy_type),
            element_type=element,
        )


def _array_in_place(view: Any, dtype: str) -> np.ndarray[Any, Any]:
    """Return a result as an array in IREE's memory; ValueError if it has another type."""
    numpy_type, element = _ELEMENTS[dtype]
    if view.element_type != int(element):
        raise ValueError(
            f"a result has IREE's element type {view.element_type}, not {dtype}"
        )
    shape = tuple(view.shape)
    array: np.ndarray[Any, Any] = view.map().asarray(shape, np.dtype(numpy_type))
    return array
