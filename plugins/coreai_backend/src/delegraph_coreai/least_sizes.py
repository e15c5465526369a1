"""The least sizes of dynamic inputs, so that no tensor of a delegate is empty.

Core AI's runtime ends the process for many calls with empty tensors. Example: for
``x[1:] + 1``, the least number of rows of ``x`` is two. The runtime raises InputError
for smaller inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import sympy
import torch
from delegraph.errors import FormatError, InputError
from delegraph_engines import Signature
from delegraph_programs import user_inputs
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

_LIMIT = 1 << 10
"""The largest least size that is tried."""


class Least(NamedTuple):
    """The least size of an input along one axis.

    ``position``: the position of the input. ``axis``: None for an input that is a
    number.
    """

    position: int
    axis: int | None
    size: int


class MaybeEmpty(Exception):
    """No least sizes of the inputs keep the result of ``call`` from being empty."""

    def __init__(self, call: Node, size: torch.SymInt) -> None:
        super().__init__(
            f"the size {size} of {call.name} may be 0, and Core AI's runtime ends the"
            " process for empty tensors"
        )
        self.call = call


class _DynamicSize(NamedTuple):
    """A dynamic size of an input; the fields are those of ``Least``."""

    position: int
    axis: int | None
    size: torch.SymInt


def least_sizes(program: ExportedProgram) -> list[Least]:
    """Return the least size of each dynamic size of the inputs.

    The symbols of the sizes begin with their least values. For each tensor that could
    then be empty, its symbol is raised. Raises MaybeEmpty if that does not help: the
    size depends on several symbols, on one that is no size of an input, or would need
    a symbol above ``_LIMIT``.
    """
    dynamic_sizes = list(_input_sizes(program))
    least = dict[sympy.Symbol, int]()
    for dynamic in dynamic_sizes:
        if _is_linear(dynamic.size):
            (symbol,) = dynamic.size.node.expr.free_symbols
            found = dynamic.size.node.shape_env.var_to_range[symbol].lower
            # torch.export assumes sizes of at least 2, but its programs accept 1
            least[symbol] = int(found) if found > 2 else 1
    # sizes that are not 0: those of the axes of inputs (a number, such as a position,
    # may be 0), and those that are made larger below
    nonzero = {str(each.size) for each in dynamic_sizes if each.axis is not None}
    for call in program.graph.nodes:
        if call.op != "call_function":
            continue
        for size in _dynamic_sizes(call):
            if str(size) not in nonzero:
                nonzero.add(str(size))
                _raise_least(least, call, size)
    rows = []
    for position, axis, size in dynamic_sizes:
        if axis is None and not size.node.expr.is_Symbol:
            continue
        lowest = _lower_bound(size, least) if _is_linear(size) else 1
        rows.append(Least(position, axis, max(lowest, 1)))
    return rows


def _raise_least(
    least: dict[sympy.Symbol, int], call: Node, size: torch.SymInt
) -> None:
    """Raise the least value of the one symbol of a size until the size is not 0.

    Raises MaybeEmpty if it cannot.
    """
    symbols = list(size.node.expr.free_symbols)
    while _lower_bound(size, least) < 1:
        can_be_raised = len(symbols) == 1 and symbols[0] in least
        if not can_be_raised or least[symbols[0]] >= _LIMIT:
            raise MaybeEmpty(call, size)
        least[symbols[0]] += 1


def _lower_bound(size: torch.SymInt, least: Mapping[sympy.Symbol, int]) -> int:
    """Return a lower bound of a size, for symbols that have these least values."""
    expression = size.node.expr
    ranges = {}
    for symbol in expression.free_symbols:
        upper = size.node.shape_env.var_to_range[symbol].upper
        ranges[symbol] = ValueRanges(least.get(symbol, 1), upper)
    bound = bound_sympy(expression, ranges).lower
    return int(bound) if bound.is_Integer else 0


def _is_linear(size: torch.SymInt) -> bool:
    """Return whether a size grows by a fixed number with its one symbol."""
    expression = size.node.expr
    if len(expression.free_symbols) != 1:
        return False
    factor = expression.diff(*expression.free_symbols)
    return bool(factor.is_Integer and factor > 0)


def _input_sizes(program: ExportedProgram) -> Iterator[_DynamicSize]:
    """Yield the dynamic sizes of the inputs."""
    for position, node in enumerate(user_inputs(program)):
        val = node.meta["val"]
        if isinstance(val, torch.SymInt):
            yield _DynamicSize(position, None, val)
        elif isinstance(val, torch.Tensor):
            for axis, size in enumerate(val.shape):
                if isinstance(size, torch.SymInt):
                    yield _DynamicSize(position, axis, size)


def _dynamic_sizes(node: Node) -> Iterator[torch.SymInt]:
    """Yield the dynamic sizes of the tensors of a node."""
    for val in pytree.tree_leaves(node.meta.get("val")):
        for size in getattr(val, "shape", ()):
            if isinstance(size, torch.SymInt):
                yield size


def least_of(facts: Mapping[str, Any], signature: Signature) -> list[Least]:
    """Return the least sizes that a blob lists. FormatError for other data.

    The blob of an ``.aimodel`` folder lists none; then they are 1.
    """
    # position and axis, as in ``Least``
    dynamic = set[tuple[int, int | None]]()
    for position, (dtype, sizes) in enumerate(signature.inputs):
        if dtype == "int":
            dynamic.add((position, None))
        dynamic |= {(position, axis) for axis, size in enumerate(sizes) if size == -1}
    if "least" not in facts:
        axes = [(position, axis) for position, axis in dynamic if axis is not None]
        return [Least(position, axis, size=1) for position, axis in axes]
    try:
        rows = [Least(*row) for row in facts["least"]]
        are_valid = all(
            row[:2] in dynamic and type(row.size) is int and row.size > 0
            for row in rows
        )
    except TypeError:
        are_valid = False
    if not are_valid:
        text = f"the blob of CoreAIBackend has a damaged list of sizes: {facts['least']!r:.80}"
        raise FormatError("format-invalid", text)
    return rows


def expect_least(rows: Sequence[Least], arrays: Sequence[np.ndarray[Any, Any]]) -> None:
    """Raise InputError for a call with an input that is too small."""
    for position, axis, least in rows:
        array = arrays[position]
        size = int(array) if axis is None else array.shape[axis]
        if size < least:
            where = "is" if axis is None else f"has in axis {axis}"
            raise InputError(
                "input-invalid",
                f"input {position} of the delegate {where} the size {size}, and Core"
                f" AI's runtime needs {least} there: it computes no empty tensors",
                hint="call it with larger inputs, or keep the operators that compute"
                " with empty tensors on the host",
            )
