"""Arguments of calls, and the types that torch recorded, as JSON and back.

In JSON ``null``, ``true``, whole numbers, texts and lists are themselves; all else is
an object of one key: ``{"v": 3}`` is the value that node 3 makes, ``{"f": ...}`` a
float by its bits, ``{"t": [...]}`` a tuple.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from delegraph.errors import FormatError
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Node

from .sizes import SYMBOLIC, NoForm, SymbolsRead, SymbolsWritten, at, bits_of, float_of

_NAMED: dict[str, dict[str, Any]] = {
    tag: {
        str(v)[6:]: v
        for v in vars(torch).values()
        if isinstance(v, kind) and not str(v).startswith("torch.q")
    }
    for tag, kind in (
        ("d", torch.dtype),
        ("m", torch.memory_format),
        ("y", torch.layout),
    )
}
"""Tag -> name -> dtype (without those of quantized tensors), memory format or layout.
"""
_TAGS = {v: {tag: name} for tag, named in _NAMED.items() for name, v in named.items()}
_PLAIN = frozenset({type(None), bool, int, str})
DTYPES: Mapping[str, torch.dtype] = _NAMED["d"]
"""Dtypes by their names."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def written(
    value: Any,
    number_of: Mapping[Node, int],
    symbols: SymbolsWritten,
    flat: bool = False,
) -> Any:
    """The form of an argument of a call. Raises NoForm for a value that has none.

    ``number_of``: node -> its number. ``flat``: write tuples as lists, which operators
    do not tell apart.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is Node:
        return {"v": number_of[value]}
    if kind is float:
        return {"f": bits_of(value)}
    if isinstance(value, (list, tuple)):
        items = [written(v, number_of, symbols, flat) for v in value]
        return {"t": items} if isinstance(value, tuple) and not flat else items
    if isinstance(value, dict) and all(type(key) is str for key in value):
        return {
            "k": [
                [key, written(value[key], number_of, symbols, flat)]
                for key in sorted(value)
            ]
        }
    if kind in SYMBOLIC:
        return {SYMBOLIC[kind]: symbols.write(value)}
    if kind is torch.device:
        return {"device": str(value)}
    if kind is complex:
        return {"c": [bits_of(value.real), bits_of(value.imag)]}
    try:
        return _TAGS[value]
    except (KeyError, TypeError):  # TypeError: it has no hash
        raise NoForm(
            f"the form has no words for {value!r:.80}, which is a {kind.__name__}"
        ) from None


def read(form: Any, nodes: Sequence[Node], symbols: SymbolsRead) -> Any:
    """The inverse of ``written``: the argument of which ``form`` is the form.

    ``nodes``: the nodes by number. ``symbols``: those of the program. Both are what a
    form refers to by number.
    """
    if type(form) is list:
        return [read(v, nodes, symbols) for v in form]
    if type(form) is not dict:
        return form
    ((tag, value),) = form.items()
    if tag == "v":  # the value of a node
        return nodes[at(value)]
    if tag == "f":  # a float
        return float_of(value)
    if tag == "t":  # a tuple
        return tuple(read(v, nodes, symbols) for v in value)
    if tag == "k":  # a dictionary with texts as keys
        return {key: read(v, nodes, symbols) for key, v in value}
    if tag in _NAMED:  # a dtype, memory format or layout
        return _NAMED[tag][value]
    if tag == "device":
        return torch.device(value)
    # a complex number, or a symbolic number, whose kind is the tag
    return complex(*map(float_of, value)) if tag == "c" else symbols.number(value, tag)


def c_strides(shape: Sequence[Any]) -> list[Any]:
    """The strides of a contiguous tensor of this shape, as torch computes them."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return strides[::-1]


