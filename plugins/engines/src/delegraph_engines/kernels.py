"""Assigns calls of a program to the kernels of an engine, for profiles by line."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple


class Kernel(NamedTuple):
    """A kernel that an engine ran.

    ``calls``: the calls that the engine reports for it. ``reads``: the names of the
    kernels that it reads results of. ``only_moves``: it computes nothing, and only
    changes the place or layout of its operand.
    """

    name: str
    calls: Iterable[int]
    reads: Iterable[str]
    only_moves: bool = False


def computed_by(
    kernels: Iterable[Kernel], reads: Iterable[tuple[int, int]]
) -> dict[str, tuple[int, ...] | None]:
    """Return the calls that each kernel computes, by its name, as a key of ``Spent``.

    They are None if they are not known. ``reads``: pairs of a call and an operand of
    it. Engines lose the names of calls that they fuse: for relu(conv(x)), a kernel may
    report only the relu. So a kernel also computes the operands of its calls that no
    kernel reports.

    A kernel that only moves a value counts for the kernel that reads it, if there is
    only one. If that computes no call, it counts for the kernel that computed the
    value.
    """
    listed = list(kernels)
    operands: dict[int, list[int]] = {}
    for call, operand in reads:
        operands.setdefault(call, []).append(operand)
    reported = set(chain.from_iterable(kernel.calls for kernel in listed))
    calls_of: dict[str, tuple[int, ...] | None] = {}
    for kernel in listed:
        computed = set(kernel.calls)
        waiting = list(kernel.calls)
        while waiting:
            fused = set(operands.get(waiting.pop(), ())) - reported - computed
            computed |= fused
            waiting += fused
        calls_of[kernel.name] = tuple(sorted(computed)) or None
    readers: dict[str, set[str]] = {}
    for kernel in listed:
        for name in kernel.reads:
            readers.setdefault(name, set()).add(kernel.name)
    # readers first: a moved value may be moved again
    for kernel in reversed(listed):
        readers_of_kernel = readers.get(kernel.name, set())
        if kernel.only_moves and len(readers_of_kernel) == 1:
            neighbours = [*readers_of_kernel, *kernel.reads]
            known = filter(None, map(calls_of.get, neighbours))
            calls_of[kernel.name] = next(known, None)
    return calls_of
