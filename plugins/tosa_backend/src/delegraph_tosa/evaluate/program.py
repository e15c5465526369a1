"""Prepares a graph to run on numpy arrays, and runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from types import MappingProxyType

import numpy as np
from delegraph.errors import InputError, InternalError

from ..ir.dynamic_sizes import agree
from ..ir.graph import Array, Graph, Operator, Value
from ..ir.operators.shape import ShapeOperator
from ..ir.types import ARRAY_DTYPES, DType
from .constants import materialize
from .kernels import compute, expect_computable
from .specialize import is_dynamic, specialized
from .variable import variables

KEPT_SIZES = 8
"""Number of input shapes for which a dynamic program stays prepared."""


See = Callable[[Operator, Sequence[Array]], None]
"""A function that is called with each operator and its results."""


class Program:
    """A graph with its constants computed, ready to run.

    Calls share nothing that is written: one program may be called from many threads.
    Raises Unsupported, naming the operator, for a graph that cannot be computed here.
    """

    def __init__(
        self, graph: Graph, constants: Mapping[Value, Array] = MappingProxyType({})
    ) -> None:
        self.graph = graph
        for operator in graph.operators:
            expect_computable(operator)
        self.constants: dict[Value, Array] = {}
        for value in graph.constants():
            if value in constants:
                self.constants[value] = constants[value]
            else:
                self.constants[value] = _aligned(materialize(value))
        # for each operator, the values that are not needed after it
        self._dead = last_uses(graph)
        self._inner: dict[Graph, Program] = {}
        # if sizes are dynamic: the program for the shapes of a call
        self._of_size: Callable[..., Program] | None = None
        if is_dynamic(graph):
            self._of_size = lru_cache(maxsize=KEPT_SIZES)(self._specialized)

    def _specialized(self, *shapes: tuple[int, ...]) -> Program:
        """Return the program for inputs of these shapes."""
        return Program(specialized(self.graph, shapes), self.constants)

    def __call__(
        self,
        inputs: Sequence[Array],
        held: dict[str, Array] | None = None,
        see: See | None = None,
    ) -> list[Array]:
        """Return the outputs in order.

        They may be views of inputs, of constants, of variables and of each other.
        ``held`` are the variables, by name, which the call changes. It adds the initial
        values of those that are missing. Without ``held``, all variables start from
        their initial values. ``see`` is called with the results of each operator,
        except those in graphs of control flow. Raises InputError.
        """
        check_inputs(self.graph.inputs, [(x.shape, x.dtype.name) for x in inputs])
        if self._of_size is not None:
            specific = self._of_size(*[x.shape for x in inputs])
            if see is not None:
                see = self._with_original_operators(specific, see)
            return specific(inputs, held, see)
        values = self.constants | dict(zip(self.graph.inputs, inputs, strict=True))
        with np.errstate(all="ignore"), variables(held), self._keeping_inner():
            for operator, dead in zip(self.graph.operators, self._dead, strict=True):
                operands = [values[value] for value in operator.inputs]
                types = [value.type for value in operator.outputs]
                results = compute(operator, operands, types)
                values.update(zip(operator.outputs, results, strict=True))
                if see is not None:
                    see(operator, results)
                # the next operator may need the memory
                del operands, results
                for value in dead:
                    del values[value]
        return [values[value] for value in self.graph.outputs]

    def _with_original_operators(self, specific: Program, see: See) -> See:
        """Return a function for a specialized program that calls ``see``.

        ``see`` is called with operators of this graph instead of the specialized ones.
        """
        originals = [
            operator
            for operator in self.graph.operators
            if not isinstance(operator, ShapeOperator)
        ]
        original = dict(zip(specific.graph.operators, originals, strict=True))
        return lambda operator, results: see(original[operator], results)

    @contextmanager
    def _keeping_inner(self) -> Iterator[None]:
        """Let ``inner_program`` keep its programs in this one, for the next call.

        A program of a body uses those of the outermost program.
        """
        token = _INNER.set(self._inner) if _INNER.get() is None else None
        try:
            yield
        finally:
            if token is not None:
                _INNER.reset(token)


_NAMES_OF_BITS = {
    DType.BF16: "bfloat16",
    DType.FP8E4M3: "float8_e4m3fn",
    DType.FP8E5M2: "float8_e5m2",
}
"""Names of element types that numpy lacks; arrays hold their bits."""
_INNER: ContextVar[dict[Graph, Program] | None] = ContextVar("_INNER", default=None)


def _aligned(array: Array) -> Array:
    """Return a constant as a contiguous and aligned array, which calls need not copy.

    Most constants are one already, and are not copied here either.
    """
    return np.require(array, None, ["C", "A"])


def inner_program(graph: Graph) -> Program:
    """Return the program of a control flow graph, with its constants computed once."""
    known = _INNER.get()
    if known is None:
        return Program(graph)
    if graph not in known:
        known[graph] = Program(graph)
    return known[graph]


def evaluate(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """Compute a graph's outputs for numpy inputs, in the order of ``graph.inputs``.

    Raises InputError for inputs of another number, shape or type, and Unsupported for
    an operator without kernel.
    """
    return Program(graph)(inputs)


def check_inputs(
    wanted: Sequence[Value], given: Sequence[tuple[tuple[int, ...], str]]
) -> None:
    """Raise InputError unless ``given`` shapes and types fit the graph."""
    if len(given) != len(wanted):
        count = f"{len(wanted)} inputs are wanted"
        if len(wanted) == 1:
            count = "1 input is wanted"
        raise InputError("input-invalid", f"{count}, {len(given)} were given")
    for position, (value, (shape, dtype)) in enumerate(zip(wanted, given, strict=True)):
        has_shape = agree(tuple(shape), value.shape) and 0 not in shape
        if has_shape and dtype == ARRAY_DTYPES[value.dtype].name:
            continue
        text = f"{_wanted(value)} is wanted, {dtype} {list(shape)} was given"
        if 0 in shape:
            text += ", and TOSA has no empty tensors"
        name = f" ({value.name})" if value.name else ""
        raise InputError("input-invalid", f"input {position}{name}: {text}")


def _wanted(value: Value) -> str:
    """Return the element type and the sizes of an input, for an error."""
    kind = ARRAY_DTYPES[value.dtype].name
    if value.dtype in _NAMES_OF_BITS:
        kind = f"{_NAMES_OF_BITS[value.dtype]} (as {kind})"
    sizes = ", ".join(
        str(size) if type(size) is int else "any size" for size in value.shape
    )
    return f"{kind} [{sizes}]"


def check_ranges(
    wanted: Sequence[Value],
    given: Sequence[Array],
    ranges: Mapping[int, tuple[int, int]],
) -> None:
    """Raise InputError for an array of ``given`` with an index outside of its range.

    ``ranges`` maps positions of inputs to the smallest and the largest index.
    """
    for position, (low, high) in ranges.items():
        array = given[position]
        if array.dtype.kind not in "iu" or not array.size:
            continue
        least = int(array.min())
        most = int(array.max())
        if low <= least and most <= high:
            continue
        name = wanted[position].name or position
        found = least if least < low else most
        text = (
            f"an index is out of range: input {name} has an element {found}; {low} to"
            f" {high} are in range"
        )
        raise InputError("input-invalid", text)


def last_uses(graph: Graph) -> list[list[Value]]:
    """Return, for each operator, the values that are not needed after it.

    These are inputs and computed values, but not outputs and constants.
    """
    needed = {*graph.outputs, *graph.constants()}
    _expect_order(graph, known={*graph.inputs, *needed})
    dead: list[list[Value]] = []
    for operator in reversed(graph.operators):
        values = dict.fromkeys((*operator.inputs, *operator.outputs))
        last_used = [value for value in values if value not in needed]
        needed.update(last_used)
        dead.append(last_used)
    return dead[::-1]


def _expect_order(graph: Graph, known: set[Value]) -> None:
    """Raise InternalError if an operator comes before the producer of an operand."""
    for operator in graph.operators:
        for value in operator.inputs:
            if value not in known:
                text = f"{operator!r} uses {value!r} before it is computed"
                raise InternalError("internal", text)
        known.update(operator.outputs)
