"""Keep the values of a method while it is emitted.

Instructions refer to values by their position in the method's table of values. A value
gets its position when an instruction first uses it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..memory.storage import DeviceId, Home, Storage
from ..program.pte_tables import (
    Bool,
    BoolList,
    Double,
    DoubleList,
    Int,
    IntList,
    Null,
    OptionalTensorList,
    String,
    TensorList,
)


@dataclass(eq=False)
class TensorValue:
    """A tensor with its element type, sizes and memory.

    - ``varies``: whether ``sizes`` are upper bounds of dynamic sizes.
    - ``constant``: the content, if it is known.
    - ``initial``: the content before the first run, if the file stores it.
    - ``name``: the name in the model, if the file stores it.
    - ``file``: the data file that stores a constant; "" for the program's own file.
    - ``device``: the tensor's device; None for the host.
    """

    dtype: torch.dtype
    sizes: tuple[int, ...]
    storage: Storage
    varies: bool = False
    constant: torch.Tensor | None = None
    initial: torch.Tensor | None = None
    name: str = ""
    file: str = ""
    device: DeviceId | None = None


@dataclass(eq=False)
class ScalarValue:
    """A number that the program computes; ``start`` is its value before the first run."""

    start: Int | Bool | Double


Computed = TensorValue | ScalarValue
Constant = (
    Int
    | Bool
    | Double
    | Null
    | String
    | IntList
    | DoubleList
    | BoolList
    | TensorList
    | OptionalTensorList
)
Entry = TensorValue | Constant


@dataclass
class ValueTable:
    """Values by position. Equal constants and lists are stored once."""

    entries: list[Entry] = field(default_factory=list)
    _computed: dict[Computed, int] = field(default_factory=dict)
    _constants: dict[object, int] = field(default_factory=dict)

    def position(self, value: Computed) -> int:
        """Return the position of a tensor or a computed number."""
        if value not in self._computed:
            self._computed[value] = len(self.entries)
            self.entries.append(
                value if isinstance(value, TensorValue) else value.start
            )
        return self._computed[value]

    def constant(self, value: bool | int | float | str | None) -> int:
        """Return the position of a number, a string or None."""
        if value is None:
            return self._once(Null(), None)
        if isinstance(value, bool):
            return self._once(Bool(value), value)
        if isinstance(value, int):
            return self._once(Int(value), value)
        if isinstance(value, float):
            # Compare bytes: -0.0 equals 0.0 in Python, and NaN does not equal itself.
            return self._once(Double(value), struct.pack("<d", value))
        return self._once(String(value), value)

    def numbers(
        self, cls: type[DoubleList] | type[BoolList], items: Sequence[Any]
    ) -> int:
        """Return the position of a list of constant numbers."""
        # compare bytes, as for single floats
        packed = struct.pack(f"<{len(items)}d", *items)
        return self._once(cls(tuple(items)), packed)

    def references(
        self,
        cls: type[IntList] | type[TensorList] | type[OptionalTensorList],
        positions: Sequence[int],
    ) -> int:
        """Return the position of a list of other values, given by their positions."""
        return self._once(cls(tuple(positions)), tuple(positions))

    def tensors(self) -> list[TensorValue]:
        """Return all tensors in the table."""
        return [e for e in self.entries if isinstance(e, TensorValue)]

    def _once(self, entry: Entry, content: object) -> int:
        """Return the position of the entry of this type and content; add it if new."""
        key = (type(entry), content)
        if key not in self._constants:
            self._constants[key] = len(self.entries)
            self.entries.append(entry)
        return self._constants[key]


def constant_tensor(tensor: torch.Tensor) -> TensorValue:
    """Return a tensor that the file stores."""
    return TensorValue(
        tensor.dtype,
        tuple(tensor.shape),
        Storage(tensor.nbytes, Home.CONSTANT),
        constant=tensor,
    )


def planned_tensor(
    dtype: torch.dtype, sizes: tuple[int, ...], varies: bool, home: Home = Home.PLANNED
) -> TensorValue:
    """Return a tensor with memory of its own; ``varies``: as in ``TensorValue``."""
    count = 1
    for size in sizes:
        count *= size
    return TensorValue(dtype, sizes, Storage(count * dtype.itemsize, home), varies)


def scalar_value(kind: type) -> ScalarValue:
    """Return a new number that the program computes; ``kind`` is int, bool or float."""
    starts: dict[type, Int | Bool | Double] = {
        int: Int(0),
        bool: Bool(False),
        float: Double(0.0),
    }
    return ScalarValue(starts[kind])
