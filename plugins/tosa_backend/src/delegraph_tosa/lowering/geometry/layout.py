"""Orders of axes by name, and numbers that ATen lets users write in several ways."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.graph import Value
from ..builder import Tosa

NHWC = (0, 2, 3, 1)
"""The permutation from torch's images (N,C,H,W) to TOSA's."""
NCHW = (0, 3, 1, 2)
"""The permutation back to torch's."""
OHWI = (0, 2, 3, 1)
"""The permutation from torch's convolution weights (O,I,KH,KW) to TOSA's."""
HWOI = (2, 3, 0, 1)
"""The permutation from torch's depthwise weights (C*M,1,KH,KW) to (KH,KW,C*M,1)."""

Pair = tuple[int, int]


def channels_last(rank: int) -> tuple[int, ...]:
    """The permutation from torch's (N,C,*S), or its weights (O,C,*K), to TOSA's (N,*S,C)."""
    return (0, *range(2, rank), 1)


def channels_first(rank: int) -> tuple[int, ...]:
    """The permutation back, from (N,*S,C) to (N,C,*S)."""
    return (0, rank - 1, *range(1, rank - 1))


def pair(numbers: int | Sequence[int]) -> Pair:
    """(height, width) of what a user may give as one number for both."""
    if isinstance(numbers, int):
        return numbers, numbers
    return (numbers[0], numbers[-1])


def numbers(given: int | Sequence[int], count: int) -> tuple[int, ...]:
    """``count`` numbers, one for each axis, of what a user may give as one number for all."""
    if isinstance(given, int):
        return (given,) * count
    return tuple(given) if len(given) == count else (given[0],) * count


def axis_of(dim: int, rank: int) -> int:
    """The axis ``dim``, which may count from the end, counted from 0. A tensor without axes takes 0 and -1."""
    return dim % rank if rank else 0


def batched(t: Tosa, x: Value, rank: int) -> Value:
    """x with ``rank`` axes: torch lets images and signals go without the batch axis. [C,H,W] -> [1,C,H,W]"""
    return t.ranked(x, rank) if x.rank == rank - 1 else x


def unbatched(t: Tosa, y: Value, x: Value) -> Value:
    """The result ``y`` without the batch axis, if the operand ``x`` had none."""
    return t.reshape(y, y.shape[y.rank - x.rank :])
