"""``VgfRuntime``: runs VGF files by Arm's scenario runner and emulation layer."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scenario_runner
import torch
from delegraph.backend import CompileSpec
from delegraph.errors import FormatError
from delegraph.runtime import BackendRuntime, BlobHeader, Compatibility, Delegate
from delegraph_engines import Signature

from . import vulkan
from .content import FORMATS, MARK, Content, Tensor, content_of, version_of

_SAME_SIZE = {"uint8": np.int8, "bool": np.uint8}
"""Dtypes that the scenario runner cannot copy -> one of the same size.

TOSA's integer types have no sign.
"""


class VgfRuntime(BackendRuntime):
    """Runs VGF files on the first Vulkan device of this host."""

    @staticmethod
    def is_available() -> bool:
        """Return True; raise NoRuntime with the missing part otherwise."""
        vulkan.require()
        return True

    @staticmethod
    def compatible(
        header: BlobHeader,
        compile_specs: Sequence[CompileSpec],
        device: str | None = None,
    ) -> Compatibility | None:
        """Return "runs" if the header of the file has a version that we read.

        Nothing else is compared: drivers compile the file when they load it.
        """
        try:
            return Compatibility("runs", f"VGF {version_of(header.beginning)}")
        except FormatError as error:
            return Compatibility("cannot", error.message)

    @staticmethod
    def load(
        processed_bytes: bytes,
        compile_specs: Sequence[CompileSpec],
        named_data: Mapping[str, bytes],
    ) -> Delegate:
        """Load a file.

        Raises FormatError if it is damaged, NoRuntime if this host cannot run it.
        """
        vgf, signature, _ = Signature.unseal(processed_bytes, MARK)
        content = content_of(vgf)
        why = content.why_mismatch(signature)
        if why is not None:
            raise FormatError(
                "format-invalid",
                f"the VGF file does not fit the signature in its blob: {why}",
            )
        vulkan.require()
        return _Loaded(vgf, content, signature)


class _Loaded:
    """A loaded file, called with tensors in the order of its inputs."""

    def __init__(self, vgf: memoryview, content: Content, signature: Signature) -> None:
        self._signature = signature
        arguments = (*content.inputs, *content.outputs)
        builder = scenario_runner.ScenarioBuilder()
        info = scenario_runner.VgfInfo()
        numbers = [
            builder.add_tensor(list(tensor.shape), _format(tensor))
            for tensor in arguments
        ]
        self._inputs = numbers[: len(content.inputs)]
        self._outputs = numbers[len(content.inputs) :]
        with tempfile.NamedTemporaryFile(
            prefix="delegraph-vgf-", suffix=".vgf"
        ) as file:
            file.write(vgf)
            file.flush()
            info.load_source(file.name)
            dispatch = scenario_runner.DispatchVgfData(builder.add_vgf(info))
            kind = scenario_runner.DescriptorType.TensorArm
            # all tensors are bindings of the descriptor set 0
            dispatch.bindings = [
                scenario_runner.TypedBinding(0, tensor.slot, number, kind)
                for tensor, number in zip(arguments, numbers, strict=True)
            ]
            builder.add_dispatch_vgf(dispatch)
            try:
                with vulkan.layers():
                    self._scenario = builder.build()
            except RuntimeError as error:
                raise FormatError(
                    "format-invalid",
                    f"the Vulkan driver does not load the file: {error}",
                ) from error

    def __call__(self, *args: torch.Tensor | int | float | bool) -> tuple[Any, ...]:
        arrays = self._signature.arrays(args)
        types = self._signature.inputs
        for array, number, type_ in zip(arrays, self._inputs, types, strict=True):
            dtype, shape = type_
            as_uploaded = array.view(_SAME_SIZE.get(dtype, array.dtype))
            # Vulkan has no tensors without dimensions
            self._scenario.upload(number, as_uploaded.reshape(shape or (1,)))
        self._scenario.run()
        return self._signature.results(map(self._scenario.download, self._outputs))


def _format(tensor: Tensor) -> Any:
    """Return the scenario runner's format for a tensor with a Vulkan format number."""
    return getattr(scenario_runner.Format, FORMATS[tensor.format].runner)
