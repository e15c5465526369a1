"""Names of tensors and shapes in a file: unique, stable, and the value's own where that
is possible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ..ir.graph import Value


class Names:
    """Unique names. A value keeps its own name if no other value of the file has it;
    others are numbered.
    """

    def __init__(self, values: Iterable[Value]) -> None:
        self._given = Counter(v.name for v in dict.fromkeys(values) if v.name)
        self._taken = set(self._given)
        self._counts: Counter[str] = Counter()

    def name(self, value: Value, kind: str, position: int | None = None) -> str:
        """The value's own name, or ``kind`` and the position, or the next free number
        of that kind.
        """
        if value.name and self._given[value.name] == 1:
            # a second tensor of the same value (in another block) is numbered
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