class TypesWritten:
    """The table of the types of recorded values, ``rows``. Equal types share a row.

    The row of a tensor has its dtype and shape, and its strides unless it is
    contiguous.
    """

    def __init__(self, symbols: SymbolsWritten) -> None:
        """An empty table. ``symbols`` numbers the symbols in sizes."""
        self.rows: list[Any] = []
        self._symbols = symbols
        self._known = dict[Any, int]()  # key of a type -> number of its row

    def index(self, val: Any) -> int:
        """The number of the row for a recorded value: a fake tensor, a number, None, or
        a list of these.

        A value of a new type gets a new row.
        """
        # a tensor of fixed sizes is looked up by its properties: faster than to build
        # its row, by whose text others are
        if not isinstance(val, FakeTensor) or val._has_symbolic_sizes_strides:
            row = self._row(val)
            return self._number(repr(row), row)
        key = val.dtype, val.shape, val.stride(), val.device, val.layout
        return (
            self._known[key]
            if key in self._known
            else self._number(key, self._tensor(val))
        )

    def _number(self, key: Any, row: Any) -> int:
        """The number of the row that is known by ``key``; appends ``row`` if there is
        none.
        """
        number = self._known.setdefault(key, len(self.rows))
        self.rows += [row] if number == len(self.rows) else []
        return number

    def _row(self, val: Any) -> Any:
        """The form of a recorded value. Raises NoForm."""
        if isinstance(val, (list, tuple)):
            return {"t" if isinstance(val, tuple) else "l": [self._row(v) for v in val]}
        return (
            self._tensor(val)
            if isinstance(val, FakeTensor)
            else written(val, {}, self._symbols)
        )

    def _tensor(self, val: torch.Tensor) -> list[Any]:
        """The row of a fake tensor. Raises NoForm for one that is not dense on the CPU."""
        if (
            val.device.type != "cpu"
            or val.layout is not torch.strided
            or val.dtype not in NAMES
        ):
            raise NoForm(
                f"the form has no words for a tensor on {val.device}, {val.dtype},"
                f" {val.layout}"
            )
        shape, strides = (
            [self._symbols.write(n) for n in sizes]
            for sizes in (val.shape, val.stride())
        )
        plain = not val._has_symbolic_sizes_strides and strides == c_strides(shape)
        return [NAMES[val.dtype], shape, *([] if plain else [strides])]


class TypesRead:
    """Creates recorded values from the rows of ``TypesWritten``: a new fake tensor at
    each call of ``val``.
    """

    def __init__(
        self, rows: Sequence[Any], symbols: SymbolsRead, mode: FakeTensorMode
    ) -> None:
        self._rows = rows
        self._symbols = symbols
        self._mode = mode

    def val(self, index: Any) -> Any:
        """The value of row number ``index``."""
        return self._read(self._rows[at(index)])

    def _read(self, row: Any) -> Any:
        """The value of a row: a tensor, a list or tuple of values, or a number."""
        if isinstance(row, list):
            return self._tensor(*row)
        if isinstance(row, dict) and row.keys() & {"l", "t"}:
            ((tag, value),) = row.items()
            return (list if tag == "l" else tuple)(map(self._read, value))
        return read(row, (), self._symbols)

    def _tensor(self, dtype: str, shape: Any, strides: Any = None) -> torch.Tensor:
        """A fake tensor; ``strides`` None makes it contiguous.

        Raises FormatError for impossible numbers.
        """
        shape = [self._symbols.number(size, "int") for size in shape]
        steps = (
            c_strides(shape)
            if strides is None
            else [self._symbols.number(step, "int") for step in strides]
        )
        # 2**60 elements of 8 bytes are 2**63 bytes, more than torch can count
        if any(type(n) is int and not 0 <= n < 1 << 60 for n in (*shape, *steps)):
            raise FormatError(
                "format-invalid",
                f"no tensor has the shape {shape} and the strides {steps}",
            )
        # Not in the mode, which would first look up how to fake the operator: that
        # takes three times as long.
        meta = torch.empty_strided(shape, steps, dtype=DTYPES[dtype], device="meta")
        return FakeTensor(self._mode, meta, torch.device("cpu"))
