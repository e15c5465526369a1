"""torch's symbolic sizes as sizes of the graph: the same expressions of the same symbols, with the ranges torch knows.

torch takes a dynamic size for at least 2 when it compares, and so do rules, which follow what it traced. What they make
is right for a size of 1 as well: it is what broadcasting and the like do in general.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache, reduce
from typing import Any

import numpy as np
import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from ...ir.illegal import Undecided
from ...ir.sizes import LARGEST_SIZE, is_dynamic, largest, range_of, smallest, symbol

_TRIED = 1 << 12
"""Up to this size, rounding is compared with that of torch."""
_FOLDED: dict[str, Callable[[int, int], int]] = {
    "Add": lambda x, y: x + y,
    "Mul": lambda x, y: x * y,
    "Max": largest,
    "Min": smallest,
}
_CALLED: dict[str, Callable[[int, int], int]] = {
    "FloorDiv": lambda x, y: x // y,
    "CleanDiv": lambda x, y: x // y,
    "IntTrueDiv": lambda x, y: x // y,
    "Mod": lambda x, y: x % y,
    "PythonMod": lambda x, y: x % y,
}
"""Functions of torch.utils._sympy, by name; IntTrueDiv stands inside of FloorToInt only."""


def size_of(size: int | torch.SymInt) -> int:
    """A size of a fake tensor. What TOSA has no shape operators for is a symbol by itself, which no input tells."""
    if type(size) is int:
        return size
    node = size.node  # type: ignore[union-attr]
    return size_of_expression(node.expr, node.shape_env.var_to_range)


def size_of_expression(expression: Any, ranges: Any) -> int:
    """The size that a sympy expression stands for, of symbols in these ranges."""
    try:
        return _of_expression(expression, ranges)
    except Undecided:  # it is made of too many
        return symbol(str(expression), 0)


def is_size(node: Node) -> bool:
    """Whether a call makes a size of sizes, or another number."""
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool))


def sizes_in(number: Any) -> list[int]:
    """The symbols that a symbolic number is made of; none of anything else."""
    if not isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return []
    return [_symbol(one, number.node.shape_env.var_to_range) for one in number.node.expr.free_symbols]


def is_dynamic_shape(shape: Sequence[int | torch.SymInt]) -> bool:
    """Whether a fake tensor has a size that is known at run time only."""
    return not all([type(n) is int for n in shape])


def is_dynamic_tensor(val: torch.Tensor) -> bool:
    """Whether a fake tensor has such a size; of most tensors torch knows it without looking at one size."""
    return val._has_symbolic_sizes_strides and is_dynamic_shape(val.shape)


def is_empty_tensor(val: torch.Tensor) -> bool:
    """Whether a fake tensor has no elements; one that may have some is not empty."""
    if is_dynamic_tensor(val):
        return any([type(size) is int and size == 0 for size in val.shape])
    return 0 in val.shape


def depends_on_data(shape: Sequence[int | torch.SymInt]) -> bool:
    """Whether a size is no input's, and may be 0: how many elements there are is in the data."""
    return is_dynamic_shape(shape) and any(free_unbacked_symbols(n) for n in shape)


def shape_of_tensor(shape: Sequence[int | torch.SymInt]) -> tuple[int, ...]:
    """The shape of a fake tensor."""
    return tuple(shape) if all([type(n) is int for n in shape]) else tuple(map(size_of, shape))  # type: ignore[arg-type]


def _of_expression(expression: Any, ranges: Any) -> int:
    """Of a sympy expression, whose classes are known by their names here: nothing else needs sympy."""
    if isinstance(expression, int) or expression.is_Integer:
        return int(expression)
    if expression.is_Symbol:
        return _symbol(expression, ranges)
    parts = [_of_expression(part, ranges) for part in expression.args]
    name = type(expression).__name__
    if name in _FOLDED:
        return reduce(_FOLDED[name], parts)
    if name in _CALLED and len(parts) == 2:
        return _CALLED[name](*parts)
    if name == "Pow" and type(parts[1]) is int and parts[1] > 0:
        return math.prod([parts[0]] * parts[1])
    if name in ("FloorToInt", "TruncToInt") and (found := _scaled(expression.args[0], ranges)) is not None:
        return found
    if name == "FloorToInt" and type(expression.args[0]).__name__ == "IntTrueDiv":
        return parts[0]
    return symbol(str(expression), 0)


def _scaled(product: Any, ranges: Any) -> int | None:
    """A size times a number, rounded down: what torch makes of a scale; None for anything else."""
    factors = dict.fromkeys(type(factor).__name__ for factor in product.args)
    if type(product).__name__ != "Mul" or list(factors) != ["Float", "ToFloat"]:
        return None
    number, size = product.args
    return scaled(_of_expression(size.args[0], ranges), float(number))


def scaled(size: int, scale: float) -> int:
    """``int(size * scale)``, of a size that may be known at run time only."""
    if not is_dynamic(size):
        return int(size * scale)
    ratio = _ratio(scale, min(range_of(size)[1], _TRIED))
    if ratio is None:
        raise Undecided(f"how torch rounds {size} * {scale} is known at run time only")
    return size * ratio.numerator // ratio.denominator


@cache
def _ratio(scale: float, most: int) -> Fraction | None:
    """A ratio with which whole numbers give the sizes up to ``most`` that torch computes in float64; None if none does.

    10 * 1.7 is 17 in float64, although the float is a little less than 1.7.
    """
    sizes = np.arange(most + 1)
    wanted = (sizes * scale).astype(np.int64)
    for ratio in (Fraction(scale).limit_denominator(1 << 20), Fraction(scale)):
        if [size * ratio.numerator // ratio.denominator for size in sizes.tolist()] == wanted.tolist():
            return ratio
    return None


def _symbol(one: Any, ranges: Any) -> int:
    known = ranges.get(one)
    if known is None:
        return symbol(str(one))
    low, high = max(known.lower, 0), min(known.upper, LARGEST_SIZE)
    return symbol(str(one), int(low), int(high))
