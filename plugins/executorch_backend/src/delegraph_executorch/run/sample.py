"""Random inputs for a method of a file."""

from __future__ import annotations

from typing import Any

import numpy as np
from delegraph.errors import Unsupported

from ..program.scalar_types import TORCH_NAMES, ScalarType
from ..program.tables import Bool, Double, Int, Program, String, Tensor


def sample_inputs(program: Program, seed: int, method: str | None = None) -> list[np.ndarray[Any, Any]]:
    """One array for each input of ``method``, by default ``forward``: standard normal, or small whole numbers.

    For a name that no method has, those of the first: what calls it says which methods there are.
    """
    plan = next((p for p in program.plans if p.name == (method or "forward")), program.plans[0])
    source = np.random.default_rng(seed)
    return [_array(plan.values[index].value, source) for index in plan.inputs]


def _array(value: Any, source: np.random.Generator) -> np.ndarray[Any, Any]:
    if isinstance(value, (Int, Bool, Double, String)):
        return np.array(value.value)
    if not isinstance(value, Tensor):
        raise Unsupported("unsupported", f"an input is a {type(value).__name__}, which has no random values")
    name = TORCH_NAMES[ScalarType(value.scalar_type)]
    if name == "bool":
        return source.integers(0, 2, value.sizes).astype(bool)
    if not name.startswith(("float", "bfloat", "complex")):
        return source.integers(0, 2, value.sizes).astype(name)
    if name not in ("float16", "float32", "float64"):
        raise Unsupported("unsupported", f"an input is {name}, which numpy has no arrays of")
    return np.asarray(source.standard_normal(value.sizes)).astype(name)
