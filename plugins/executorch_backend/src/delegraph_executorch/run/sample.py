"""Random inputs for a method of a file."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from delegraph.errors import Unsupported

from ..program.scalar_types import TORCH_NAMES, ScalarType
from ..program.tables import Bool, Double, Int, Program, String, Tensor

_LARGEST = 1 << 28
"""Elements of all inputs that are made: a file may state sizes that no memory has."""


def sample_inputs(
    program: Program, seed: int, method: str | None = None
) -> list[np.ndarray[Any, Any]]:
    """One array for each input of ``method``, by default ``forward``: standard normal,
    or small whole numbers.

    For a name that no method has, those of the first: what calls it says which methods
    there are. Raises Unsupported for inputs that numpy has no type for, or that take
    too much memory.
    """
    plan = next(
        (p for p in program.plans if p.name == (method or "forward")), program.plans[0]
    )
    tensors = [
        v for index in plan.inputs if isinstance(v := plan.values[index].value, Tensor)
    ]
    if (total := sum(math.prod(tensor.sizes) for tensor in tensors)) > _LARGEST:
        text = (
            f"the inputs of method {plan.name!r} have {total} elements, more than are"
            " made at random"
        )
        raise Unsupported(
            "unsupported",
            text,
            hint="call it with inputs of your own: --input FILE.npy",
        )
    source = np.random.default_rng(seed)
    return [_array(plan.values[index].value, source) for index in plan.inputs]


def _array(value: Any, source: np.random.Generator) -> np.ndarray[Any, Any]:
    if isinstance(value, (Int, Bool, Double, String)):
        return np.array(value.value)
    if not isinstance(value, Tensor):
        raise Unsupported(
            "unsupported",
            f"an input is a {type(value).__name__}, which has no random values",
        )
    name = TORCH_NAMES[ScalarType(value.scalar_type)]
    if name == "bool":
        return source.integers(0, 2, value.sizes).astype(bool)
    if not name.startswith(("float", "bfloat", "complex")):
        return source.integers(0, 2, value.sizes).astype(name)
    if name not in ("float16", "float32", "float64"):
        raise Unsupported(
            "unsupported", f"an input is {name}, which numpy has no arrays of"
        )
    return np.asarray(source.standard_normal(value.sizes)).astype(name)
