"""Permutations between the layouts of torch and TOSA, and arguments that users may
write in several ways.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.graph import Value
from ..builder import Tosa

NHWC = (0, 2, 3, 1)
"""The permutation from torch's images (N,C,H,W) to TOSA's (N,H,W,C)."""
NCHW = (0, 3, 1, 2)
"""The permutation from TOSA's images (N,H,W,C) to torch's (N,C,H,W)."""
OHWI = (0, 2, 3, 1)
"""The permutation from torch's convolution weights (O,I,KH,KW) to TOSA's (O,KH,KW,I).
"""
HWOI = (2, 3, 0, 1)
"""The permutation from torch's depthwise weights (C*M,1,KH,KW) to (KH,KW,C*M,1)."""

Pair = tuple[int, int]


def channels_last(rank: int) -> tuple[int, ...]:
    """The permutation from torch's (N,C,*S) to TOSA's (N,*S,C); for weights, from
    (O,C,*K) to (O,*K,C).
    """
    return (0, *range(2, rank), 1)


def channels_first(rank: int) -> tuple[int, ...]:
    """The permutation from TOSA's (N,*S,C) to torch's (N,C,*S)."""
    return (0, rank - 1, *range(1, rank - 1))


def pair(numbers: int | Sequence[int]) -> Pair:
    """(height, width) from an argument of torch: two numbers, or one for both, as an
    int or as a list of one.
    """
    if isinstance(numbers, int):
        return numbers, numbers
    return (numbers[0], numbers[-1])


def numbers(argument: int | Sequence[int], count: int) -> tuple[int, ...]:
    """``count`` numbers, one for each axis, from an argument that may be one number for
    all (int or list of one).
    """
    if isinstance(argument, int):
        return (argument,) * count
    return tuple(argument) if len(argument) == count else (argument[0],) * count


def axis_of(dim: int, rank: int) -> int:
    """The axis, counted from 0, for ``dim`` in a tensor of ``rank`` axes; negative dims
    count from the end.

    0 for a tensor without axes, for which torch accepts the dims 0 and -1.
    """
    return dim % rank if rank else 0


def batched(t: Tosa, x: Value, rank: int) -> Value:
    """x as a tensor of ``rank`` axes: without a batch axis, which torch allows, it gets
    one: [C,H,W] -> [1,C,H,W]
    """
    return t.ranked(x, rank) if x.rank == rank - 1 else x


def unbatched(t: Tosa, y: Value, x: Value) -> Value:
    """The result ``y`` without its batch axis of size 1 if the operand ``x`` has none:
    undoes ``batched``.
    """
    return t.reshape(y, y.shape[y.rank - x.rank :])
