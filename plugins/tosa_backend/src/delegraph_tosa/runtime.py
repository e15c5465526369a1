"""Runs TOSA blobs on this host: torch tensors in, torch tensors out, numpy in between."""

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
    """The TOSA plugin's default runtime."""

    thread_safe = True
    compatible = staticmethod(compatible)

    @staticmethod
    def load(
        processed_bytes: bytes,
        compile_specs: Sequence[CompileSpec],
        named_data: Mapping[str, bytes],
    ) -> Delegate:
        """Read a ``.tosa`` blob and prepare it for calls; of the compile specs only
        ``input_order`` matters here.

        Raises FormatError if it is damaged, Unsupported if it contains an operator that
        this host does not compute.
        """
        return _load(processed_bytes, compile_specs, named_data)[0]

    @staticmethod
    def observe(
        processed_bytes: bytes,
        compile_specs: Sequence[CompileSpec],
        named_data: Mapping[str, bytes],
    ) -> ObservedDelegate:
        """As ``load``; each call also tells what the operators computed, by their
        numbers in the file.

        Not told: operators in graphs of control flow, and types that torch does not
        have.
        """
        loaded, numbers = _load(processed_bytes, compile_specs, named_data)

        def call(
            *args: torch.Tensor | Scalar,
        ) -> tuple[tuple[Any, ...], dict[Any, tuple[torch.Tensor, ...]]]:
            seen: dict[Any, tuple[torch.Tensor, ...]] = {}

            def see(operator: Operator, results: Sequence[Array]) -> None:
                if all(value.dtype in _SHOWN for value in operator.outputs):
                    pairs = zip(results, operator.outputs, strict=True)
                    seen[numbers.get(operator, -1)] = tuple(
                        _shown(array, value) for array, value in pairs
                    )

            return loaded.observe(args, see), seen

        return call

    @staticmethod
    def profile(
        processed_bytes: bytes,
        compile_specs: Sequence[CompileSpec],
        named_data: Mapping[str, bytes],
    ) -> ProfiledDelegate:
        """As ``load``; each call also tells how long the operators took, by their
        numbers in the file.

        Not told one by one: operators in graphs of control flow, whose time the loop or
        branch has.
        """
        loaded, numbers = _load(processed_bytes, compile_specs, named_data)

        def call(
            *args: torch.Tensor | Scalar,
        ) -> tuple[tuple[Any, ...], dict[Any, dict[str, float]]]:
            spent: dict[Any, dict[str, float]] = {}
            before = time.perf_counter()

            def see(operator: Operator, results: Sequence[Array]) -> None:
                nonlocal before
                now = time.perf_counter()
                amounts = spent.setdefault(numbers.get(operator), {"seconds": 0.0})
                amounts["seconds"] += now - before
                before = time.perf_counter()

            return loaded.observe(args, see), spent

        return call


def _load(
    processed_bytes: bytes,
    compile_specs: Sequence[CompileSpec],
    named_data: Mapping[str, bytes],
) -> tuple[LoadedGraph, dict[Operator, int]]:
    """The graph of a blob, and the number in the file of each operator."""
    data = join_constants(processed_bytes, named_data)
    graph, numbers = read_numbered(data)
    order = Options.parse(compile_specs).input_order if compile_specs else None
    return LoadedGraph(graph, input_ranges(data, graph), order), numbers


