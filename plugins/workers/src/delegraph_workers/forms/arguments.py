"""Write arguments of calls, and the types that torch recorded, as JSON, and read them.

``null``, ``true``, integers, texts and lists are written unchanged. Any other value is
an object with one key: ``{"v": 3}`` is the value of node 3, ``{"f": ...}`` a float by
its bits, ``{"t": [...]}`` a tuple.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from delegraph.errors import FormatError
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Node

from .sizes import SYMBOLIC, NoForm, SymbolsRead, SymbolsWritten, at, bits_of, float_of


def _constants_of(kind: type) -> dict[str, Any]:
    """Return the constants of torch of a type by name, without quantized dtypes."""
    found = {}
    for value in vars(torch).values():
        name = str(value).removeprefix("torch.")
        if isinstance(value, kind) and not name.startswith("q"):
            found[name] = value
    return found


_NAMED: dict[str, dict[str, Any]] = {
    "d": _constants_of(torch.dtype),
    "m": _constants_of(torch.memory_format),
    "y": _constants_of(torch.layout),
}
"""Tag -> name -> dtype, memory format or layout."""
_TAGS: dict[Any, dict[str, str]] = {}
for _tag, _named in _NAMED.items():
    _TAGS.update({value: {_tag: name} for name, value in _named.items()})
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
    """Return the form of an argument of a call. Raises NoForm for a value without one.

    ``number_of``: node -> its number. ``flat``: write tuples as lists; operators do not
    distinguish them.
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
        pairs = [
            [key, written(value[key], number_of, symbols, flat)]
            for key in sorted(value)
        ]
        return {"k": pairs}
    if kind in SYMBOLIC:
        return {SYMBOLIC[kind]: symbols.write(value)}
    if kind is torch.device:
        return {"device": str(value)}
    if kind is complex:
        return {"c": [bits_of(value.real), bits_of(value.imag)]}
    try:
        return _TAGS[value]
    except (KeyError, TypeError):  # TypeError: it has no hash
        raise NoForm(f"it has {value!r:.80}, a {kind.__name__}") from None


def read(form: Any, nodes: Sequence[Node], symbols: SymbolsRead) -> Any:
    """Return the argument with this ``form``; the inverse of ``written``.

    A form refers to ``nodes`` and to ``symbols`` of the program by number.
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
    if tag == "c":
        real, imaginary = map(float_of, value)
        return complex(real, imaginary)
    return symbols.number(value, kind=tag)


def c_strides(shape: Sequence[Any]) -> list[Any]:
    """Return the strides of a contiguous tensor of this shape, as torch computes them."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return strides[::-1]


class TypesWritten:
    """A table of the types of recorded values, ``rows``. Equal types share a row.

    The row of a tensor has its dtype and shape, and its strides unless it is
    contiguous.
    """

    def __init__(self, symbols: SymbolsWritten) -> None:
        """Make an empty table. ``symbols`` numbers the symbols in sizes."""
        self.rows: list[Any] = []
        self._symbols = symbols
        self._known = dict[Any, int]()  # key of a type -> number of its row

    def index(self, val: Any) -> int:
        """Return the number of the row for a recorded value.

        The value is a fake tensor, a number, None, or a list of these. A value of a new
        type gets a new row.
        """
        if not isinstance(val, FakeTensor) or val._has_symbolic_sizes_strides:
            row = self._row(val)
            return self._number(repr(row), row)
        # comparing the properties of a tensor is faster than building its row
        key = val.dtype, val.shape, val.stride(), val.device, val.layout
        if key in self._known:
            return self._known[key]
        return self._number(key, self._tensor(val))

    def _number(self, key: Any, row: Any) -> int:
        """Return the number of the row with ``key``; append ``row`` if there is none."""
        if key not in self._known:
            self._known[key] = len(self.rows)
            self.rows.append(row)
        return self._known[key]

    def _row(self, val: Any) -> Any:
        """Return the form of a recorded value. Raises NoForm."""
        if isinstance(val, tuple):
            return {"t": [self._row(v) for v in val]}
        if isinstance(val, list):
            return {"l": [self._row(v) for v in val]}
        if isinstance(val, FakeTensor):
            return self._tensor(val)
        return written(val, {}, self._symbols)

    def _tensor(self, val: torch.Tensor) -> list[Any]:
        """Return the row of a fake tensor. Raises NoForm unless it is dense on the CPU."""
        is_dense = val.device.type == "cpu" and val.layout is torch.strided
        if not is_dense or val.dtype not in NAMES:
            raise NoForm(
                f"it has a tensor on {val.device}, {val.dtype}, {val.layout}; tensors"
                " must be dense, on the CPU and of a usual dtype"
            )
        shape = [self._symbols.write(size) for size in val.shape]
        strides = [self._symbols.write(step) for step in val.stride()]
        row = [NAMES[val.dtype], shape]
        if val._has_symbolic_sizes_strides or strides != c_strides(shape):
            row.append(strides)
        return row


class TypesRead:
    """Makes recorded values from the rows of ``TypesWritten``.

    Each call of ``val`` makes a new fake tensor.
    """

    def __init__(
        self, rows: Sequence[Any], symbols: SymbolsRead, mode: FakeTensorMode
    ) -> None:
        self._rows = rows
        self._symbols = symbols
        self._mode = mode

    def val(self, index: Any) -> Any:
        """Return the value of row number ``index``."""
        return self._read(self._rows[at(index)])

    def _read(self, row: Any) -> Any:
        """Return the value of a row: a tensor, a list or tuple of values, or a number."""
        if isinstance(row, list):
            return self._tensor(*row)
        if isinstance(row, dict) and row.keys() & {"l", "t"}:
            ((tag, value),) = row.items()
            values = [self._read(item) for item in value]
            return values if tag == "l" else tuple(values)
        return read(row, (), self._symbols)

    def _tensor(self, dtype: str, shape: Any, strides: Any = None) -> torch.Tensor:
        """Return a fake tensor, contiguous without ``strides``.

        Raises FormatError for impossible numbers.
        """
        shape = [self._symbols.number(size, "int") for size in shape]
        steps = c_strides(shape)
        if strides is not None:
            steps = [self._symbols.number(step, "int") for step in strides]
        # 2**60 elements of 8 bytes are 2**63 bytes, more than torch can count
        if any(type(n) is int and not 0 <= n < 1 << 60 for n in (*shape, *steps)):
            raise FormatError(
                "format-invalid",
                f"it has a tensor of shape {shape} and strides {steps}, which cannot be",
            )
        # without the mode, which would look up the operator: three times as slow
        meta = torch.empty_strided(shape, steps, dtype=DTYPES[dtype], device="meta")
        return FakeTensor(self._mode, meta, torch.device("cpu"))
