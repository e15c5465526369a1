"""Values as the file stores them, once their memory is planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

from delegraph.errors import Unsupported

from ..memory import Home, Storage
from ..program.tables import (
    AllocationDetails,
    Dynamism,
    ExtraTensorInfo,
    Location,
    Tensor,
    Value,
)
from .context import Context
from .kernel_calls import CODES
from .values import Entry, TensorValue

LARGEST = (1 << 31) - 1
"""Elements along a dimension: the file has 32 bits for a size. Offsets and sizes in
bytes have 64.
"""
_NO_ELEMENTS = bytes(1)
"""The content of constants without elements."""


def finish_values(
    entries: Sequence[Entry], offsets: Mapping[Storage, int], context: Context
) -> list[Value]:
    """The values of a method; constants and initial states go to their pools."""
    return [
        _finish_tensor(e, offsets, context) if isinstance(e, TensorValue) else e
        for e in entries
    ]


def _finish_tensor(
    value: TensorValue, offsets: Mapping[Storage, int], context: Context
) -> Tensor:
    """Position 0 of a segment's offsets stands for no data, so the first content is
    number 1.
    """
    if any(size > LARGEST for size in value.sizes):
        text = (
            f"a tensor of the sizes {list(value.sizes)} has {max(value.sizes)} elements"
            " along a dimension"
        )
        hint = "view it with more dimensions, or bound the Dim that varies"
        raise Unsupported(
            "unsupported", f"{text}; a program file holds up to {LARGEST}", hint=hint
        )
    index = 0
    extra = None
    if value.file:
        assert value.constant is not None
        context.external_data.add_named_data(
            value.name, value.constant, alignment=16, external_tag=value.file
        )
        extra = ExtraTensorInfo(
            fully_qualified_name=value.name, location=Location.EXTERNAL
        )
    elif value.constant is not None:
        # ExecuTorch's runtime loads no file whose constants have no bytes at all: an
        # empty one points to a byte.
        index = 1 + context.constants.add(
            _NO_ELEMENTS if 0 in value.sizes else value.constant
        )
    elif (
        value.initial is not None and value.storage.is_planned and 0 not in value.sizes
    ):
        index = 1 + context.states.add(value.initial)
    if extra is None and (value.name or value.place):
        extra = ExtraTensorInfo(
            fully_qualified_name=value.name, location=Location.SEGMENT
        )
    if extra is not None and value.place is not None:
        extra = replace(
            extra, device_type=value.place.kind, device_index=value.place.number
        )
    return Tensor(
        scalar_type=CODES[value.dtype],
        sizes=value.sizes,
        dim_order=_c_order(len(value.sizes)),
        data_buffer_idx=index,
        allocation=_allocation(value.storage, offsets),
        extra=extra,
        dynamism=Dynamism.BOUND if value.varies else Dynamism.STATIC,
    )


@cache
def _c_order(rank: int) -> tuple[int, ...]:
    return tuple(range(rank))


def _allocation(
    storage: Storage, offsets: Mapping[Storage, int]
) -> AllocationDetails | None:
    if storage.home in (Home.CONSTANT, Home.GIVEN):
        return None
    known = offsets.get(storage, 0) if storage.offset is None else storage.offset
    return AllocationDetails.at(storage.memory_id, known)
