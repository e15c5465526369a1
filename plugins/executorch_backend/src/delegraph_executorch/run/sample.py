"""Make random inputs for a method of a file."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from delegraph.errors import Unsupported

from ..program.pte_tables import Bool, Double, Int, Program, String, Tensor
from ..program.scalar_types import TORCH_NAMES, ScalarType

_LARGEST = 1 << 28
"""The most elements of all inputs: a damaged file may declare any sizes."""


def sample_inputs(
    program: Program, seed: int, method: str | None = None
) -> list[np.ndarray[Any, Any]]:
    """Return one random array for each input of ``method``, by default ``forward``.

    Floats are standard normal, integers 0 or 1. For an unknown ``method``, the inputs
    are those of the first method: calling the unknown one reports the error. Raises
    Unsupported for types that numpy lacks, and for inputs that take too much memory.
    """
    # Names may repeat in a damaged file. ``reversed`` keeps the first plan of a name.
    plans = {plan.name: plan for plan in reversed(program.plans)}
    plan = plans.get(method or "forward", program.plans[0])
    values = [plan.values[index].value for index in plan.inputs]
    total = sum(math.prod(v.sizes) for v in values if isinstance(v, Tensor))
    if total > _LARGEST:
        text = (
            f"the inputs of method {plan.name!r} have {total} elements; random inputs"
            f" have at most {_LARGEST}"
        )
        hint = "call it with inputs of your own: --input FILE.npy"
        raise Unsupported("unsupported", text, hint=hint)
    generator = np.random.default_rng(seed)
    return [_random_array(value, generator) for value in values]


def _random_array(value: Any, generator: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return a random array for a tensor; the value in the file for other inputs."""
    if isinstance(value, (Int, Bool, Double, String)):
        return np.array(value.value)
    if not isinstance(value, Tensor):
        raise Unsupported(
            "unsupported", f"cannot make a random {type(value).__name__} for an input"
        )
    name = TORCH_NAMES[ScalarType(value.scalar_type)]
    if name == "bool":
        return generator.integers(0, 2, value.sizes).astype(bool)
    if not name.startswith(("float", "bfloat", "complex")):
        return generator.integers(0, 2, value.sizes).astype(name)
    if name not in ("float16", "float32", "float64"):
        raise Unsupported(
            "unsupported", f"an input is {name}; numpy has no arrays of this type"
        )
    return np.asarray(generator.standard_normal(value.sizes)).astype(name)
