"""Stores a constant that repeats its elements without the repetitions, where an operator repeats them itself."""

from __future__ import annotations

from ..ir.graph import Folded, Graph, Operator, Value
from ..ir.operators import MUL, RESHAPE, TILE
from ..ir.operators.elementwise import Binary
from ..ir.types import Type
from ..spec import TosaSpec
from .axes import Shape
from .rewriter import Rewrite, origin, replaced, sweep


def untile_constants(graph: Graph, spec: TosaSpec) -> Graph:
    """Leave it to an elementwise operator to repeat a constant along the other operand.

    before: MUL (x [1,4,64,16], a constant [1,4,64,16] = RESHAPE (TILE (a constant [4,1,1])))
    after:  MUL (x [1,4,64,16], a constant [1,4,1,1])
    before: MUL (x [1,4,64,1], the same constant)
    after:  MUL (x [1,4,64,1], a constant [1,4,1,16])

    A model writes ``a[:, None, None].expand(-1, 64, 16)``, and the file has the elements of the result: 16 kB for four.
    NPUs get the constant as it is: they copy an operand that is repeated.
    """
    return graph if spec.devices else sweep(graph, _untiled)


def _untiled(operator: Operator, rewrite: Rewrite) -> Operator:
    """``operator`` with a smaller constant for an operand that is a TILE, folded; itself if there is none."""
    if not isinstance(operator, (Binary, MUL)):
        return operator
    operands = list(operator.inputs)
    for k in (0, 1):
        if (found := _before_tile(operands[k])) is None:
            continue
        # where the other operand has one element as well, the constant goes on repeating its own
        small, shape = found
        axes = zip(shape, operands[k].shape, operands[1 - k].shape, strict=True)
        wanted = tuple([size if other == wide else wide for size, wide, other in axes])
        if wanted != operands[k].shape:
            operands[k] = _repeated(rewrite, small, shape, wanted, operator)
    return operator if operands == list(operator.inputs) else replaced(operator, operands)


def _repeated(rewrite: Rewrite, small: Value, shape: Shape, wanted: Shape, operator: Operator) -> Value:
    """``small``, in its ``shape`` as an operand, repeated to the shape that is ``wanted``."""
    value = rewrite.reshape(small, shape, operator.source)
    if shape == wanted:
        return value
    times = tuple([n // size for n, size in zip(wanted, shape, strict=True)])
    return rewrite.make(TILE, (value, rewrite.shape(times)), Type(wanted, value.dtype), operator.source)


def _before_tile(value: Value) -> tuple[Value, Shape] | None:
    """What a constant repeats, and the shape that this has as an operand: 1 where it is repeated. None for others.

    Between TILE and operand, RESHAPE may add and drop axes of size 1.
    """
    tile = origin(value) if isinstance(value.constant, Folded) else None
    if isinstance(tile, RESHAPE):
        tile = origin(tile.inputs[0])
    if not isinstance(tile, TILE):
        return None
    small, large = tile.inputs[0], tile.outputs[0].shape
    kept = [size for size, wide in zip(small.shape, large, strict=True) if wide != 1]
    wide_axes = [wide for wide in large if wide != 1]
    if wide_axes != [n for n in value.shape if n != 1]:
        return None
    if any(size not in (1, wide) for size, wide in zip(kept, wide_axes, strict=True)):
        return None
    sizes = iter(kept)
    return small, tuple([next(sizes) if n != 1 else 1 for n in value.shape])
