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
Breach = tuple[str, str]
"""A rule of ``ir.rulebook`` and how it is broken."""

_COMPONENTS = {
    ("pad", 4): ("pad_top", "pad_bottom", "pad_left", "pad_right"),
    ("pad", 6): ("pad_d0", "pad_d1", "pad_top", "pad_bottom", "pad_left", "pad_right"),
    ("out_pad", 4): ("out_pad_top", "out_pad_bottom", "out_pad_left", "out_pad_right"),
    ("scale", 4): ("scale_y_n", "scale_y_d", "scale_x_n", "scale_x_d"),
    **{
        (name, 2): (f"{name}_y", f"{name}_x")
        for name in ("kernel", "stride", "dilation")
    },
    **{
        (name, 3): (f"{name}_d", f"{name}_y", f"{name}_x")
        for name in ("stride", "dilation")
    },
}
"""(argument, length) -> how the specification names its entries."""


RULE_OF_LIMIT = {
    "MAX_RANK": "level-rank",
    "MAX_KERNEL": "level-kernel",
    "MAX_STRIDE": "level-stride",
    "MAX_SCALE": "level-scale",
    "MAX_TENSOR_LIST_SIZE": "level-list-length",
    "MAX_SHAPE_LEN": "level-shape-length",
}
"""How the specification calls a maximum -> the rule that a larger size breaks."""


OF_TYPED_OPERATORS = frozenset({"profile", "level-rank", "level-tensor-size"})
"""Rules of tensors that do not apply to those of CUSTOM operators."""


class Limit(NamedTuple):
    """A limit of an operator: ``measure // divisor`` is at most ``maximum``."""

    text: str
    measure: Size
    divisor: Size | None
    maximum: int
    maximum_name: str

    def violated(self, operator: Operator) -> Breach | None:
        size = self.measure(operator)
        divisor = self.divisor(operator) if self.divisor else 1
        # a factor below 1 breaks a rule of its own
        if divisor < 1 or size // divisor <= self.maximum:
            return None
        found = f"{size}/{divisor}" if self.divisor else str(size)
        text = (
            f"TOSA {operator.name}: {self.text} is {found}, {self.maximum_name} is"
            f" {self.maximum}"
        )
        return RULE_OF_LIMIT[self.maximum_name], text


class Level:
    """The limits of one level of a version, compiled from the table."""

    def __init__(self, name: str, version: Version) -> None:
        self.name = name
        self.takes_dynamic = version > (1, 0)
        self.limits: dict[str, int] = next(
            e for e in load(version)["levels"] if e["name"].upper() == name
        )
        self._accepted: set[Type] = set()
        self._compiled: dict[str, tuple[Limit, ...]] = {}

    def exceeded(self, operator: Operator, row: Row) -> Iterator[Breach]:
        """Return the limits that ``operator`` exceeds."""
        accepted = self._accepted
        for value in (*operator.inputs, *operator.outputs):
            if value.type not in accepted:
                for rule, text in self.type_breaches(value.type):
                    if row.name != "CUSTOM" or rule not in OF_TYPED_OPERATORS:
                        yield rule, f"TOSA {operator.name}: {text}"
        for limit in self._limits_of(row):
            if breach := limit.violated(operator):
                yield breach

    def _limits_of(self, row: Row) -> tuple[Limit, ...]:
        limits = self._compiled.get(row.name)
        if limits is None:
            limits = self._compiled[row.name] = self._compile(row)
        return limits

    def type_breaches(self, type: Type) -> list[Breach]:
        """Return the rules that a tensor or shape of this type breaks."""
        found = list(
            self._shape_length(type)
            if type.dtype is DType.SHAPE
            else self._tensor(type)
        )
        if not found:
            self._accepted.add(type)
        return found

    def _shape_length(self, type: Type) -> Iterator[Breach]:
        longest = self.limits["max_shape_len"]
        if math.prod(type.shape) > longest:
            yield "level-shape-length", f"shape {type}: MAX_SHAPE_LEN is {longest}"

    def _tensor(self, type: Type) -> Iterator[Breach]:
        if len(type.shape) > self.limits["max_rank"]:
            yield (
                "level-rank",
                (
                    f"{type} has rank {len(type.shape)}, MAX_RANK is"
                    f" {self.limits['max_rank']}"
                ),
            )
        if any(exceeds(1, size) for size in type.shape):
            yield (
                "size-positive",
                f"{type} has a size below 1; TOSA has no empty tensors",
            )
        if type.is_dynamic and not self.takes_dynamic:
            yield (
                "size-known",
                (
                    f"{type} has a dynamic shape; TOSA 1.0 needs every size at compile"
                    " time, 1.1 does not"
                ),
            )
        power = self.limits["max_log2_size"]
        if exceeds(math.prod(type.shape) * BYTES.get(type.dtype, 1), (1 << power) - 1):
            yield (
                "level-tensor-size",
                f"{type} takes 2**{power} bytes or more (MAX_LOG2_SIZE)",
            )

    def _compile(self, row: Row) -> tuple[Limit, ...]:
        sizes = _named_sizes(row)
        limits = [
            limit
            for argument in row.arguments
            for limit in argument.get("level_limits", ())
        ]
        return tuple(
            self._limit(text, name, sizes)
            for text, name in limits
            if text in sizes or not _is_common(text)
        )

    def _limit(self, text: str, maximum: str, sizes: dict[str, Size]) -> Limit:
        above, _, below = text.partition("/")
        factors = [sizes[name.strip()] for name in above.split("*")]
        divisor = sizes[below.strip()] if below else None
        return Limit(
            text, _product(factors), divisor, self.limits[maximum.lower()], maximum
        )


def _is_common(text: str) -> bool:
    """Return whether the limit is one of rank or shape length.

    ``type_breaches`` checks these for every operand.
    """
    return text.startswith(("rank(", "length(")) and "list" not in text


def _product(factors: list[Size]) -> Size:
    if len(factors) == 1:
        return factors[0]
    first, second = factors
    return lambda op: first(op) * second(op)


def _named_sizes(row: Row) -> dict[str, Size]:
    """Maps each name in a limit to a function that reads it from an operator."""
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
    return (
        (lambda op: len(op.outputs))
        if category == "output"
        else (lambda op: len(op.inputs))
    )


def _dimensions(operand: str, shape: str) -> dict[str, Size]:
    letters = shape.strip("[]").split(",") if shape.startswith("[") else []
    return {letter: _dimension(operand, axis) for axis, letter in enumerate(letters)}


def _dimension(operand: str, axis: int) -> Size:
    return lambda op: _at(getattr(op, operand).type.shape, axis)


def _entries(argument: dict[str, Any]) -> tuple[str, ...]:
    length = (argument.get("shape") or "").strip("[]")
    return (
        _COMPONENTS.get((argument["name"], int(length)), ()) if length.isdigit() else ()
    )


def _at(entries: Sequence[int], position: int) -> int:
    """Return an entry.

    0, which exceeds nothing, where there is none: ``infer`` reports
    those operators. 0 as well for one that is known at run time only.
    """
    return (
        int(entries[position])
        if position < len(entries) and not is_dynamic(entries[position])
        else 0
    )


def _known_entries(value: Value) -> Sequence[int]:
    try:
        return shape_of(value)
    except Illegal:
        return ()


def _entry(name: str, position: int) -> Size:
    def size(operator: Operator) -> int:
        held = getattr(operator, name)
        return _at(_known_entries(held) if isinstance(held, Value) else held, position)

    return size
