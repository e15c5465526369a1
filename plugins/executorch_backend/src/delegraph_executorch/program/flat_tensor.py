"""Describe the tables of ``flat_tensor.fbs``: tensors by name, in a ``.ptd`` file."""

from __future__ import annotations

from dataclasses import dataclass

from .pte_tables import DataSegment
from .scalar_types import ScalarType
from .schema import numbers, scalar, sub, tables, text

IDENTIFIER = "FT01"
VERSION = 0


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """Type, sizes and dimension order of a tensor."""

    scalar_type: int = scalar(0, "b", enum=ScalarType)
    sizes: tuple[int, ...] = numbers(1, "i")
    dim_order: tuple[int, ...] = numbers(2, "B")


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """Bytes under a key; those of a tensor have a layout."""

    key: str = text(0)
    segment_index: int = scalar(1, "I")
    layout: TensorLayout | None = sub(2, TensorLayout)


@dataclass(frozen=True, slots=True)
class FlatTensor:
    """The content of a ``.ptd`` file's flatbuffer."""

    version: int = scalar(0, "I")
    segments: tuple[DataSegment, ...] = tables(1, DataSegment)
    named_data: tuple[NamedTensor, ...] = tables(2, NamedTensor)
