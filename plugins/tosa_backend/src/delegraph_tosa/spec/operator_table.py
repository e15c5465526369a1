"""Reads the specification's table of operators, one file for each version.

``operators.json`` has TOSA 1.0. ``operators_1_1.json`` (the 1.1 draft) and
``operators_0_80.json`` are read only if a target or a file has that version. All three
name operands and attributes as ``ir.operators`` does.

A row has the arguments of an operator: type variable, rank, level limits, and whether
it must be constant. It also has the operator's modes. A mode has an element type for
each type variable, and lists alternatives of profiles and extensions that allow it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from typing import Any, NamedTuple

from ..ir.types import BLOCK_SCALED, DType


def _named_elements() -> dict[str, DType]:
    """Return the specification's names of element types."""
    named = {"bool_t": DType.BOOL}
    for bits in (4, 8, 16, 32, 48, 64):
        named[f"i{bits}_t"] = DType[f"INT{bits}"]
    for dtype in DType:
        if "FP" in dtype.name or dtype in (DType.BF16, DType.MXINT8, *BLOCK_SCALED):
            named[f"{dtype.name.lower()}_t"] = dtype
    return named


ELEMENTS = _named_elements()
"""The specification's names of element types."""
Version = tuple[int, int]
FILES: dict[Version, str] = {(1, 0): "operators.json", (1, 1): "operators_1_1.json"}
"""Versions that are known, and the file that has the table of each."""
OLDER: dict[Version, str] = {(0, 80): "operators_0_80.json"}
"""As ``FILES``, for versions that are read only if a target or file has them."""


class Mode(NamedTuple):
    """One legal combination of element types.

    ``types`` maps type variables to element types, or to None for a missing operand of
    a list. ``allowed_by`` are alternatives, each a set of profiles and
    extensions that are needed together.
    """

    types: dict[str, DType | None]
    allowed_by: tuple[frozenset[str], ...]

    def fits(self, bound: Mapping[str, DType | None]) -> bool:
        """Return whether the mode has the element types of ``bound``."""
        for variable, dtype in bound.items():
            if variable in self.types and self.types[variable] != dtype:
                return False
        return True


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
    """Index of the input that is a list of operands; -1 if there is none."""

    def operands(self, count: int) -> tuple[str, ...]:
        """Return the element type or variable of each of ``count`` operands."""
        return _spread(self.inputs, count, self.input_list, _SCALE in self.variables)

    def results(self, count: int) -> tuple[str, ...]:
        """Return the element type or variable of each of ``count`` results."""
        return _spread(self.outputs, count, -1, _SCALE in self.variables)

    def bind(
        self, inputs: tuple[DType, ...], outputs: tuple[DType, ...]
    ) -> dict[str, DType | None] | str:
        """Return the element type of each type variable, from those of the operands.

        If an operand does not fit, returns a text that names both types.
        """
        bound: dict[str, DType | None] = {}
        elements = (*self.operands(len(inputs)), *self.results(len(outputs)))
        for element, dtype in zip(elements, inputs + outputs, strict=True):
            if element in self.variables:
                wanted = bound.setdefault(element, dtype)
            else:
                wanted = _fixed(element)
            if wanted not in (None, dtype):
                return f"TOSA {self.name} takes {wanted} where it is given {dtype}"
        if _SCALE in self.variables:
            bound.setdefault(_SCALE, None)
        return bound

    def matching(self, bound: Mapping[str, DType | None]) -> list[Mode]:
        """Return the modes that have the element types of ``bound``."""
        return [mode for mode in self.modes if mode.fits(bound)]


_SCALE = "scale_t"
"""The type variable of the scales of block-scaled operators."""


def _spread(
    elements: tuple[str, ...], count: int, list_index: int, scaled: bool
) -> tuple[str, ...]:
    """Repeat the element at ``list_index`` so that there are ``count`` elements.

    For example, (bool, T) for 4 operands becomes (bool, T, T, T). A list has tensors of
    the same type, or a tensor and its scale.
    """
    if count == len(elements) or not elements:
        return elements
    list_index %= len(elements)
    before = elements[:list_index]
    after = elements[list_index + 1 :]
    length = max(count - len(before) - len(after), 0)
    if after or scaled:
        tensors = (elements[list_index], *[_SCALE] * (length - 1))
    else:
        tensors = (elements[list_index],) * length
    spread = (*before, *tensors[:length], *after)
    return spread[:count]  # an operator may lack operands


def _fixed(element: str) -> DType | None:
    """Return the type of an element that is no type variable; None for any type."""
    if element == "shape":
        return DType.SHAPE
    return ELEMENTS.get(element)


@lru_cache(maxsize=len(FILES) + len(OLDER))
def load(version: Version = (1, 0)) -> dict[str, Any]:
    """Return the parsed file of a version."""
    file = resources.files(__package__).joinpath((FILES | OLDER)[version])
    loaded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return loaded


@lru_cache(maxsize=len(FILES) + len(OLDER))
def rows(version: Version = (1, 0)) -> dict[str, Row]:
    """Return the rows of a version by operator name."""
    return {entry["name"]: _row(entry) for entry in load(version)["operators"]}


def _row(entry: dict[str, Any]) -> Row:
    """Return the row of an entry of the file."""
    arguments = entry["arguments"]
    inputs = [argument for argument in arguments if _is_input(argument)]
    outputs = [a for a in arguments if a["category"] == "output"]
    input_list = -1
    constants: list[tuple[int, str]] = []
    for position, argument in enumerate(inputs):
        index = position if input_list < 0 else position - len(inputs)
        if argument.get("compile_time_constant"):
            constants.append((index, argument["name"]))
        if input_list < 0 and "_list_" in argument["type"]:
            input_list = position
    return Row(
        name=entry["name"],
        inputs=tuple(map(_element, inputs)),
        outputs=tuple(map(_element, outputs)),
        variables=frozenset(entry["types"]),
        constants=tuple(constants),
        modes=tuple(map(_mode, entry["modes"])),
        arguments=tuple(arguments),
        input_list=input_list,
    )


def _is_input(argument: dict[str, Any]) -> bool:
    """Return whether an argument is an operand; VARIABLE has its initial value."""
    is_input: bool = argument["category"] == "input"
    return is_input or argument["name"] == "initial_value"


def _element(argument: dict[str, Any]) -> str:
    """Return the element type or type variable of an operand or result."""
    if argument["type"] in ("shape_t", "shape_list_t"):
        return "shape"
    return argument.get("element") or "any"


def _mode(entry: dict[str, Any]) -> Mode:
    """Return the mode of an entry of the file; ``-`` means no operand."""
    types: dict[str, DType | None] = {}
    for variable, name in entry["types"].items():
        if name in ELEMENTS or name == "-":
            types[variable] = ELEMENTS.get(name)
    return Mode(types, tuple(map(frozenset, entry["requires_any"])))
