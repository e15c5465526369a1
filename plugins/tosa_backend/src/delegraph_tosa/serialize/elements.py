"""Elements of constants in memory and in files.

``ir.types.ARRAY_DTYPES`` defines their form in memory.
"""

from __future__ import annotations

import math
import struct

import numpy as np
from delegraph.errors import InternalError

from ..evaluate.kernels import stored_numbers
from ..ir.graph import Array, Illegal, Number
from ..ir.types import ARRAY_DTYPES, BLOCK_SCALED, BYTES, DType, Type, stored_types

_INT48_SIGN = 1 << 47
_FOUR_BITS = frozenset({DType.INT4, DType.FP4E2M1})
_SIX_BITS = frozenset({DType.FP6E2M3, DType.FP6E3M2})


def size_in_file(type: Type) -> int:
    """Return the size in a file, in bytes, of a tensor's elements.

    A byte holds two INT4 or FP4, three bytes hold four FP6, six bytes hold an INT48. A
    block-scaled tensor counts its values and its scales.
    """
    if type.dtype in BLOCK_SCALED:
        return sum(map(size_in_file, stored_types(type)))
    count = math.prod(type.shape)
    if type.dtype in _SIX_BITS:
        return (count * 3 + 3) // 4
    if type.dtype in _FOUR_BITS:
        return (count + 1) // 2
    return count * BYTES[type.dtype]


def pack(array: Array, type: Type) -> memoryview:
    """Return the file's bytes of a constant of a type from ``stored_types``.

    This is a view if memory has the same bytes.
    """
    if array.shape != type.shape or array.dtype != ARRAY_DTYPES[type.dtype]:
        found = f"{array.dtype}{list(array.shape)}"
        raise InternalError(
            "internal",
            f"a constant of type {type} was computed as {found}; please report this",
        )
    if type.dtype in _SIX_BITS:
        return memoryview(_pack_six_bits(array.reshape(-1)))
    if type.dtype in _FOUR_BITS:
        return memoryview(_pack_four_bits(array.reshape(-1)))
    if type.dtype is DType.INT48:
        return memoryview(_pack_int48(array.reshape(-1)))
    little_endian = array.astype(array.dtype.newbyteorder("<"), copy=False)
    flat = np.ascontiguousarray(little_endian).reshape(-1)
    return flat.view(np.uint8).data


def _pack_int48(values: Array) -> bytes:
    """Return the low six of the eight bytes of each element."""
    eight_bytes = values.astype("<i8").view(np.uint8).reshape(-1, 8)
    packed: bytes = eight_bytes[:, :6].tobytes()
    return packed


def _pack_four_bits(values: Array) -> bytes:
    """Pack two elements into a byte, the first in the low bits."""
    nibbles = np.zeros(values.size + values.size % 2, np.uint8)
    nibbles[: values.size] = values.view(np.uint8) & 15
    packed: bytes = (nibbles[0::2] | nibbles[1::2] << 4).tobytes()
    return packed


