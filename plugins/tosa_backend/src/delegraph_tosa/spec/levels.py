"""Level limits (specification: Levels), such as rank, kernel and tensor size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ..ir.dynamic_sizes import exceeds, is_dynamic
from ..ir.graph import Illegal, Operator, Value, shape_of
from ..ir.types import BYTES, DType, Type
from .operator_table import Row, Version, load

Size = Callable[[Operator], int]
"""A function that reads a size from an operator."""
Breach = tuple[str, str]
"""The name of a rule of ``ir.rulebook``, and a text: how it is broken."""

_COMPONENTS = {
    ("pad", 4): ("pad_top", "pad_bottom", "pad_left", "pad_right"),
    ("pad", 6): ("pad_d0", "pad_d1", "pad_top", "pad_bottom", "pad_left", "pad_right"),
    ("out_pad", 4): ("out_pad_top", "out_pad_bottom", "out_pad_left", "out_pad_right"),
    ("scale", 4): ("scale_y_n", "scale_y_d", "scale_x_n", "scale_x_d"),
    ("kernel", 2): ("kernel_y", "kernel_x"),
    ("stride", 2): ("stride_y", "stride_x"),
    ("dilation", 2): ("dilation_y", "dilation_x"),
    ("stride", 3): ("stride_d", "stride_y", "stride_x"),
    ("dilation", 3): ("dilation_d", "dilation_y", "dilation_x"),
}
"""(argument, length) -> the names of its entries in limits of the specification."""


RULE_OF_LIMIT = {
    "MAX_RANK": "level-rank",
    "MAX_KERNEL": "level-kernel",
    "MAX_STRIDE": "level-stride",
    "MAX_SCALE": "level-scale",
    "MAX_TENSOR_LIST_SIZE": "level-list-length",
    "MAX_SHAPE_LEN": "level-shape-length",
}
"""A maximum of the specification -> the rule that a larger size breaks."""


OF_TYPED_OPERATORS = frozenset({"profile", "level-rank", "level-tensor-size"})
"""Rules of tensors that do not apply to those of CUSTOM operators."""


class Limit(NamedTuple):
    """A limit of an operator: ``measure // divisor`` is at most ``maximum``.

    ``text`` is the expression in the specification, such as ``dilation_y * KH``.
    """

    text: str
    measure: Size
    divisor: Size | None
    maximum: int
    maximum_name: str

    def breach(self, operator: Operator) -> Breach | None:
        """Return the breach if ``operator`` exceeds the limit, or None."""
        size = self.measure(operator)
        found = str(size)
        if self.divisor is not None:
            divisor = self.divisor(operator)
            if divisor < 1:
                # ``infer`` reports it
                return None
            found = f"{size}/{divisor}"
            size //= divisor
        if size <= self.maximum:
            return None
        text = (
            f"TOSA {operator.name}: {self.text} is {found}, {self.maximum_name} is"
            f" {self.maximum}"
        )
        return RULE_OF_LIMIT[self.maximum_name], text


class Level:
    """The limits of one level of a version, compiled from the table.

    Types without breaches are remembered, and so are the limits of each operator.
    """

    def __init__(self, name: str, version: Version) -> None:
        self.name = name
        self.takes_dynamic = version > (1, 0)
        levels = {level["name"].upper(): level for level in load(version)["levels"]}
        self.limits: dict[str, int] = levels[name]
        self._accepted: set[Type] = set()
        self._compiled: dict[str, tuple[Limit, ...]] = {}

    def exceeded(self, operator: Operator, row: Row) -> Iterator[Breach]:
        """Yield the limits that ``operator`` exceeds."""
        for value in (*operator.inputs, *operator.outputs):
            if value.type in self._accepted:
                continue
            for rule, text in self.type_breaches(value.type):
                if row.name != "CUSTOM" or rule not in OF_TYPED_OPERATORS:
                    yield rule, f"TOSA {operator.name}: {text}"
        for limit in self._limits_of(row):
            breach = limit.breach(operator)
            if breach is not None:
                yield breach

    def _limits_of(self, row: Row) -> tuple[Limit, ...]:
        """Return the limits of an operator, compiled once."""
        if row.name not in self._compiled:
            self._compiled[row.name] = self._compile(row)
        return self._compiled[row.name]

    def type_breaches(self, type: Type) -> list[Breach]:
        """Return the rules that a tensor or shape of this type breaks."""
        if type.dtype is DType.SHAPE:
            found = list(self._breaches_of_shape(type))
        else:
            found = list(self._breaches_of_tensor(type))
        if not found:
            self._accepted.add(type)
        return found

    def _breaches_of_shape(self, type: Type) -> Iterator[Breach]:
        """Yield a breach if a shape is too long."""
        longest = self.limits["max_shape_len"]
        if math.prod(type.shape) > longest:
            yield "level-shape-length", f"shape {type}: MAX_SHAPE_LEN is {longest}"

    def _breaches_of_tensor(self, type: Type) -> Iterator[Breach]:
        """Yield a breach for each rule that a tensor breaks."""
        rank = len(type.shape)
        most = self.limits["max_rank"]
        if rank > most:
            yield "level-rank", f"{type} has rank {rank}, MAX_RANK is {most}"
        if any(exceeds(1, size) for size in type.shape):
            text = f"{type} has a size below 1; TOSA has no empty tensors"
            yield "size-positive", text
        if type.is_dynamic and not self.takes_dynamic:
            text = (
                f"{type} has a dynamic shape; TOSA 1.0 needs every size at compile"
                " time, 1.1 does not"
            )
            yield "size-known", text
        power = self.limits["max_log2_size"]
        bytes = math.prod(type.shape) * BYTES.get(type.dtype, 1)
        if exceeds(bytes, (1 << power) - 1):
            text = f"{type} takes 2**{power} bytes or more (MAX_LOG2_SIZE)"
            yield "level-tensor-size", text

    def _compile(self, row: Row) -> tuple[Limit, ...]:
        """Return the limits of an operator from its row."""
        sizes = _named_sizes(row)
        limits: list[Limit] = []
        for argument in row.arguments:
            for text, maximum in argument.get("level_limits", ()):
                if text in sizes or not _is_common(text):
                    limits.append(self._limit(text, maximum, sizes))
        return tuple(limits)

    def _limit(self, text: str, maximum: str, sizes: dict[str, Size]) -> Limit:
        """Return the limit of a text such as ``dilation_y * KH`` or ``n / d``."""
        above, _, below = text.partition("/")
        factors = [sizes[name.strip()] for name in above.split("*")]
        divisor = sizes[below.strip()] if below else None
        most = self.limits[maximum.lower()]
        return Limit(text, _product(factors), divisor, most, maximum)


def _is_common(text: str) -> bool:
    """Return whether the limit is one of rank or shape length.

    ``type_breaches`` checks these for every operand.
    """
    return text.startswith(("rank(", "length(")) and "list" not in text


def _product(factors: list[Size]) -> Size:
    """Return the product of sizes, as a function of an operator."""

    def product(operator: Operator) -> int:
        return math.prod([factor(operator) for factor in factors])

    return product


def _named_sizes(row: Row) -> dict[str, Size]:
    """Map each name in a limit to a function that reads it from an operator."""
    sizes: dict[str, Size] = {}
    for argument in row.arguments:
        name = argument["name"]
        category = argument["category"]
        if argument["type"] == "tensor_list_t":
            sizes[f"length(tensor_list_shape({name}))"] = _list_length(category)
        elif argument["type"] == "shape_list_t":
            sizes[f"length({name})"] = _list_length(category)
        elif category == "input" and argument["type"] == "tensor_t":
            sizes.update(_dimensions(name, argument.get("shape") or ""))
        for position, entry in enumerate(_entries(argument)):
            sizes[entry] = _entry(name, position)
    return sizes


def _list_length(category: str) -> Size:
    """Return the function for the length of a list of operands or results."""
    if category == "output":
        return lambda operator: len(operator.outputs)
    return lambda operator: len(operator.inputs)


def _dimensions(operand: str, shape: str) -> dict[str, Size]:
    """Map the letters of a shape such as ``[N,H,W,C]`` to sizes of an operand."""
    if not shape.startswith("["):
        return {}
    letters = shape.strip("[]").split(",")
    return {letter: _dimension(operand, axis) for axis, letter in enumerate(letters)}


def _dimension(operand: str, axis: int) -> Size:
    """Return the function for the size of an operand along an axis."""

    def size(operator: Operator) -> int:
        value: Value = getattr(operator, operand)
        return _at(value.shape, axis)

    return size


def _entries(argument: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of the entries of an argument, such as ``stride_y``."""
    length = (argument.get("shape") or "").strip("[]")
    if not length.isdigit():
        return ()
    return _COMPONENTS.get((argument["name"], int(length)), ())


def _at(entries: Sequence[int], position: int) -> int:
    """Return an entry, or 0, which exceeds no limit.

    It is 0 if there is no such entry, which ``infer`` reports, and for an entry that is
    known at run time only.
    """
    if position >= len(entries) or is_dynamic(entries[position]):
        return 0
    return int(entries[position])


def _known_entries(value: Value) -> Sequence[int]:
    """Return the entries of a SHAPE; none if they are not known."""
    try:
        return shape_of(value)
    except Illegal:
        return ()


def _entry(name: str, position: int) -> Size:
    """Return the function for an entry of an attribute or of a SHAPE operand."""

    def size(operator: Operator) -> int:
        entries = getattr(operator, name)
        if isinstance(entries, Value):
            entries = _known_entries(entries)
        return _at(entries, position)

    return size
