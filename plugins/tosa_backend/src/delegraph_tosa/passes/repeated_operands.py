"""Products whose right matrices are repeated along the batch: heads of keys and values that several queries share."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from ..ir.graph import Operator, Value, shape_of, shape_value
from ..ir.operators import IDENTITY, RESHAPE, TILE, TRANSPOSE
from ..ir.sizes import is_dynamic
from ..ir.types import Type
from . import axes as ax
from .rewriter import rebuilt

ARRANGING = frozenset({IDENTITY, RESHAPE, TRANSPOSE})


class Repeated(NamedTuple):
    """A value of which ``times`` neighbours along ``axis`` are equal: ``once`` has each of them once.

    ``operators`` compute ``once``; ``source`` is that of the TILE, which it does not need.
    """

    once: Value
    axis: int
    times: int
    operators: tuple[Operator, ...]
    source: Any


def repetition(value: Value, uses: Counter[Value]) -> Repeated | None:
    """``value`` without the TILE that repeats it along an axis; None if there is none, or something else uses it.

    before: k [N,H,1,S,E] - TILE (1,1,G,1,1) - RESHAPE [N*H*G,S,E] - TRANSPOSE (0,2,1)
    after:  k - RESHAPE [N*H,S,E] - TRANSPOSE (0,2,1)
    """
    chain: list[Operator] = []
    operator = value.producer
    while type(operator) in ARRANGING:
        chain.append(operator)  # type: ignore[arg-type]
        operator = operator.inputs[0].producer  # type: ignore[union-attr]
    if not isinstance(operator, TILE) or any(uses[op.outputs[0]] != 1 for op in (operator, *chain)):
        return None
    found = _tiled(operator)
    for arranging in reversed(chain):
        found = found and _arranged(found, arranging)
    return found


def _tiled(tile: Operator) -> Repeated | None:
    operand, multiples = tile.inputs[0], shape_of(tile.inputs[1])
    wide = [axis for axis, times in enumerate(multiples) if times != 1]
    if len(wide) != 1 or operand.shape[wide[0]] != 1 or is_dynamic(multiples[wide[0]]):
        return None
    return Repeated(operand, wide[0], multiples[wide[0]], (), tile.source)


def _arranged(given: Repeated, operator: Operator) -> Repeated | None:
    """What ``operator``, which arranges a repeated value, makes of it; None if neighbours are parted."""
    if isinstance(operator, TRANSPOSE):
        new = rebuilt(operator, (given.once,))
        return _after(given, new, operator.perms.index(given.axis))
    if isinstance(operator, IDENTITY):
        return given
    result = operator.outputs[0]
    pieces = ax.pieces(operator.inputs[0].shape, result.shape)
    old, to = next(piece for piece in pieces if given.axis in piece[0])
    if len(to) != 1 or any(given.once.shape[axis] != 1 for axis in old if axis > given.axis):
        return None
    shape = tuple([size // given.times if axis == to[0] else size for axis, size in enumerate(result.shape)])
    new = rebuilt(operator, (given.once, shape_value(shape)), [Type(shape, result.dtype)])
    return _after(given, new, to[0])


def _after(given: Repeated, operator: Operator, axis: int) -> Repeated:
    return given._replace(once=operator.outputs[0], axis=axis, operators=(*given.operators, operator))
