"""Compiles Core AI programs for this host, loads them, and calls them with arrays.

Core AI's runtime is asynchronous: a call outside of an event loop ends the process. So
each thread has an event loop. If the loop of a thread already runs, as in a notebook, a
second thread makes the call.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
from coreai._compiler._mlir_libs._coreaiIR._bindings.compiler import (
    compile_to_binary,
    load_module_from_bytecode,
    serialize_module,
)
from coreai._compiler.context import Context
from coreai.authoring import AIProgram
from coreai.runtime import AIModel, InferenceFunction, NDArray
from delegraph.errors import FormatError
from delegraph_engines import Signature
from delegraph_engines.signature import DeclaredType, Type

from .least_sizes import Least, expect_least
from .names import NARROW

Array = np.ndarray[Any, Any]
_LOCAL = threading.local()
"""Its attribute ``loop`` is the event loop of a thread."""


def bytecode_of(program: AIProgram) -> bytes:
    """Return a program as the file ``main.mlirb`` of an ``.aimodel`` folder."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "main.mlirb")
        program._save_bytecode(path)
        return path.read_bytes()


def compile_for_host(module: Any, folder: Path) -> None:
    """Compile a module into ``folder``, as code and as the bytecode that calls it.

    The compiler replaces the operators of ``module`` by calls of the code. Raises RuntimeError if Core AI's compiler refuses it.
    """
    compile_to_binary(module=module, output_directory=folder, enable_debug_info=False)
    serialize_module(module=module, path=folder / "main-universal.odix")


def load_model(bytecode: Iterable[bytes | memoryview]) -> AIModel:
    """Return a program, compiled for this host. Raises FormatError with the reason.

    ``bytecode``: the parts of the file, in order. The compiled file can be removed
    after loading, because Core AI has mapped it into memory.
    """
    with tempfile.TemporaryDirectory(suffix=".aimodelx") as temporary:
        folder = Path(temporary)
        source = folder / "main.mlirb"
        with source.open("wb") as file:
            file.writelines(bytecode)
        try:
            context = Context()._mlir_context
            module = load_module_from_bytecode(context=context, path=source)
            source.unlink()
            compile_for_host(module, folder)
            return run_coroutine(AIModel.load(folder))
        except (RuntimeError, ValueError) as error:
            raise _damaged(error) from error


def load_function(model: AIModel, name: str) -> InferenceFunction:
    """Return a function of a program. Raises FormatError if there is none."""
    try:
        return model.load_function(name)
    except (RuntimeError, ValueError, KeyError) as error:
        raise _damaged(error) from error


def _damaged(error: Exception) -> FormatError:
    text = str(error).strip().replace("\n", " ")
    return FormatError("format-invalid", f"Core AI: {text:.300}")


def run_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine of Core AI."""
    if asyncio._get_running_loop() is not None:
        return _second_thread().submit(run_coroutine, coroutine).result()
    if not hasattr(_LOCAL, "loop"):
        _LOCAL.loop = asyncio.new_event_loop()
    return _LOCAL.loop.run_until_complete(coroutine)


@cache
def _second_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "coreai")


class Loaded:
    """A function of Core AI, called with tensors. Results are new tensors.

    Several threads may call it.
    """

    def __init__(
        self,
        function: InferenceFunction,
        signature: Signature,
        states: Mapping[str, NDArray],
        least: Iterable[Least] = (),
    ) -> None:
        """Check the types of ``function``; FormatError if they are not ``signature``.

        ``states``: the values that Core AI changes in place, by name. ``least``: the
        least sizes of inputs.
        """
        self.function = function
        self.signature = signature
        self._states = dict(states)
        # calls of several threads would change the states at the same time
        self._states_lock = threading.Lock() if states else nullcontext()
        self._least = list(least)
        self._inputs = function.desc.input_names
        self._outputs = function.desc.output_names
        why = self._why_mismatch()
        if why is not None:
            raise FormatError(
                "format-invalid",
                f"the Core AI model does not fit the signature in its blob: {why}",
            )

    def __call__(self, *args: torch.Tensor | int | float | bool) -> tuple[Any, ...]:
        arrays = self.signature.arrays(args, int64_bits=32)
        expect_least(self._least, arrays)
        types = [dtype for dtype, _ in self.signature.inputs]
        values = map(value_of, arrays, types)
        inputs = dict(zip(self._inputs, values, strict=True))
        with self._states_lock:
            results = run_coroutine(self._run(inputs))
        types = [dtype for dtype, _ in self.signature.outputs]
        return self.signature.results(map(_array_of, results, types))

    async def _run(self, inputs: Mapping[str, NDArray]) -> Sequence[NDArray]:
        results = await self.function(inputs, self._states)
        return [results[name] for name in self._outputs]

    def _why_mismatch(self) -> str | None:
        """Return how the types of the model differ from those of its blob, or None."""
        described = self.function.desc
        inputs = map(described.input_descriptor, self._inputs)
        outputs = map(described.output_descriptor, self._outputs)
        return self.signature.why_mismatch(
            _declared(inputs, self.signature.inputs),
            _declared(outputs, self.signature.outputs),
        )


def _declared(descriptors: Iterable[Any], types: Sequence[Type]) -> list[DeclaredType]:
    """Return the types of a model, as the signature names them.

    ``types``: those of the signature. An int64 is int32 in the model, and a number is a
    tensor of one element.
    """
    declared = list[DeclaredType]()
    for k, descriptor in enumerate(descriptors):
        dtype = descriptor.dtype
        sizes = tuple(-1 if size is None else int(size) for size in descriptor.shape)
        wanted = types[k][0] if k < len(types) else ""
        if NARROW.get(wanted) == dtype:
            dtype = "int64"
        if wanted == "int" and sizes == (1,):
            sizes = ()
        declared.append((dtype, sizes))
    return declared


def value_of(array: Array, dtype: str) -> NDArray:
    """Return an argument of Core AI, which copies the elements."""
    if dtype == "bfloat16":
        array = array.view(ml_dtypes.bfloat16)
    elif dtype in NARROW:
        array = array.astype(NARROW[dtype])
    if dtype == "int":
        array = array.reshape(1)
    return NDArray(array)


def _array_of(value: NDArray, dtype: str) -> Array:
    """Return a result with the bits of its type. It may share memory with ``value``."""
    array: Array = value.numpy()
    if dtype == "bfloat16":
        array = array.view(np.int16)
    elif dtype in NARROW:
        array = array.astype(np.int64)
    return array
