"""Which calls the kernels of an engine compute, for profiles by line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Kernel(NamedTuple):
    """What an engine ran: the calls that it says it made it of, the names of the
    kernels that it ``reads``.

    ``only_moves``: it computes nothing, and only changes where or how its operand lies.
    """

    name: str
    calls: Iterable[int]
    reads: Iterable[str]
    only_moves: bool = False


def computed_by(
    kernels: Iterable[Kernel], reads: Iterable[tuple[int, int]]
) -> dict[str, tuple[int, ...] | None]:
    """The calls that each kernel computes, by its name, as a key of ``Spent``; None if
    that is not known.

    ``reads``: each call, with one that it reads. Engines forget names where they fuse.
    So a kernel also computes what its calls read and no kernel is made of. A kernel
    that only moves a value counts for the kernel that reads it, if that is one; if it
    makes a result of the value, for the one that computed it.
    """
    listed = list(kernels)
    operands: dict[int, list[int]] = {}
    for call, operand in reads:
        operands.setdefault(call, []).append(operand)
    somewhere = {call for kernel in listed for call in kernel.calls}
    readers: dict[str, list[str]] = {}
    found: dict[str, tuple[int, ...] | None] = {}
    for kernel in listed:
        for name in kernel.reads:
            readers.setdefault(name, []).append(kernel.name)
        inside = {*kernel.calls}
        waiting = list(kernel.calls)
        while waiting:
            new = {*operands.get(waiting.pop(), ())} - somewhere - inside
            inside |= new
            waiting += new
        found[kernel.name] = tuple(sorted(inside)) or None
    for kernel in reversed(listed):  # what reads it was looked at before
        if kernel.only_moves and len({*readers.get(kernel.name, ())}) == 1:
            computed = [
                found.get(name) for name in (readers[kernel.name][0], *kernel.reads)
            ]
            found[kernel.name] = next(filter(None, computed), None)
    return found
