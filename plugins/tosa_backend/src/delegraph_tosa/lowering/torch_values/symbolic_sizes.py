"""Translates torch's symbolic sizes to sizes of the graph, with their ranges.

When torch traces a comparison of a dynamic size, it assumes that the size is at least
2. Rules follow the trace, but their operators are right for a size of 1 as well.
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

from ...ir.dynamic_sizes import (
    LARGEST_SIZE,
    is_dynamic,
    largest,
    range_of,
    smallest,
    symbol,
)
from ...ir.illegal import Undecided

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
"""torch's types of numbers that are computed from sizes."""
_TRIED = 1 << 12
"""The largest size for which ``scaled`` checks its rounding.

Checking every size up to 2**31 would take too long.
"""
_FOLDED: dict[str, Callable[[int, int], int]] = {
    "Add": lambda x, y: x + y,
    "Mul": lambda x, y: x * y,
    "Max": largest,
    "Min": smallest,
}
"""Name of a sympy class with any number of operands -> the function of two of them."""
_CALLED: dict[str, Callable[[int, int], int]] = {
    "FloorDiv": lambda x, y: x // y,
    "CleanDiv": lambda x, y: x // y,
    "IntTrueDiv": lambda x, y: x // y,
    "Mod": lambda x, y: x % y,
    "PythonMod": lambda x, y: x % y,
}
"""Name of a function of torch.utils._sympy -> the function of its two operands.

IntTrueDiv is in FloorToInt only.
"""


def size_of(size: int | torch.SymInt) -> int:
    """Return a size of a fake tensor as an int or a ``Size``.

    An expression that TOSA's shape operators cannot compute becomes a symbol of its
    own, which is in no input's shape.
    """
    if type(size) is int:
        return size
    node = size.node  # type: ignore[union-attr]
    return size_of_expression(node.expr, node.shape_env.var_to_range)


def size_of_expression(expression: Any, ranges: Any) -> int:
    """Return a sympy expression as an int or a ``Size``, as in ``size_of``.

    ``ranges`` has the range of each symbol.
    """
    try:
        return _of_expression(expression, ranges)
    except Undecided:
        # the expression has too many terms
        return symbol(str(expression), 0)


def is_size(node: Node) -> bool:
    """Return whether ``node`` is a number that is computed from sizes."""
    return isinstance(node.meta.get("val"), SYMBOLIC)


def sizes_in(number: Any) -> list[int]:
    """Return the symbols in a symbolic number of torch; [] for anything else."""
    if not isinstance(number, SYMBOLIC):
        return []
    ranges = number.node.shape_env.var_to_range
    return [_symbol(one, ranges) for one in number.node.expr.free_symbols]


def is_dynamic_shape(shape: Sequence[int | torch.SymInt]) -> bool:
    """Return whether a fake tensor has a size that is known only at run time."""
    return not all([type(n) is int for n in shape])


def is_dynamic_tensor(val: torch.Tensor) -> bool:
    """Return whether a fake tensor has a size that is known at run time only."""
    # for most tensors torch answers this without looking at each size
    return val._has_symbolic_sizes_strides and is_dynamic_shape(val.shape)


def is_empty_tensor(val: torch.Tensor) -> bool:
    """Return whether a fake tensor surely has no elements."""
    if is_dynamic_tensor(val):
        return any([type(size) is int and size == 0 for size in val.shape])
    return 0 in val.shape


def depends_on_data(shape: Sequence[int | torch.SymInt]) -> bool:
    """Return whether a size depends on data, as in nonzero's result."""
    return is_dynamic_shape(shape) and any(free_unbacked_symbols(n) for n in shape)


def shape_of_tensor(shape: Sequence[int | torch.SymInt]) -> tuple[int, ...]:
    """Return the shape of a fake tensor as sizes of the TOSA graph."""
    return (
        tuple(shape)  # type: ignore[arg-type]
        if all([type(n) is int for n in shape])
        else tuple(map(size_of, shape))
    )


def _of_expression(expression: Any, ranges: Any) -> int:
    """As ``size_of_expression``, but raises Undecided for too many terms.

    Classes of sympy are recognized by name, because importing sympy is slow.
    """
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
    if name in ("FloorToInt", "TruncToInt"):
        size = _scaled_size(expression.args[0], ranges)
        if size is not None:
            return size
    # ``_CALLED`` has floored the IntTrueDiv already
    if name == "FloorToInt" and type(expression.args[0]).__name__ == "IntTrueDiv":
        return parts[0]
    return symbol(str(expression), 0)


def _scaled_size(product: Any, ranges: Any) -> int | None:
    """Return ``product``, recorded by torch's interpolate, rounded down to a size.

    It has to be ``scale * ToFloat(size)``, a float times one size; the result is None
    for any other expression. ``ranges`` has the range of each symbol.
    """
    if type(product).__name__ != "Mul":
        return None
    # sympy puts the number before the size
    if [type(factor).__name__ for factor in product.args] != ["Float", "ToFloat"]:
        return None
    scale, size_as_float = product.args
    return scaled(_of_expression(size_as_float.args[0], ranges), float(scale))


def scaled(size: int, scale: float) -> int:
    """Return ``int(size * scale)``, computed in float64 as in torch.

    For a size known at run time only, the scale becomes a fraction that gives the same
    results for all sizes up to _TRIED. Raises Undecided if there is no such fraction.
    """
    if not is_dynamic(size):
        return int(size * scale)
    _, most = range_of(size)
    ratio = _ratio(scale, min(most, _TRIED))
    if ratio is None:
        raise Undecided(f"how torch rounds {size} * {scale} is known at run time only")
    return size * ratio.numerator // ratio.denominator


@cache
def _ratio(scale: float, most: int) -> Fraction | None:
    """Return a fraction that rounds like ``scale`` for sizes up to ``most``, or None.

    This means floor(size * fraction) == int(size * scale). The exact value of ``scale``
    may give other results: in float64, 10 * 1.7 is rounded to 17, although the float
    1.7 is a little less than 1.7.
    """
    sizes = np.arange(most + 1)
    expected = (sizes * scale).astype(np.int64)
    exact = Fraction(scale)
    for ratio in (exact.limit_denominator(1 << 20), exact):
        # in Python's integers: products of the exact fraction may need over 64 bits
        rounded = [
            size * ratio.numerator // ratio.denominator for size in sizes.tolist()
        ]
        if rounded == expected.tolist():
            return ratio
    return None


def _symbol(one: Any, ranges: Any) -> int:
    """Return the size for the symbol ``one``.

    It has the symbol's range in torch, clamped to 0 .. LARGEST_SIZE.
    """
    range = ranges.get(one)
    if range is None:
        return symbol(str(one))
    low = max(range.lower, 0)
    high = min(range.upper, LARGEST_SIZE)
    return symbol(str(one), int(low), int(high))
