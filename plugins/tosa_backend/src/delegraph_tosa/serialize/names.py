"""Gives the tensors and shapes of a file unique names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ..ir.graph import Value


class Names:
    """Unique names.

    A value keeps its own name unless another value of the file has it.
    """

    def __init__(self, values: Iterable[Value]) -> None:
        self._given = Counter(v.name for v in dict.fromkeys(values) if v.name)
        self._taken = set(self._given)
        self._counts: Counter[str] = Counter()

    def name(self, value: Value, kind: str, position: int | None = None) -> str:
        """Return a new name: the value's own, or as ``fresh``."""
        if value.name and self._given[value.name] == 1:
            # in another block, the same value is another tensor, and gets a number
            self._given[value.name] = 0
            return value.name
        return self.fresh(kind, position)

    def fresh(self, kind: str, position: int | None = None) -> str:
        """Return a new name such as ``input_2``: ``kind`` and ``position``.

        Without a position, or if the name is taken, the number is the next free one.
        """
        number = self._next(kind) if position is None else position
        name = f"{kind}_{number}"
        while name in self._taken:
            name = f"{kind}_{self._next(kind)}"
        self._taken.add(name)
        return name

    def _next(self, kind: str) -> int:
        """Return the numbers 0, 1, ... of ``kind`` in turn."""
        self._counts[kind] += 1
        return self._counts[kind] - 1
