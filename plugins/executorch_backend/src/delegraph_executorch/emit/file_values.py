"""Convert the values of a method to the records of the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

from delegraph.errors import Unsupported

from ..memory import Storage
from ..program.pte_tables import (
    AllocationDetails,
    Dynamism,
    ExtraTensorInfo,
    Location,
    Tensor,
    Value,
)
from .context import TENSOR_ALIGNMENT, Context
from .kernel_calls import CODES
from .method_values import Entry, TensorValue

LARGEST = (1 << 31) - 1
"""The most elements of a dimension: the file stores sizes in 32 bits."""
_NO_ELEMENTS = bytes(1)
"""The content of constants without elements.

ExecuTorch's runtime loads no file with constants of no bytes.
"""


def finish_values(
    entries: Sequence[Entry], offsets: Mapping[Storage, int], context: Context
) -> list[Value]:
    """Return the records of a method's values.

    Adds constants and first values of states to their pools. ``offsets`` is the memory
    plan.
    """
    return [
        _finish_tensor(e, offsets, context) if isinstance(e, TensorValue) else e
        for e in entries
    ]


def _finish_tensor(
    value: TensorValue, offsets: Mapping[Storage, int], context: Context
) -> Tensor:
    """Return the record of a tensor, and add its content to a pool."""
    if any(size > LARGEST for size in value.sizes):
        text = (
            f"a tensor of the sizes {list(value.sizes)} has {max(value.sizes)} elements"
            f" in a dimension, but a program file holds up to {LARGEST}"
        )
        hint = "split the dimension, or give its Dim a smaller upper bound"
        raise Unsupported("unsupported", text, hint=hint)
    is_empty = 0 in value.sizes
    # index 0 means no data, so the content at position 0 of a pool has index 1
    index = 0
    extra = None
    if value.file:
        assert value.constant is not None
        context.external_data.add_named_data(
            value.name,
            value.constant,
            alignment=TENSOR_ALIGNMENT,
            external_tag=value.file,
        )
        extra = ExtraTensorInfo(
            fully_qualified_name=value.name, location=Location.EXTERNAL
        )
    elif value.constant is not None:
        content = _NO_ELEMENTS if is_empty else value.constant
        index = 1 + context.constants.add(content)
    elif value.initial is not None and value.storage.is_planned and not is_empty:
        index = 1 + context.states.add(value.initial)
    if extra is None and (value.name or value.device):
        extra = ExtraTensorInfo(
            fully_qualified_name=value.name, location=Location.SEGMENT
        )
    if extra is not None and value.device is not None:
        extra = replace(
            extra, device_type=value.device.kind, device_index=value.device.number
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
    """Return the dimensions of a tensor in C order; one tuple for all tensors of a rank."""
    return tuple(range(rank))


def _allocation(
    storage: Storage, offsets: Mapping[Storage, int]
) -> AllocationDetails | None:
    """Return the planned memory of a tensor; None if the plan does not provide it."""
    if not storage.is_planned:
        return None
    offset = storage.offset
    if offset is None:
        offset = offsets.get(storage, 0)
    return AllocationDetails.at(storage.memory_id, offset)