class LoadedGraph:
    """A TOSA graph that is called with CPU tensors in the order of its inputs; returns
    a tuple of new tensors.

    Raises InputError for inputs of another number, shape or element type; Unsupported,
    when it is made, for a graph that takes or returns block-scaled tensors. It keeps
    the graph's variables from call to call. May be called from many threads; with
    variables, calls run one after the other.
    """

    def __init__(
        self,
        graph: Graph,
        ranges: Mapping[int, tuple[int, int]] = MappingProxyType({}),
        order: Sequence[int] | None = None,
    ) -> None:
        """``ranges``: position of an input with indices -> the range in which they must
        lie.

        ``order``: the graph's input i is argument ``order[i]`` of a call.
        """
        for value in (*graph.inputs, *graph.outputs):
            if value.dtype in BLOCK_SCALED:
                why = (
                    "crosses the boundary, and torch has no block-scaled tensors: CAST"
                    " inside of the graph"
                )
                raise Unsupported("unsupported", f"{value!r} {why}")
        self.program = Program(graph)
        self._ranges = ranges
        self._order = order
        self._turn: AbstractContextManager[Any] = (
            threading.Lock() if _has_variables(graph) else nullcontext()
        )
        self._variables: dict[str, Array] = {}
        self._unsigned = _unsigned(graph)
        self._constants = frozenset(
            _root(array) for array in self.program.constants.values()
        )

    def __call__(self, *args: torch.Tensor | Scalar) -> tuple[torch.Tensor, ...]:
        return self.observe(args, None)

    def observe(
        self, args: Sequence[torch.Tensor | Scalar], see: See | None
    ) -> tuple[torch.Tensor, ...]:
        """As a call; ``see`` is told what each operator computes."""
        if self._order is not None:
            args = [args[position] for position in self._order]
        tensors = [_tensor(position, arg) for position, arg in enumerate(args)]
        wanted = self.program.graph.inputs
        check_inputs(
            wanted,
            [
                (tuple(t.shape), self._held_as(t.dtype, k))
                for k, t in enumerate(tensors)
            ],
        )
        arrays = [_held(array_of(t), v) for t, v in zip(tensors, wanted, strict=True)]
        check_ranges(wanted, arrays, self._ranges)
        with self._turn:
            return self._run(arrays, see)

    def _run(
        self, inputs: Sequence[Array], see: See | None
    ) -> tuple[torch.Tensor, ...]:
        """Variables change if the whole call succeeds, and share no memory with what
        the caller has.
        """
        given = {_root(array) for array in inputs}
        held = dict(self._variables)
        outputs = self.program(inputs, held, see)
        self._variables = {name: _owned(array, given) for name, array in held.items()}
        taken = (
            self._constants
            | given
            | {_root(array) for array in self._variables.values()}
        )
        results = []
        for output, value in zip(outputs, self.program.graph.outputs, strict=True):
            result = torch.from_numpy(_owned(output, taken))
            if value.dtype in _AS_BITS:
                result = result.view(_AS_BITS[value.dtype])
            elif value in self._unsigned:
                result = result.view(torch.uint8)
            results.append(result)
            taken = taken | {_root(output)}
        return tuple(results)

    def _held_as(self, dtype: torch.dtype, position: int) -> str:
        """The name of the element type of an array; of what numpy or TOSA lacks, that
        of its bits, where it is due.

        Where such bits are due, integers are told by another name: they are not what
        the caller means to give.
        """
        inputs = self.program.graph.inputs
        due = inputs[position] if position < len(inputs) else None
        if due is not None and due.dtype in _AS_BITS:
            return (
                ARRAY_DTYPES[due.dtype].name
                if dtype is _AS_BITS[due.dtype]
                else str(dtype)
            )
        return (
            "int8"
            if dtype is torch.uint8 and due in self._unsigned
            else str(dtype).removeprefix("torch.")
        )


_AS_BITS = {dtype: known for dtype, known in TORCH_DTYPES.items() if known in BITS}
"""Element types that arrays have as bits -> torch's type of them."""
_SHOWN = frozenset(TORCH_DTYPES)


def _shown(array: Array, value: Value) -> torch.Tensor:
    """A copy as a tensor: the array may be a view of what changes."""
    tensor = torch.from_numpy(np.array(array, order="C"))
    known = _AS_BITS.get(value.dtype)
    return tensor if known is None else tensor.view(known)


def _has_variables(graph: Graph) -> bool:
    return any(
        isinstance(op, VARIABLE) for g in graph.reachable() for op in g.operators
    )


_MOVES = (RESHAPE, TRANSPOSE, SLICE, CONCAT, TILE, REVERSE, IDENTITY)
"""Operators that passes put between RESCALE and the border."""


def _unsigned(graph: Graph) -> frozenset[Value]:
    """The int8 values that stand for uint8.

    A RESCALE says so of its operand or result, and what only moves the one keeps the
    type of the other. An input that nothing uses is taken as either.
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
    used = {value for op in graph.operators for value in op.inputs} | set(graph.outputs)
    found.update(value for value in graph.inputs if value not in used)
    return frozenset(value for value in found if value.dtype is DType.INT8)


def _held(array: Array, value: Value) -> Array:
    """An array with the bits of ``value``, which may be int8 that stands for uint8."""
    return array.view(np.int8) if value.dtype is DType.INT8 else array


def _tensor(position: int, arg: torch.Tensor | Scalar) -> torch.Tensor:
    if isinstance(arg, torch.Tensor) and arg.device.type == "cpu" and not arg.is_nested:
        return arg
    text = (
        f"input {position}: a tensor on the CPU is wanted, {_described(arg)} was given"
    )
    raise InputError(
        "input-invalid",
        text,
        hint="torch.from_numpy(array)" if isinstance(arg, np.ndarray) else None,
    )


def _described(arg: object) -> str:
    """What was given in the place of a tensor on the CPU; values only of what is short."""
    if isinstance(arg, torch.Tensor) and arg.is_nested:
        return "a nested tensor"
    if isinstance(arg, torch.Tensor):
        return f"a tensor on {arg.device}"
    return (
        repr(arg)
        if arg is None or isinstance(arg, (bool, int, float))
        else f"a {type(arg).__name__}"
    )


def _owned(output: Array, taken: Set[int]) -> Array:
    """An array in memory of its own, in order: torch must not write through it to an
    input, a constant or a sibling.

    numpy takes a reversed axis of size 1 to be in order, torch takes no negative stride
    at all.
    """
    is_shared = _root(output) in taken
    is_reversed = any(stride < 0 for stride in output.strides)
    return (
        np.array(output, order="C")
        if is_shared or is_reversed
        else np.asarray(output, order="C")
    )


def _root(array: Array) -> int:
    """Identity of the memory that an array is a view of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return id(array)
