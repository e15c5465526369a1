"""Removes the TILE of the right matrices of a product.

In an attention in which several queries share a key, a TILE repeats the key.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from ..ir.dynamic_sizes import is_dynamic
from ..ir.graph import Operator, Value, shape_of, shape_value
from ..ir.operators import IDENTITY, TILE, TRANSPOSE
from ..ir.types import Type
from . import view_axes as ax
from .layout_rules import LAYOUT
from .pending_views import Views
from .rewriter import merge_sources, rebuilt


def multiply_once(views: Views, product: Operator) -> None:
    """Stack left matrices that are multiplied by the same right matrix.

    This is the rule of ``sink_transposes`` for MATMUL.

    before: MATMUL (q [B*G,L,E], TILE k [B*G,E,S])
    after:  MATMUL (RESHAPE q [B,G*L,E], k [B,E,S]) - RESHAPE [B*G,L,S]
    """
    repeated = _repetition(product.inputs[1], views.uses)
    result = product.outputs[0]
    if repeated is None or repeated.axis != 0 or not views.can_transpose(result.dtype):
        return views.keep(product)
    # these operators are not in the graph: apply their rules to note ``once`` as a view
    for operator in repeated.operators:
        LAYOUT[type(operator)](views, operator)
    left = views.value(product.inputs[0])
    right = views.value(repeated.once)
    source = merge_sources(repeated.source, product.source)
    _, rows, depth = left.shape
    stacked_shape = (right.shape[0], repeated.times * rows, depth)
    stacked = views.reshape(left, stacked_shape, source)
    operands = (stacked, right, *product.inputs[2:])
    new = views.append_copy(product, operands, source=source)
    return views.replace(result, new)


class _Repeated(NamedTuple):
    """A value that repeats each element of ``once`` along ``axis``: [a,a,a,b,b,b].

    ``operators`` compute ``once`` without the TILE. ``source`` is the source of the
    TILE.
    """

    once: Value
    axis: int
    times: int
    operators: tuple[Operator, ...]
    source: Any


def _repetition(value: Value, uses: Counter[Value]) -> _Repeated | None:
    """Return how to compute ``value`` without the TILE that repeats it along an axis.

    None if there is no TILE, or one with another use.

    ``value``: k [N,H,1,S,E] - TILE (1,1,G,1,1) - RESHAPE [N*H*G,S,E]
               - TRANSPOSE (0,2,1)
    ``once``:  k - RESHAPE [N*H,S,E] - TRANSPOSE (0,2,1)
    """
    # the operators between the TILE and ``value``, the last one first
    chain: list[Operator] = []
    operator = value.producer
    while operator is not None and type(operator) in LAYOUT:
        chain.append(operator)
        operator = operator.inputs[0].producer
    if not isinstance(operator, TILE):
        return None
    if any(uses[between.outputs[0]] != 1 for between in (operator, *chain)):
        return None
    repeated = _tiled(operator)
    for layout_operator in reversed(chain):
        if repeated is None:
            return None
        repeated = _arranged(repeated, layout_operator)
    return repeated


def _tiled(tile: Operator) -> _Repeated | None:
    """Return the result of ``tile``; None unless it repeats one axis of size 1."""
    operand = tile.inputs[0]
    multiples = shape_of(tile.inputs[1])
    repeated = [axis for axis, times in enumerate(multiples) if times != 1]
    if len(repeated) != 1:
        return None
    (axis,) = repeated
    times = multiples[axis]
    if operand.shape[axis] != 1 or is_dynamic(times):
        return None
    return _Repeated(operand, axis, times, operators=(), source=tile.source)


def _arranged(repeated: _Repeated, operator: Operator) -> _Repeated | None:
    """Return the result of ``operator``, one of LAYOUT, on a repeated value.

    None if that is no repetition along one axis.
    """
    if isinstance(operator, IDENTITY):
        return repeated
    if isinstance(operator, TRANSPOSE):
        new = rebuilt(operator, (repeated.once,))
        return _with_operator(repeated, new, operator.perms.index(repeated.axis))
    return _reshaped(repeated, operator)


def _reshaped(repeated: _Repeated, operator: Operator) -> _Repeated | None:
    """As ``_arranged``, for a RESHAPE.

    It may join the repeated axis with axes before it, but not with axes after it: the
    result would be [a,b,a,b] instead of [a,a,b,b].
    """
    result = operator.outputs[0]
    pieces = ax.pieces(operator.inputs[0].shape, result.shape)
    old, new = next(piece for piece in pieces if repeated.axis in piece.old)
    after = [repeated.once.shape[axis] for axis in old if axis > repeated.axis]
    if len(new) != 1 or any(size != 1 for size in after):
        return None
    (axis,) = new
    sizes = list(result.shape)
    sizes[axis] //= repeated.times
    shape = tuple(sizes)
    operands = (repeated.once, shape_value(shape))
    reshape = rebuilt(operator, operands, [Type(shape, result.dtype)])
    return _with_operator(repeated, reshape, axis)


def _with_operator(repeated: _Repeated, operator: Operator, axis: int) -> _Repeated:
    """Return ``repeated`` after ``operator``, with ``axis`` as the repeated axis."""
    return repeated._replace(
        once=operator.outputs[0], axis=axis, operators=(*repeated.operators, operator)
    )
