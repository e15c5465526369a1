"""Reads the specification's table of operators, one file for each version.

``operators.json`` has TOSA 1.0. ``operators_1_1.json`` (the 1.1 draft) and
``operators_0_80.json`` are read only if a target or a file has that version. All three
name operands and attributes as ``ir.operators`` does.

A row has the arguments of an operator: type variable, rank, level limits, and whether
it must be constant. It also has the operator's modes. A mode binds the type variables,
and lists alternatives of profiles and extensions that allow it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from typing import Any, NamedTuple

from ..ir.types import BLOCK_SCALED, DType

ELEMENTS: dict[str, DType] = {
    "bool_t": DType.BOOL,
    **{f"i{bits}_t": DType[f"INT{bits}"] for bits in (4, 8, 16, 32, 48)},
    "i64_t": DType.INT64,
    "mxint8_t": DType.MXINT8,
    **{
        f"{t.name.lower()}_t": t
        for t in DType
        if "FP" in t.name or t is DType.BF16 or t in BLOCK_SCALED
    },
}
"""The specification's names of element types."""
Version = tuple[int, int]
FILES: dict[Version, str] = {(1, 0): "operators.json", (1, 1): "operators_1_1.json"}
"""Versions that are known, and the file that has the table of each."""
OLDER: dict[Version, str] = {(0, 80): "operators_0_80.json"}
"""As ``FILES``, for versions that are read only if a target or file has them."""


class Mode(NamedTuple):
    """One legal combination of element types.

    ``allowed_by`` are alternatives, each a set of names needed together. None is used
    for an operand of a list that is not there.
    """

    types: dict[str, DType | None]
    allowed_by: tuple[frozenset[str], ...]


class Row(NamedTuple):
    """The entry of one operator in the table.

    ``inputs`` and ``outputs`` hold an element type or type variable each.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    variables: frozenset[str]
    constants: tuple[tuple[int, str], ...]
    """Position and name of operands that must be constant.

    Positions after a list count from the end.
    """
    modes: tuple[Mode, ...]
    arguments: tuple[dict[str, Any], ...]
    input_list: int = -1
    """Which of the inputs takes any number of operands."""

    def operands(self, count: int) -> tuple[str, ...]:
        """Return the element type or variable of each of ``count`` operands."""
        return _spread(self.inputs, count, self.input_list, _SCALE in self.variables)

    def results(self, count: int) -> tuple[str, ...]:
        """Return the element type or variable of each of ``count`` results."""
        return _spread(self.outputs, count, -1, _SCALE in self.variables)

    def bind(
        self, inputs: tuple[DType, ...], outputs: tuple[DType, ...]
    ) -> dict[str, DType | None] | str:
        """Type variable -> element type.

        Or the text that names the operand that does not fit.
        """
        bound: dict[str, DType | None] = {}
        elements = (*self.operands(len(inputs)), *self.results(len(outputs)))
        for element, dtype in zip(elements, inputs + outputs, strict=True):
            fixed = element not in self.variables
            wanted = _fixed(element) if fixed else bound.setdefault(element, dtype)
            if wanted not in (None, dtype):
                return f"TOSA {self.name} takes {wanted} where it is given {dtype}"
        if _SCALE in self.variables:
            bound.setdefault(_SCALE, None)
        return bound

    def matching(self, bound: Mapping[str, DType | None]) -> list[Mode]:
        """Modes in which each bound variable has its element type."""
        return [
            m
            for m in self.modes
            if all(m.types.get(k, v) == v for k, v in bound.items())
        ]


_SCALE = "scale_t"


def _spread(
    elements: tuple[str, ...], count: int, at: int, scaled: bool
) -> tuple[str, ...]:
    """Repeat the element at ``at``, a list, so that there are ``count`` operands.

    A list has equal tensors, or a tensor and its scale.
    """
    if count == len(elements) or not elements:
        return elements
    at %= len(elements)
    after = elements[at + 1 :]
    listed = count - at - len(after)
    if at == len(elements) - 1 and not scaled:
        spread = elements[:at] + elements[at:] * listed
    else:
        spread = (
            elements[:at]
            + (elements[at], *[_SCALE] * (listed - 1))[: max(listed, 0)]
            + after
        )
    return spread[:count]  # an operator may lack some


def _fixed(element: str) -> DType | None:
    return DType.SHAPE if element == "shape" else ELEMENTS.get(element)


@lru_cache(maxsize=len(FILES) + len(OLDER))
def load(version: Version = (1, 0)) -> dict[str, Any]:
    """Return the parsed file of a version."""
    file = resources.files(__package__).joinpath((FILES | OLDER)[version])
    loaded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return loaded


@lru_cache(maxsize=len(FILES) + len(OLDER))
def rows(version: Version = (1, 0)) -> dict[str, Row]:
    """Operator name -> row of a version."""
    return {entry["name"]: _row(entry) for entry in load(version)["operators"]}


def _row(entry: dict[str, Any]) -> Row:
    arguments = entry["arguments"]
    inputs = [
        a for a in arguments if a["category"] == "input" or a["name"] == "initial_value"
    ]
    outputs = [a for a in arguments if a["category"] == "output"]
    listed = next(
        (i for i, a in enumerate(inputs) if "_list_" in a["type"]), len(inputs)
    )
    places = [i if i <= listed else i - len(inputs) for i in range(len(inputs))]
    constants = [
        (i, a["name"])
        for i, a in zip(places, inputs, strict=True)
        if a.get("compile_time_constant")
    ]
    return Row(
        entry["name"],
        tuple(_element(a) for a in inputs),
        tuple(_element(a) for a in outputs),
        frozenset(entry["types"]),
        tuple(constants),
        tuple(_mode(m) for m in entry["modes"]),
        tuple(arguments),
        listed if listed < len(inputs) else -1,
    )


def _element(argument: dict[str, Any]) -> str:
    if argument["type"] in ("shape_t", "shape_list_t"):
        return "shape"
    return argument.get("element") or "any"


def _mode(entry: dict[str, Any]) -> Mode:
    types = {
        k: ELEMENTS.get(v)
        for k, v in entry["types"].items()
        if v in ELEMENTS or v == "-"
    }
    return Mode(types, tuple(frozenset(names) for names in entry["requires_any"]))
