"""Translates operators between the IR and TOSA 0.80.

Since 1.0, zero points, shapes, multipliers, shifts and tables are constant operands. In
0.80 they are fields of attribute tables: "folded operands". ``attribute_table`` turns
operands into fields, ``unfolded`` turns fields into constants.
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

MakeConstant = Callable[[DType, Sequence[int | float]], Value]
"""A function that makes a constant of rank 1 from its elements."""


def fields_of(name: str) -> tuple[Field, ...]:
    """Return the fields of an operator's attribute table; none if it has none."""
    table = TABLE_OF.get(name)
    if table is None:
        return ()
    return TABLES[table]


def folded_operands(kind: type[Operator]) -> frozenset[str]:
    """Return the operands that are fields of the attribute table in 0.80."""
    names = {field.name for field in fields_of(kind.__name__)}
    # the table of PAD has a field for each kind of number
    names.add("pad_const")
    return frozenset(names.intersection(kind.operands))


# ---- from the IR to 0.80


def operands_of(operator: Operator) -> tuple[Value, ...]:
    """Return the operands that stay operands in 0.80."""
    folded = folded_operands(type(operator))
    if not folded:
        return operator.inputs
    operands = zip(operator.operands, operator.inputs, strict=True)
    return tuple([value for name, value in operands if name not in folded])


def attribute_table(operator: Operator) -> Iterator[tuple[Field, Any]]:
    """Yield each field of the operator's attribute table with its value."""
    for field in fields_of(operator.name):
        yield field, _field_value(operator, field)


def _field_value(operator: Operator, field: Field) -> Any:
    """Return the value of a field of the operator's attribute table."""
    name = field.name
    if name == "out_shape":
        return operator.outputs[0].shape
    if name == "double_round":
        mode = operator.attribute_values()["rounding_mode"]
        return mode is RoundingMode.DOUBLE_ROUND
    if name.endswith("_int"):
        return _number(operator, name.removesuffix("_int"), is_float=False)
    if name.endswith("_fp"):
        return _number(operator, name.removesuffix("_fp"), is_float=True)
    if name in operator.operands:
        entries = _entries(operator, name)
        return entries if field.kind in ("Ints", "Shorts") else entries[0]
    # the table of MAX_POOL2D has fields for zero points and the accumulator, which the
    # operator lacks
    return getattr(operator, name, 0)


def _entries(operator: Operator, name: str) -> tuple[int, ...]:
    """Return the elements of a constant operand, unsigned if RESCALE reads them so."""
    value: Value = getattr(operator, name)
    if value.constant is None:
        raise Illegal(f"{name} must be a compile-time constant", "constant-operand")
    (elements,) = stored_elements(value)
    entries = [int(entry) for entry in elements.reshape(-1).tolist()]
    if name in _UNSIGNED and getattr(operator, _UNSIGNED[name], False):
        mask = (1 << _BITS[value.dtype]) - 1
        entries = [entry & mask for entry in entries]
    return tuple(entries)


def _number(operator: Operator, name: str, is_float: bool) -> int | float:
    """Return the value of one of the two fields that 0.80 has for a number.

    One is for floats, the other for integers. The field that does not fit the element
    type is 0.
    """
    dtype = operator.inputs[0].dtype
    if is_float is not (dtype in FLOATS):
        return 0
    if name not in operator.operands:
        # rounded to the element type
        packed = pack_number(getattr(operator, name), dtype)
        return unpack_number(packed, dtype)
    constant: Value = getattr(operator, name)
    (elements,) = stored_elements(constant)
    if dtype is DType.BOOL:
        return int(elements.reshape(-1)[0])
    return unpack_number(elements.tobytes(), dtype)


def float_bytes(number: float) -> bytes:
    """Return the fp32 bytes that attribute tables hold for floats of any type."""
    return struct.pack("<f", number)


# ---- from 0.80 to the IR


def unfolded(
    kind: type[Operator],
    operands: Sequence[Value],
    fields: Mapping[str, Any],
    results: Sequence[Type],
    make: MakeConstant,
) -> tuple[list[Value], dict[str, Any]]:
    """Return the operands and attributes of an operator of 0.80 in the IR.

    ``fields`` are its attribute table, ``results`` the declared types, and ``make``
    makes its constants. Raises Illegal for numbers that do not fit their element type.
    """
    folded = folded_operands(kind)
    inputs = list(operands)
    if folded:
        kept = [name for name in kind.operands if name not in folded]
        by_name = dict(zip(kept, operands, strict=False))
        inputs = []
        for name in kind.operands:
            if name in by_name:
                inputs.append(by_name[name])
            else:
                constant = _constant(name, by_name, fields, results, make)
                inputs.append(constant)
    return inputs, dict(_attributes(kind, inputs, fields, results))


def _constant(
    name: str,
    given: Mapping[str, Value],
    fields: Mapping[str, Any],
    results: Sequence[Type],
    make: MakeConstant,
) -> Value:
    """Return the constant operand ``name``, made from fields.

    ``given`` are the operands that are operands in the file, too.
    """
    first = next(iter(given.values())).dtype
    if name == "pad_const":
        return make(first, [_number_field(fields, name, first)])
    entries = fields[name]
    if not isinstance(entries, tuple):
        entries = (entries,)
    if name in _SHAPES:
        return make(DType.SHAPE, entries)
    if name == "shift":
        return make(DType.INT8, entries)
    if name == "multiplier":
        return make(DType.INT32 if fields["scale32"] else DType.INT16, entries)
    dtype = _type_of_zero_point(name, given, results)
    if name in _UNSIGNED and fields.get(_UNSIGNED[name]) and dtype in _BITS:
        entries = [_signed(entry, _BITS[dtype]) for entry in entries]
    return make(dtype, entries)


def _type_of_zero_point(
    name: str, given: Mapping[str, Value], results: Sequence[Type]
) -> DType:
    """Return the element type of a zero point or table: that of its tensor."""
    if name == "output_zp" and results:
        return results[0].dtype
    for zero_point, tensor in (("weight_zp", "weight"), ("B_zp", "B")):
        if name == zero_point and tensor in given:
            return given[tensor].dtype
    return next(iter(given.values())).dtype


def _signed(number: int, bits: int) -> int:
    """Return the signed integer with the bits of an unsigned one."""
    if number >> (bits - 1) == 1:
        return number - (1 << bits)
    return number


def _number_field(fields: Mapping[str, Any], name: str, dtype: DType) -> int | float:
    """Return the field for floats, or that for integers."""
    suffix = "fp" if dtype in FLOATS else "int"
    number: int | float = fields[f"{name}_{suffix}"]
    return number


def _attributes(
    kind: type[Operator],
    inputs: Sequence[Value],
    fields: Mapping[str, Any],
    results: Sequence[Type],
) -> Iterator[tuple[str, Any]]:
    """Yield the IR's attributes of an operator of 0.80, from its fields and types.

    Attributes that 0.80 does not have are left out.
    """
    for name, kind_of_value in kind.attributes.items():
        if kind_of_value == "NanMode":
            # 0.80 has no other mode
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
    """Return a constant's elements. Raises Illegal for integers that do not fit."""
    if dtype in FLOATS or dtype is DType.BOOL:
        return Literal(stored_numbers(np.asarray(numbers), dtype))
    try:
        array = np.array(numbers, ARRAY_DTYPES[dtype])
    except OverflowError:
        raise Illegal(f"the elements {list(numbers)} do not fit into {dtype}") from None
    return Literal(array)
