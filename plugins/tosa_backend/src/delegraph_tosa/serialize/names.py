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
        """Return the value's own name, or ``kind`` with a position or free number."""
        if value.name and self._given[value.name] == 1:
            # The same value in another block is another tensor, and gets a number.
            self._given[value.name] = 0
            return value.name
        return self.fresh(kind, position)

    def fresh(self, kind: str, position: int | None = None) -> str:
        name = f"{kind}_{self._next(kind) if position is None else position}"
        while name in self._taken:
            name = f"{kind}_{self._next(kind)}"
        self._taken.add(name)
        return name

    def _next(self, kind: str) -> int:
        self._counts[kind] += 1
        return self._counts[kind] - 1
