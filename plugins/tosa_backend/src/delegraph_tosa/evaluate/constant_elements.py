"""The elements of constants as files and texts have them."""

from __future__ import annotations

from delegraph.errors import InternalError

from ..ir.block_scaled_arrays import parted
from ..ir.graph import Array, Folded, Scaled, Value
from ..ir.types import BLOCK_SCALED


def stored_elements(value: Value) -> tuple[Array, ...]:
    """Return a constant's elements: an array for each of ``types.stored_types``.

    Expressions over constants are evaluated here and nowhere earlier.
    """
    if isinstance(value.constant, Scaled):
        return value.constant.values, value.constant.scales
    elements = _elements(value)
    if value.dtype in BLOCK_SCALED:
        return parted(elements, value.type)
    return (elements,)


def _elements(value: Value) -> Array:
    """Return a constant's elements as one array."""
    constant = value.constant
    if isinstance(constant, Folded):
        from . import materialize

        return materialize(value)
    if constant is None:
        raise InternalError(
            "internal", f"{value!r} was taken for a constant and is none"
        )
    return constant.materialize()
