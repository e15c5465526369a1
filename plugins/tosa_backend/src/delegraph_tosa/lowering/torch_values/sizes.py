"""torch's symbolic sizes as sizes of the TOSA graph: the same expressions, of symbols in the ranges that torch knows.

When torch compares a dynamic size while it traces, it takes it to be at least 2, and the rules here follow what was
traced. What they make is right for a size of 1 as well: it is what broadcasting and the like do in general.
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
"""Up to this size, each product with a scale is checked to be rounded as torch rounds it."""
_FOLDED: dict[str, Callable[[int, int], int]] = {
    "Add": lambda x, y: x + y,
    "Mul": lambda x, y: x * y,
    "Max": largest,
    "Min": smallest,
}
"""sympy classes of any number of operands -> the function that joins two of them."""
_CALLED: dict[str, Callable[[int, int], int]] = {
    "FloorDiv": lambda x, y: x // y,
    "CleanDiv": lambda x, y: x // y,
    "IntTrueDiv": lambda x, y: x // y,
    "Mod": lambda x, y: x % y,
    "PythonMod": lambda x, y: x % y,
}
"""Functions of torch.utils._sympy, by name; IntTrueDiv stands inside of FloorToInt only."""


def size_of(size: int | torch.SymInt) -> int:
    """A size of a fake tensor as a number or a ``Size``.

    An expression that TOSA's shape operators cannot compute becomes a symbol by itself, which no input can tell.
    """
    if type(size) is int:
        return size
    node = size.node  # type: ignore[union-attr]
    return size_of_expression(node.expr, node.shape_env.var_to_range)


def size_of_expression(expression: Any, ranges: Any) -> int:
    """The size that a sympy expression stands for. ``ranges``: the range of each of its symbols."""
    try:
        return _of_expression(expression, ranges)
    except Undecided:
        # the expression has too many terms
        return symbol(str(expression), 0)


def is_size(node: Node) -> bool:
    """Whether ``node`` is a number that is computed from sizes."""
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool))


def sizes_in(number: Any) -> list[int]:
    """The symbols in a symbolic number; [] for anything else."""
    if not isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return []
    return [_symbol(one, number.node.shape_env.var_to_range) for one in number.node.expr.free_symbols]


def is_dynamic_shape(shape: Sequence[int | torch.SymInt]) -> bool:
    """Whether a fake tensor has a size that is known at run time only."""
    return not all([type(n) is int for n in shape])


def is_dynamic_tensor(val: torch.Tensor) -> bool:
    """Whether a fake tensor has a size that is known at run time only."""
    # for most tensors torch answers this without looking at each size
    return val._has_symbolic_sizes_strides and is_dynamic_shape(val.shape)


def is_empty_tensor(val: torch.Tensor) -> bool:
    """Whether a fake tensor surely has no elements."""
    if is_dynamic_tensor(val):
        return any([type(size) is int and size == 0 for size in val.shape])
    return 0 in val.shape


def depends_on_data(shape: Sequence[int | torch.SymInt]) -> bool:
    """Whether a size comes from the data and not from an input's shape, so that it may be 0."""
    return is_dynamic_shape(shape) and any(free_unbacked_symbols(n) for n in shape)


def shape_of_tensor(shape: Sequence[int | torch.SymInt]) -> tuple[int, ...]:
    """The shape of a fake tensor, with symbolic sizes as sizes of the TOSA graph."""
    return tuple(shape) if all([type(n) is int for n in shape]) else tuple(map(size_of, shape))  # type: ignore[arg-type]


def _of_expression(expression: Any, ranges: Any) -> int:
    """As ``size_of_expression``, but raises Undecided for an expression of too many terms.

    Classes of sympy are recognized by their names, so that sympy need not be imported.
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
    if name in ("FloorToInt", "TruncToInt") and (found := _scaled_size(expression.args[0], ranges)) is not None:
        return found
    # a true division that is floored: ``_CALLED`` has floored it already
    if name == "FloorToInt" and type(expression.args[0]).__name__ == "IntTrueDiv":
        return parts[0]
    return symbol(str(expression), 0)


def _scaled_size(product: Any, ranges: Any) -> int | None:
    """The size that a scale makes, as in interpolate. None if ``product`` is no product of a size and a float."""
    factors = dict.fromkeys(type(factor).__name__ for factor in product.args)
    if type(product).__name__ != "Mul" or list(factors) != ["Float", "ToFloat"]:
        return None
    number, size = product.args
    return scaled(_of_expression(size.args[0], ranges), float(number))


def scaled(size: int, scale: float) -> int:
    """``int(size * scale)`` as torch computes it, in float64; ``size`` may be known at run time only.

    Then it is a fraction whose products agree for every size up to the largest, or up to _TRIED of them. Raises
    Undecided if there is no such fraction.
    """
    if not is_dynamic(size):
        return int(size * scale)
    ratio = _ratio(scale, min(range_of(size)[1], _TRIED))
    if ratio is None:
        raise Undecided(f"how torch rounds {size} * {scale} is known at run time only")
    return size * ratio.numerator // ratio.denominator


@cache
def _ratio(scale: float, most: int) -> Fraction | None:
    """A fraction whose products, rounded down, are those of ``scale`` in float64, for sizes up to ``most``.

    None if none is. float64 rounds: 10 * 1.7 is 17 there, although the float is a little less than 1.7. Sizes are
    computed in integers.
    """
    sizes = np.arange(most + 1)
    wanted = (sizes * scale).astype(np.int64)
    for ratio in (Fraction(scale).limit_denominator(1 << 20), Fraction(scale)):
        if [size * ratio.numerator // ratio.denominator for size in sizes.tolist()] == wanted.tolist():
            return ratio
    return None


def _symbol(one: Any, ranges: Any) -> int:
    """The symbol of a size, in the range that torch knows for it, without numbers that no size of a file can be."""
    known = ranges.get(one)
    if known is None:
        return symbol(str(one))
    low, high = max(known.lower, 0), min(known.upper, LARGEST_SIZE)
    return symbol(str(one), int(low), int(high))
