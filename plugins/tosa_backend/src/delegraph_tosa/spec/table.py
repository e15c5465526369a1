"""The specification's own table, ``operators.json``: rows of TOSA 1.0 of its machine-readable form.

For each operator: its arguments (element type variable, rank, level limits, what must be a compile-time constant) and
its modes, each a binding of the type variables and alternatives of profiles and extensions that allow it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from ..ir.types import DType

ELEMENTS: dict[str, DType] = {
    "bool_t": DType.BOOL,
    **{f"i{bits}_t": DType[f"INT{bits}"] for bits in (4, 8, 16, 32, 48)},
    **{f"{t.name.lower()}_t": t for t in (DType.FP32, DType.FP16, DType.BF16, DType.FP8E4M3, DType.FP8E5M2)},
}
"""The specification's names of element types."""


@dataclass(frozen=True)
class Mode:
    """One legal combination of element types; ``allowed_by`` are alternatives, each a set of names needed together."""

    types: dict[str, DType]
    allowed_by: tuple[frozenset[str], ...]


@dataclass(frozen=True)
class Row:
    """What the table says of one operator. ``inputs`` and ``outputs`` hold an element type or type variable each."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    variables: frozenset[str]
    constants: tuple[tuple[int, str], ...]
    """Position and name of the operands that must be compile-time constants."""
    modes: tuple[Mode, ...]
    arguments: tuple[dict[str, Any], ...]

    def bind(self, inputs: tuple[DType, ...], outputs: tuple[DType, ...]) -> dict[str, DType] | str:
        """Type variable -> element type; or the text that says which operand does not fit."""
        bound: dict[str, DType] = {}
        elements = (*spread(self.inputs, len(inputs)), *spread(self.outputs, len(outputs)))
        for element, dtype in zip(elements, inputs + outputs, strict=True):
            fixed = element not in self.variables
            wanted = _fixed(element) if fixed else bound.setdefault(element, dtype)
            if wanted not in (None, dtype):
                return f"TOSA {self.name} takes {wanted} where it is given {dtype}"
        return bound

    def matching(self, bound: dict[str, DType]) -> list[Mode]:
        """Modes in which each bound variable has its element type."""
        return [m for m in self.modes if all(m.types.get(k, v) == v for k, v in bound.items())]


def spread(elements: tuple[str, ...], count: int) -> tuple[str, ...]:
    """Elements of ``count`` operands, where the last one stands for a list if there are more or fewer."""
    return elements[:count] + elements[-1:] * (count - len(elements))


def _fixed(element: str) -> DType | None:
    return DType.SHAPE if element == "shape" else ELEMENTS.get(element)


@lru_cache(maxsize=1)
def load() -> dict[str, Any]:
    """The parsed file."""
    file = resources.files(__package__).joinpath("operators.json")
    loaded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return loaded


@lru_cache(maxsize=1)
def rows() -> dict[str, Row]:
    """Operator name -> row."""
    return {entry["name"]: _row(entry) for entry in load()["operators"]}


def _row(entry: dict[str, Any]) -> Row:
    arguments = entry["arguments"]
    inputs = [a for a in arguments if a["category"] == "input" or a["name"] == "initial_value"]
    outputs = [a for a in arguments if a["category"] == "output"]
    constants = [(i, a["name"]) for i, a in enumerate(inputs) if a.get("compile_time_constant")]
    return Row(
        entry["name"],
        tuple(_element(a) for a in inputs),
        tuple(_element(a) for a in outputs),
        frozenset(entry["types"]),
        tuple(constants),
        tuple(_mode(m) for m in entry["modes"]),
        tuple(arguments),
    )


def _element(argument: dict[str, Any]) -> str:
    if argument["type"] == "shape_t":
        return "shape"
    return argument.get("element") or "any"


def _mode(entry: dict[str, Any]) -> Mode:
    types = {k: ELEMENTS[v] for k, v in entry["types"].items() if v in ELEMENTS}
    return Mode(types, tuple(frozenset(names) for names in entry["requires_any"]))
