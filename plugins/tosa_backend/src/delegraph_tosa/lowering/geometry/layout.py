"""Axis orders by name, and the numbers that ATen writes in several ways."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.graph import Value
from ..builder import Tosa

NHWC = (0, 2, 3, 1)
"""From torch's images (N,C,H,W) to TOSA's."""
NCHW = (0, 3, 1, 2)
"""Back again."""
OHWI = (0, 2, 3, 1)
"""From torch's convolution weights (O,I,KH,KW) to TOSA's."""
HWOI = (2, 3, 0, 1)
"""From torch's depthwise weights (C*M,1,KH,KW) to (KH,KW,C*M,1)."""

Pair = tuple[int, int]


def channels_last(rank: int) -> tuple[int, ...]:
    """From torch's (N,C,*S), or its weights (O,C,*K), to TOSA's (N,*S,C)."""
    return (0, *range(2, rank), 1)


def channels_first(rank: int) -> tuple[int, ...]:
    """Back again."""
    return (0, rank - 1, *range(1, rank - 1))


def pair(numbers: int | Sequence[int]) -> Pair:
    """One number for both axes, or one for each."""
    if isinstance(numbers, int):
        return numbers, numbers
    return (numbers[0], numbers[-1])


def numbers(given: int | Sequence[int], count: int) -> tuple[int, ...]:
    """One number for all ``count`` axes, or one for each."""
    if isinstance(given, int):
        return (given,) * count
    return tuple(given) if len(given) == count else (given[0],) * count


def axis_of(dim: int, rank: int) -> int:
    """A dimension that may count from the end, counted from 0. A tensor without axes takes 0 and -1."""
    return dim % rank if rank else 0


def batched(t: Tosa, x: Value, rank: int) -> Value:
    """x with the batch axis that images and signals may lack: [C,H,W] -> [1,C,H,W]"""
    return t.ranked(x, rank) if x.rank == rank - 1 else x


def unbatched(t: Tosa, y: Value, x: Value) -> Value:
    """A result without the batch axis that ``x`` lacks."""
    return t.reshape(y, y.shape[y.rank - x.rank :])
