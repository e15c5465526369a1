"""Permutations between the layouts of torch and TOSA, and forms of arguments."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...ir.graph import Value
from ..builder import Tosa

NHWC = (0, 2, 3, 1)
"""The permutation from torch's images (N,C,H,W) to TOSA's (N,H,W,C)."""
NCHW = (0, 3, 1, 2)
"""The permutation from TOSA's images (N,H,W,C) to torch's (N,C,H,W)."""
OHWI = (0, 2, 3, 1)
"""The permutation from torch's convolution weights (O,I,KH,KW) to (O,KH,KW,I)."""
HWOI = (2, 3, 0, 1)
"""The permutation from torch's depthwise weights (C*M,1,KH,KW) to (KH,KW,C*M,1)."""

Pair = tuple[int, int]


def channels_last(rank: int) -> tuple[int, ...]:
    """Return the permutation from torch's (N,C,*S) to TOSA's (N,*S,C).

    For weights, from (O,C,*K) to (O,*K,C).
    """
    return (0, *range(2, rank), 1)


def channels_first(rank: int) -> tuple[int, ...]:
    """Return the permutation from TOSA's (N,*S,C) to torch's (N,C,*S)."""
    return (0, rank - 1, *range(1, rank - 1))


def pair(numbers: int | Sequence[int]) -> Pair:
    """Return (height, width) from two numbers, or from one for both.

    One number is an int or a list of one.
    """
    if isinstance(numbers, int):
        return numbers, numbers
    return numbers[0], numbers[-1]


def numbers(argument: int | Sequence[int], count: int) -> tuple[int, ...]:
    """Return ``count`` numbers, one for each axis.

    ``argument`` may be one number for all axes: an int or a list of one.
    """
    if isinstance(argument, int):
        return (argument,) * count
    if len(argument) == count:
        return tuple(argument)
    return (argument[0],) * count


def axis_of(dim: int, rank: int) -> int:
    """Return the axis, counted from 0, for ``dim`` in a tensor of ``rank`` axes.

    Negative dims count from the end. For a tensor without axes torch accepts the dims 0
    and -1, and the result is 0.
    """
    if rank == 0:
        return 0
    return dim % rank


def flattened(t: Tosa, x: Value) -> Value:
    """Return all elements of x along a single axis."""
    return t.reshape(x, (math.prod(x.shape),))


def batched(t: Tosa, x: Value, rank: int) -> Value:
    """Return x with a batch axis if it lacks one: [C,H,W] -> [1,C,H,W].

    torch allows operands without a batch.
    """
    if x.rank != rank - 1:
        return x
    return t.ranked(x, rank)


def unbatched(t: Tosa, y: Value, x: Value) -> Value:
    """Remove the batch axis of the result ``y`` if the operand ``x`` has none.

    This undoes ``batched``.
    """
    return t.reshape(y, y.shape[y.rank - x.rank :])
