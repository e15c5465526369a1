"""Translates operators between the IR and TOSA 0.80.

Since 1.0, zero points, shapes, multipliers, shifts and tables are constant operands. In
0.80 they are fields of attribute tables. ``folded`` turns operands into fields,
``unfolded`` turns fields into constants.
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
"""Operands of type SHAPE."""
_BITS = {DType.INT8: 8, DType.INT16: 16}
_UNSIGNED = {"input_zp": "input_unsigned", "output_zp": "output_unsigned"}
"""Maps zero points of RESCALE to the attribute that makes them unsigned.

Fields hold the unsigned number, operands its bits.
"""

Literals = Callable[[DType, Sequence[int | float]], Value]
"""Makes a constant of rank 1 from its elements."""


def folded_operands(kind: type[Operator]) -> frozenset[str]:
    """Return the operands that are fields of the attribute table in 0.80."""
    names = {field.name for field in TABLES.get(TABLE_OF.get(kind.__name__, ""), ())}
    return frozenset(names & {*kind.operands} | ({"pad_const"} & {*kind.operands}))


# ---- from the IR to 0.80


def operands_of(operator: Operator) -> tuple[Value, ...]:
    """Return the operands that stay operands in 0.80."""
    folded = folded_operands(type(operator))
    if not folded:
        return operator.inputs
    return tuple(
        v
        for name, v in zip(operator.operands, operator.inputs, strict=True)
        if name not in folded
    )


def folded(operator: Operator) -> Iterator[tuple[Field, Any]]:
    """Return each field of the operator's attribute table with its value."""
    return (
        (field, _field_value(operator, field))
        for field in TABLES.get(TABLE_OF.get(operator.name, ""), ())
    )


def _field_value(operator: Operator, field: Field) -> Any:
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
    # MAX_POOL2D has no zero points and no accumulator; its table does.
    return getattr(operator, name, 0)


def _entries(operator: Operator, name: str) -> tuple[int, ...]:
    """Return the elements of a constant operand, unsigned if RESCALE reads them so."""
    value: Value = getattr(operator, name)
    if value.constant is None:
        raise Illegal(f"{name} must be a compile-time constant", "constant-operand")
    entries = [int(entry) for entry in stored_elements(value)[0].reshape(-1).tolist()]
    if getattr(operator, _UNSIGNED.get(name, ""), False):
        entries = [entry & (1 << _BITS[value.dtype]) - 1 for entry in entries]
    return tuple(entries)


def _number(operator: Operator, name: str, suffix: str) -> int | float:
    """Return a number that 0.80 stores as an integer and as a float.

    The field that does not fit the element type is 0.
    """
    dtype = operator.inputs[0].dtype
    if (suffix == "fp") is not (dtype in FLOATS):
        return 0
    if name in operator.operands:
        constant: Value = getattr(operator, name)
        number = stored_elements(constant)[0].reshape(-1)
        if dtype is DType.BOOL:
            return int(number[0])
        return unpack_number(number.tobytes(), dtype)
    return unpack_number(pack_number(getattr(operator, name), dtype), dtype)


def float_bytes(number: float) -> bytes:
    """Return the fp32 bytes that attribute tables hold for floats of any type."""
    return struct.pack("<f", number)


# ---- from 0.80 to the IR


def unfolded(
    kind: type[Operator],
    operands: Sequence[Value],
    fields: Mapping[str, Any],
    results: Sequence[Type],
    make: Literals,
) -> tuple[list[Value], dict[str, Any]]:
    """Return the operands and attributes of an operator of 0.80 in the IR.

    ``fields`` are its attribute table and ``results`` the declared types. Raises
    Illegal for numbers that do not fit their element type.
    """
    folded = folded_operands(kind)
    given = iter(operands)
    if not folded:
        return [*operands], dict(_attributes(kind, operands, fields, results))
    by_name = {name: next(given) for name in kind.operands if name not in folded}
    inputs = [
        by_name.get(name) or _constant(kind, name, by_name, fields, results, make)
        for name in kind.operands
    ]
    return inputs, dict(_attributes(kind, inputs, fields, results))


def _constant(
    kind: type[Operator],
    name: str,
    given: Mapping[str, Value],
    fields: Mapping[str, Any],
    results: Sequence[Type],
    make: Literals,
) -> Value:
    first = next(iter(given.values())).dtype
    if name == "pad_const":
        return make(first, [_number_field(fields, name, first)])
    entries = fields[name] if isinstance(fields[name], tuple) else (fields[name],)
    if name in _SHAPES:
        return make(DType.SHAPE, entries)
    if name == "shift":
        return make(DType.INT8, entries)
    if name == "multiplier":
        return make(DType.INT32 if fields["scale32"] else DType.INT16, entries)
    typed_like = {"weight_zp": "weight", "B_zp": "B"}.get(name, "")
    dtype = given[typed_like].dtype if typed_like in given else first
    wanted = results[0].dtype if (name == "output_zp" and results) else dtype
    if fields.get(_UNSIGNED.get(name, "")) and wanted in _BITS:
        bits = _BITS[wanted]
        entries = [
            entry - (1 << bits) if entry >> (bits - 1) == 1 else entry
            for entry in entries
        ]
    return make(wanted, entries)


def _number_field(fields: Mapping[str, Any], name: str, dtype: DType) -> int | float:
    number: int | float = fields[f"{name}_fp" if dtype in FLOATS else f"{name}_int"]
    return number


def _attributes(
    kind: type[Operator],
    inputs: Sequence[Value],
    fields: Mapping[str, Any],
    results: Sequence[Type],
) -> Iterator[tuple[str, Any]]:
    for name, kind_of_value in kind.attributes.items():
        if kind_of_value == "NanMode":
            yield name, NanMode.PROPAGATE
        elif kind_of_value == "RoundingMode":
            is_double = fields["double_round"]
            mode = RoundingMode.DOUBLE_ROUND if is_double else RoundingMode.SINGLE_ROUND
            yield name, mode
        elif kind_of_value == "Number":
            yield name, _number_field(fields, name, inputs[0].dtype)
        elif name in fields:
            if fields[name] is None:
                raise Illegal(f"{name} has an unknown value")
            yield name, fields[name]
        elif name == "acc_type" and results:
            yield name, results[0].dtype


def elements(dtype: DType, numbers: Sequence[int | float] | Array) -> Literal:
    """Make a constant's elements. Raises Illegal for integers that do not fit."""
    if dtype in FLOATS or dtype is DType.BOOL:
        return Literal(stored_numbers(np.asarray(numbers), dtype))
    try:
        array = np.array(numbers, ARRAY_DTYPES[dtype])
    except OverflowError:
        raise Illegal(f"{list(numbers)} do not fit into {dtype}") from None
    return Literal(array)