def _pack_six_bits(values: Array) -> bytes:
    """Pack four elements into three bytes, the first in the low bits."""
    padded = np.zeros((values.size + 3) // 4 * 4, np.uint32)
    padded[: values.size] = values & 63
    groups = padded.reshape(-1, 4) << np.array([0, 6, 12, 18], np.uint32)
    words = np.bitwise_or.reduce(groups, axis=1).astype("<u4")
    packed: bytes = words.view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    return packed[: (values.size * 3 + 3) // 4]


def _unpack_six_bits(raw: Array) -> Array:
    """Return the elements in ``raw`` and up to three more: a multiple of four."""
    padded = np.zeros((len(raw) + 2) // 3 * 3, np.uint8)
    padded[: len(raw)] = raw
    low, middle, high = (padded[i::3].astype(np.uint32) for i in range(3))
    words = low | middle << np.uint32(8) | high << np.uint32(16)
    shifts = np.array([0, 6, 12, 18], np.uint32)
    groups = words[:, None] >> shifts & np.uint32(63)
    values: Array = groups.astype(np.uint8).reshape(-1)
    return values


def stays_in_file(type: Type) -> bool:
    """Return whether memory and file have the same bytes, so that no copy is needed.

    Elements of fewer than 8 bits and of 48 bits differ.
    """
    return type.dtype not in _SIX_BITS | _FOUR_BITS | {DType.INT48}


def unpack(data: memoryview, type: Type) -> Array:
    """Return a constant's elements; see ``stays_in_file`` for when they are a view.

    Raises Illegal for a BOOL other than 0 and 1.
    """
    raw = np.frombuffer(data, np.uint8, size_in_file(type))
    count = math.prod(type.shape)
    if type.dtype in _SIX_BITS:
        return _unpack_six_bits(raw)[:count].reshape(type.shape)
    if type.dtype is DType.FP4E2M1:
        return _unpack_four_bits(raw)[:count].reshape(type.shape)
    if type.dtype is DType.INT4:
        nibbles = _unpack_four_bits(raw)[:count].astype(np.int8)
        return _sign_extended(nibbles, sign_bit=8).reshape(type.shape)
    if type.dtype is DType.INT48:
        return _unpack_int48(raw.reshape(-1, 6)).reshape(type.shape)
    if type.dtype is DType.BOOL and raw.size and raw.max() > 1:
        raise Illegal(
            f"a bool constant has the element {raw.max()}; only 0 and 1 are legal"
        )
    return raw.view(ARRAY_DTYPES[type.dtype].newbyteorder("<")).reshape(type.shape)


def _unpack_four_bits(raw: Array) -> Array:
    """Return the bits of the two elements in each byte, as uint8."""
    nibbles: Array = np.stack([raw & 15, raw >> 4], axis=1).reshape(-1)
    return nibbles


def _unpack_int48(raw: Array) -> Array:
    """Return int64 elements from six bytes each."""
    wide = np.zeros((len(raw), 8), np.uint8)
    wide[:, :6] = raw
    values = wide.view("<i8").reshape(-1).astype(np.int64)
    return _sign_extended(values, sign_bit=_INT48_SIGN)


def _sign_extended(values: Array, sign_bit: int) -> Array:
    """Return integers of few bits in a wider type, negative if ``sign_bit`` is set."""
    signed: Array = (values ^ sign_bit) - sign_bit
    return signed


def pack_number(number: Number, dtype: DType) -> bytes:
    """Return a number as the file's bytes of this type, rounded to nearest even.

    Raises Illegal if it is out of range.
    """
    array = ARRAY_DTYPES[dtype]
    with np.errstate(over="ignore"):
        if dtype is DType.BF16:
            bits = stored_numbers(np.asarray(number, np.float32), dtype)
            return bits.astype("<u2").tobytes()
        if array.kind == "f":
            return np.asarray(number).astype(array.newbyteorder("<")).tobytes()
    if dtype not in (DType.INT8, DType.INT16, DType.INT32, DType.INT64):
        raise Illegal(f"attributes cannot have type {dtype}")
    info = np.iinfo(array)
    if number != int(number) or not info.min <= number <= info.max:
        raise Illegal(f"{number} is not in the range of {dtype}")
    return int(number).to_bytes(array.itemsize, "little", signed=True)


def unpack_number(data: bytes, dtype: DType) -> Number:
    """Read a number that ``pack_number`` wrote. Raises Illegal for a wrong length."""
    width = BYTES.get(dtype, 0)
    no_numbers = (DType.INT4, DType.INT48, DType.SHAPE, DType.BOOL)
    # writers may pad the number to a multiple of 8 bytes
    if dtype in no_numbers or not width <= len(data) < width + 8:
        raise Illegal(f"{len(data)} bytes are not a number of type {dtype}")
    if dtype is DType.BF16:
        return float(struct.unpack("<f", b"\0\0" + data[:2])[0])
    if dtype > DType.SHAPE and dtype is not DType.INT64:
        raise Illegal(f"attributes cannot have type {dtype}")
    array = np.frombuffer(data, ARRAY_DTYPES[dtype].newbyteorder("<"), count=1)
    number: Number = array.item()
    return number
