"""Runs TOSA blobs on this host with numpy. Takes and returns torch tensors."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from delegraph.backend import CompileSpec
from delegraph.errors import InputError, Unsupported
from delegraph.runtime import (
    BackendRuntime,
    Delegate,
    ObservedDelegate,
    ProfiledDelegate,
)

from .compatible import compatible
from .evaluate import Program, See, check_inputs, check_ranges
from .ir.graph import Array, Graph, Operator, Value
from .ir.operators import (
    CONCAT,
    IDENTITY,
    RESCALE,
    RESHAPE,
    REVERSE,
    SLICE,
    TILE,
    TRANSPOSE,
    VARIABLE,
)
from .ir.types import ARRAY_DTYPES, BLOCK_SCALED, DType
from .lowering.torch_values.tensor_types import BITS, TORCH_DTYPES, array_of
from .options import Options
from .serialize import input_ranges, join_constants, read_numbered

Scalar = int | float | bool


class TOSARuntime(BackendRuntime):
    """Default runtime of the TOSA plugin."""

    thread_safe = True
    compatible = staticmethod(compatible)

    @staticmethod
    def load(
        processed_bytes: bytes,
        compile_specs: Sequence[CompileSpec],
        named_data: Mapping[str, bytes],
    ) -> Delegate:
        """Read a ``.tosa`` blob and prepare it for calls.

        Of the compile specs, only ``input_order`` matters here. Raises FormatError for
        a damaged blob, and Unsupported for an operator that this host cannot compute.
        """
        return _load(processed_bytes, compile_specs, named_data)[0]

    @staticmethod
    def observe(
        processed_bytes: bytes,
        compile_specs: Sequence[CompileSpec],
        named_data: Mapping[str, bytes],
    ) -> ObservedDelegate:
        """As ``load``; each call also returns the results of the operators, by number.

        Leaves out operators in graphs of control flow and types that torch does not
        have.
        """
        loaded, numbers = _load(processed_bytes, compile_specs, named_data)

        def call(
            *args: torch.Tensor | Scalar,
        ) -> tuple[tuple[Any, ...], dict[Any, tuple[torch.Tensor, ...]]]:
            seen: dict[Any, tuple[torch.Tensor, ...]] = {}

            def see(operator: Operator, results: Sequence[Array]) -> None:
                if all(value.dtype in TORCH_DTYPES for value in operator.outputs):
                    pairs = zip(results, operator.outputs, strict=True)
                    seen[numbers.get(operator, -1)] = tuple(
                        _copied_to_tensor(array, value) for array, value in pairs
                    )

            return loaded.observe(args, see), seen

        return call

    @staticmethod
    def profile(
        processed_bytes: bytes,
        compile_specs: Sequence[CompileSpec],
        named_data: Mapping[str, bytes],
    ) -> ProfiledDelegate:
        """As ``load``; each call also returns the seconds of the operators, by number.

        The time of operators inside control flow counts for the loop or branch.
        """
        loaded, numbers = _load(processed_bytes, compile_specs, named_data)

        def call(
            *args: torch.Tensor | Scalar,
        ) -> tuple[tuple[Any, ...], dict[Any, dict[str, Any]]]:
            spent: dict[Any, dict[str, Any]] = {}
            before = time.perf_counter()

            def see(operator: Operator, results: Sequence[Array]) -> None:
                nonlocal before
                now = time.perf_counter()
                amounts = spent.setdefault(
                    numbers.get(operator), {"seconds": 0.0, "intervals": []}
                )
                amounts["seconds"] += now - before
                amounts["intervals"].append((before, now))
                before = time.perf_counter()

            return loaded.observe(args, see), spent

        return call


def _load(
    processed_bytes: bytes,
    compile_specs: Sequence[CompileSpec],
    named_data: Mapping[str, bytes],
) -> tuple[LoadedGraph, dict[Operator, int]]:
    """Read a blob: return its graph and the number of each operator in the file."""
    data = join_constants(processed_bytes, named_data)
    graph, numbers = read_numbered(data)
    order = Options.parse(compile_specs).input_order if compile_specs else None
    return LoadedGraph(graph, input_ranges(data, graph), order), numbers


class LoadedGraph:
    """A TOSA graph that is called with CPU tensors and returns a tuple of new tensors.

    Raises InputError for inputs of a wrong number, shape or element type. The
    constructor raises Unsupported if inputs or outputs are block-scaled. The graph's
    variables persist between calls. Calls are thread-safe; with variables, they run one
    after the other.
    """

    def __init__(
        self,
        graph: Graph,
        ranges: Mapping[int, tuple[int, int]] = MappingProxyType({}),
        order: Sequence[int] | None = None,
    ) -> None:
        """Prepare a graph for calls.

        ``ranges`` maps the position of an index input to the range of valid indices.
        ``order``: the graph's input i is argument ``order[i]`` of a call.
        """
        for value in (*graph.inputs, *graph.outputs):
            if value.dtype in BLOCK_SCALED:
                why = (
                    "crosses the boundary, but torch has no block-scaled tensors: use"
                    " CAST inside the graph"
                )
                raise Unsupported("unsupported", f"{value!r} {why}")
        self.program = Program(graph)
        self._ranges = ranges
        self._order = order
        self._call_lock: AbstractContextManager[Any] = (
            threading.Lock() if _has_variables(graph) else nullcontext()
        )
        self._variables: dict[str, Array] = {}
        # int8 values that represent uint8
        self._unsigned = _unsigned(graph)
        # memory of the constants
        self._constants = frozenset(
            _memory_of(array) for array in self.program.constants.values()
        )

    def __call__(self, *args: torch.Tensor | Scalar) -> tuple[torch.Tensor, ...]:
        """Run a call."""
        return self.observe(args, None)

    def observe(
        self, args: Sequence[torch.Tensor | Scalar], see: See | None
    ) -> tuple[torch.Tensor, ...]:
        """Run a call; ``see`` is called with the results of each operator."""
        if self._order is not None:
            args = [args[position] for position in self._order]
        tensors = [_tensor(position, arg) for position, arg in enumerate(args)]
        wanted = self.program.graph.inputs
        types = [
            (tuple(tensor.shape), self._array_dtype(tensor.dtype, position))
            for position, tensor in enumerate(tensors)
        ]
        check_inputs(wanted, types)
        arrays = [
            _as_signed(array_of(t), v) for t, v in zip(tensors, wanted, strict=True)
        ]
        check_ranges(wanted, arrays, self._ranges)
        with self._call_lock:
            return self._run(arrays, see)

    def _run(
        self, inputs: Sequence[Array], see: See | None
    ) -> tuple[torch.Tensor, ...]:
        """Run the program and copy results that share memory.

        Variables change only if the whole call succeeds. They share no memory with the
        caller's tensors.
        """
        given = {_memory_of(array) for array in inputs}
        variables = dict(self._variables)
        outputs = self.program(inputs, variables, see)
        self._variables = {
            name: _in_own_memory(array, given) for name, array in variables.items()
        }
        of_variables = {_memory_of(array) for array in self._variables.values()}
        taken = self._constants | given | of_variables
        results: list[torch.Tensor] = []
        for output, value in zip(outputs, self.program.graph.outputs, strict=True):
            result = torch.from_numpy(_in_own_memory(output, taken))
            if value.dtype in _AS_BITS:
                result = result.view(_AS_BITS[value.dtype])
            elif value in self._unsigned:
                result = result.view(torch.uint8)
            results.append(result)
            taken = taken | {_memory_of(output)}
        return tuple(results)

    def _array_dtype(self, dtype: torch.dtype, position: int) -> str:
        """Return the name of the array type for a tensor type.

        If the input at ``position`` has a type that numpy lacks, such as bfloat16, a
        tensor of this type counts as its bits, uint16. A tensor of integers does not:
        it keeps a name that ``check_inputs`` refuses. In the same way, uint8 counts as
        int8 for an input that represents uint8.
        """
        inputs = self.program.graph.inputs
        expected = inputs[position] if position < len(inputs) else None
        if expected is not None and expected.dtype in _AS_BITS:
            if dtype is _AS_BITS[expected.dtype]:
                return ARRAY_DTYPES[expected.dtype].name
            return str(dtype)
        if dtype is torch.uint8 and expected in self._unsigned:
            return "int8"
        return str(dtype).removeprefix("torch.")


_AS_BITS = {dtype: known for dtype, known in TORCH_DTYPES.items() if known in BITS}
"""Maps element types that arrays hold as bits to their torch type."""


def _copied_to_tensor(array: Array, value: Value) -> torch.Tensor:
    """Return a copy as a tensor. The array may be a view of memory that changes."""
    tensor = torch.from_numpy(np.array(array, order="C"))
    known = _AS_BITS.get(value.dtype)
    return tensor if known is None else tensor.view(known)


def _has_variables(graph: Graph) -> bool:
    """Return whether the program or a graph of its control flow declares variables."""
    for body in graph.reachable():
        if any(isinstance(operator, VARIABLE) for operator in body.operators):
            return True
    return False


_MOVES = (RESHAPE, TRANSPOSE, SLICE, CONCAT, TILE, REVERSE, IDENTITY)
"""Operators that passes move between RESCALE and the border."""


def _unsigned(graph: Graph) -> frozenset[Value]:
    """Return the int8 values that represent uint8.

    They are operands or results of a RESCALE that is unsigned there. Results of
    operators that only move such elements represent uint8, too, and so do their
    operands. Unused inputs are accepted as either type.
    """
    rescales = [op for op in graph.operators if isinstance(op, RESCALE)]
    found = {op.input for op in rescales if op.input_unsigned}
    found |= {op.outputs[0] for op in rescales if op.output_unsigned}
    moves = [op for op in graph.operators if isinstance(op, _MOVES)]
    for operator in moves:
        if found & set(operator.inputs):
            found.update(operator.outputs)
    for operator in reversed(moves):
        if found & set(operator.outputs):
            found.update(operator.inputs)
    used = set(graph.outputs)
    for user in graph.operators:
        used.update(user.inputs)
    found.update(value for value in graph.inputs if value not in used)
    return frozenset(value for value in found if value.dtype is DType.INT8)


def _as_signed(array: Array, value: Value) -> Array:
    """Return an array with the element type of ``value``; int8 may represent uint8."""
    return array.view(np.int8) if value.dtype is DType.INT8 else array


def _tensor(position: int, arg: torch.Tensor | Scalar) -> torch.Tensor:
    """Return an argument, which must be a tensor on the CPU."""
    if isinstance(arg, torch.Tensor) and arg.device.type == "cpu" and not arg.is_nested:
        return arg
    text = f"input {position} must be a tensor on the CPU; {_described(arg)} was given"
    raise InputError(
        "input-invalid",
        text,
        hint="torch.from_numpy(array)" if isinstance(arg, np.ndarray) else None,
    )


def _described(arg: object) -> str:
    """Describe an argument that is no CPU tensor; short values are included."""
    if isinstance(arg, torch.Tensor) and arg.is_nested:
        return "a nested tensor"
    if isinstance(arg, torch.Tensor):
        return f"a tensor on {arg.device}"
    if arg is None or isinstance(arg, (bool, int, float)):
        return repr(arg)
    return f"a {type(arg).__name__}"


def _in_own_memory(output: Array, taken: Set[int]) -> Array:
    """Return an output as a contiguous array that shares no memory with ``taken``.

    Otherwise torch could write through it into an input, a constant or another output.
    Reversed arrays are copied too: numpy calls a reversed axis of size 1 contiguous,
    but torch takes no negative stride.
    """
    is_shared = _memory_of(output) in taken
    is_reversed = any(stride < 0 for stride in output.strides)
    if is_shared or is_reversed:
        return np.array(output, order="C")
    return np.asarray(output, order="C")


def _memory_of(array: Array) -> int:
    """Return the identity of the array that owns the memory of ``array``."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return id(array)
