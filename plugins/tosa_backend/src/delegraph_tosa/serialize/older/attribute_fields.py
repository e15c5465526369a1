"""The step between the two languages: an operator of the IR as TOSA 0.80 has it, and
back.

Zero points, shapes, multipliers, shifts, tables and the like are constant operands
since 1.0, and fields of attribute tables before. ``folded`` makes fields of them,
``unfolded`` constants.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...evaluate.constant_elements import stored_elements
from ...evaluate.kernels import stored_numbers
from ...ir.graph import Array, Illegal, Literal, Operator, Value
from ...ir.types import ARRAY_DTYPES, FLOATS, DType, NanMode, RoundingMode, Type
from ..elements import pack_number, unpack_number
from .schema import TABLE_OF, TABLES, Field

_SHAPES = frozenset("padding shape start size multiples scale offset border".split())
"""Operands that are a SHAPE."""
_BITS = {DType.INT8: 8, DType.INT16: 16}
_UNSIGNED = {"input_zp": "input_unsigned", "output_zp": "output_unsigned"}
"""Zero points of RESCALE, which fields have as the number and operands as its bits ->
what says it is unsigned.
"""

Literals = Callable[[DType, Sequence[int | float]], Value]
"""Makes a constant of rank 1 of the elements."""


def folded_operands(kind: type[Operator]) -> frozenset[str]:
    """The operands that are fields of the attribute table in 0.80."""
    names = {field.name for field in TABLES.get(TABLE_OF.get(kind.__name__, ""), ())}
    return frozenset(names & {*kind.operands} | ({"pad_const"} & {*kind.operands}))


# ---- from the IR to 0.80


def operands_of(operator: Operator) -> tuple[Value, ...]:
    """The operands that an operator keeps in 0.80."""
    folded = folded_operands(type(operator))
    if not folded:
        return operator.inputs
    return tuple(
        v
        for name, v in zip(operator.operands, operator.inputs, strict=True)
        if name not in folded
    )


def folded(operator: Operator) -> Iterator[tuple[Field, Any]]:
    """Each field of the operator's attribute table, and what it holds."""
    return (
        (field, _held(operator, field))
        for field in TABLES.get(TABLE_OF.get(operator.name, ""), ())
    )


def _held(operator: Operator, field: Field) -> Any:
    name = field.name
    if name == "out_shape":
        return operator.outputs[0].shape
    if name == "double_round":
        return operator.rounding_mode is RoundingMode.DOUBLE_ROUND  # type: ignore[attr-defined]
    if name.endswith(("_int", "_fp")):
        return _number(operator, *name.rsplit("_", 1))
    if name in operator.operands:
        entries = _entries(operator, name)
        return entries if field.kind in ("Ints", "Shorts") else entries[0]
    # MAX_POOL2D has no zero points and no accumulator
    return getattr(operator, name, 0)


def _entries(operator: Operator, name: str) -> tuple[int, ...]:
    """The elements of a constant operand; zero points as the unsigned numbers that
    RESCALE may take them for.
    """
    value: Value = getattr(operator, name)
    if value.constant is None:
        raise Illegal(f"{name} must be a compile-time constant", "constant-operand")
    entries = [int(entry) for entry in stored_elements(value)[0].reshape(-1).tolist()]
    if getattr(operator, _UNSIGNED.get(name, ""), False):
        entries = [entry & (1 << _BITS[value.dtype]) - 1 for entry in entries]
    return tuple(entries)


def _number(operator: Operator, name: str, form: str) -> int | float:
    """A number that 0.80 has in two forms, of which the element type says which one
    counts; 0 in the other one.
    """
    dtype = operator.inputs[0].dtype
    if (form == "fp") is not (dtype in FLOATS):
        return 0
    if name in operator.operands:
        constant: Value = getattr(operator, name)
        number = stored_elements(constant)[0].reshape(-1)
        return (
            unpack_number(number.tobytes(), dtype)
            if dtype is not DType.BOOL
            else int(number[0])
        )
    return unpack_number(pack_number(getattr(operator, name), dtype), dtype)


def float_bytes(number: float) -> bytes:
    """A number of the element types of floats as attribute tables hold it: an fp32."""
    return struct.pack("<f", number)


# ---- from 0.80 to the IR


def unfolded(
    kind: type[Operator],
    operands: Sequence[Value],
    held: Mapping[str, Any],
    results: Sequence[Type],
    make: Literals,
) -> tuple[list[Value], dict[str, Any]]:
    """Operands and attributes in the IR of an operator with these ``operands`` and
    fields.

    ``results`` are the declared types. Raises Illegal for numbers that their element
    type cannot hold.
    """
    folded = folded_operands(kind)
    given = iter(operands)
    if not folded:
        return [*operands], dict(_attributes(kind, operands, held, results))
    by_name = {name: next(given) for name in kind.operands if name not in folded}
    inputs = [
        by_name.get(name) or _constant(kind, name, by_name, held, results, make)
        for name in kind.operands
    ]
    return inputs, dict(_attributes(kind, inputs, held, results))


def _constant(
    kind: type[Operator],
    name: str,
    given: Mapping[str, Value],
    held: Mapping[str, Any],
    results: Sequence[Type],
    make: Literals,
) -> Value:
    first = next(iter(given.values())).dtype
    if name == "pad_const":
        return make(first, [_number_held(held, name, first)])
    entries = held[name] if isinstance(held[name], tuple) else (held[name],)
    if name in _SHAPES:
        return make(DType.SHAPE, entries)
    if name == "shift":
        return make(DType.INT8, entries)
    if name == "multiplier":
        return make(DType.INT32 if held["scale32"] else DType.INT16, entries)
    dtype = {"weight_zp": given.get("weight"), "B_zp": given.get("B")}.get(
        name, next(iter(given.values()))
    )
    assert dtype is not None
    wanted = results[0].dtype if (name == "output_zp" and results) else dtype.dtype
    if held.get(_UNSIGNED.get(name, "")) and wanted in _BITS:
        bits = _BITS[wanted]
        entries = [
            entry - (1 << bits) if entry >> (bits - 1) == 1 else entry
            for entry in entries
        ]
    return make(wanted, entries)


def _number_held(held: Mapping[str, Any], name: str, dtype: DType) -> int | float:
    number: int | float = held[f"{name}_fp" if dtype in FLOATS else f"{name}_int"]
    return number


def _attributes(
    kind: type[Operator],
    inputs: Sequence[Value],
    held: Mapping[str, Any],
    results: Sequence[Type],
) -> Iterator[tuple[str, Any]]:
    for name, form in kind.attributes.items():
        if form == "NanMode":
            yield name, NanMode.PROPAGATE
        elif form == "RoundingMode":
            yield (
                name,
                (
                    RoundingMode.DOUBLE_ROUND
                    if held["double_round"]
                    else RoundingMode.SINGLE_ROUND
                ),
            )
        elif form == "Number":
            yield name, _number_held(held, name, inputs[0].dtype)
        elif name in held:
            if held[name] is None:
                raise Illegal(f"{name} is not known")
            yield name, held[name]
        elif name == "acc_type" and results:
            yield name, results[0].dtype


def elements(dtype: DType, numbers: Sequence[int | float] | Array) -> Literal:
    """A constant's elements; Illegal for integers that the element type cannot hold."""
    if dtype in FLOATS or dtype is DType.BOOL:
        return Literal(stored_numbers(np.asarray(numbers), dtype))
    try:
        array = np.array(numbers, ARRAY_DTYPES[dtype])
    except OverflowError:
        raise Illegal(f"{list(numbers)} do not fit into {dtype}") from None
    return Literal(array)
