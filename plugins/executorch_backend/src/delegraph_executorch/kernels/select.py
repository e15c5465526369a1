"""Find the kernel that computes an operator: its out variant, by the schemas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch._ops import OpOverload

from ..program.quantized_library import QUANTIZED_LIBRARY
from .kernel_set import KernelSet

DECLARED_BY_RESULT = frozenset(
    {"dtype", "layout", "device", "pin_memory", "memory_format"}
)
"""Arguments that an out variant may lack, since its result has these properties."""


@dataclass(frozen=True)
class Kernel:
    """A kernel with its arguments as schemas: ``inputs``, then ``outputs``."""

    name: str
    overload: str
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]

    def __str__(self) -> str:
        return kernel_name(self.name, self.overload)


def kernel_name(name: str, overload: str) -> str:
    """Return ``aten::add.out``; only the name if there is no overload name."""
    return f"{name}.{overload}" if overload else name


@lru_cache(maxsize=4096)
def find_kernel(operator: OpOverload, kernels: KernelSet) -> Kernel | None:
    """Return the kernel in ``kernels`` that computes an operator, if there is one.

    A view is computed by its copying variant: ``permute`` by ``permute_copy.out``.
    """
    for candidate in _candidates(operator):
        if _same_call(operator, candidate):
            arguments = candidate._schema.arguments
            kernel = Kernel(
                candidate._schema.name,
                candidate._schema.overload_name,
                tuple(a for a in arguments if not a.is_out),
                tuple(a for a in arguments if a.is_out),
            )
            if str(kernel) in kernels:
                return kernel
    return _of_quantized_library(operator, kernels)


def _of_quantized_library(operator: OpOverload, kernels: KernelSet) -> Kernel | None:
    """Return the kernel of a quantize or dequantize, if the library is in ``kernels``.

    torch has no schema of it: its arguments are those of the operator, then the result.
    """
    schema = operator._schema
    name = kernel_name(schema.name, "out")
    if schema.overload_name or name not in QUANTIZED_LIBRARY or name not in kernels:
        return None
    return Kernel(schema.name, "out", tuple(schema.arguments), tuple(schema.returns))


def _candidates(operator: OpOverload) -> Iterator[OpOverload]:
    """Yield the out variants of the operator and of its copying variant."""
    namespace, _, name = operator._schema.name.partition("::")
    for variant in (name, f"{name}_copy"):
        packet = getattr(getattr(torch.ops, namespace), variant, None)
        for overload in packet.overloads() if packet is not None else ():
            candidate = getattr(packet, overload)
            if any(a.is_out for a in candidate._schema.arguments):
                yield candidate


def _same_call(operator: OpOverload, candidate: OpOverload) -> bool:
    """Return whether an out variant takes the arguments of the operator.

    Arguments that describe the result may be missing.
    """
    given = {a.name: str(a.real_type) for a in operator._schema.arguments}
    taken = {
        a.name: str(a.real_type) for a in candidate._schema.arguments if not a.is_out
    }
    results = [a for a in candidate._schema.arguments if a.is_out]
    if len(results) != len(operator._schema.returns):
        return False
    if not given.keys() - taken.keys() <= DECLARED_BY_RESULT:
        return False
    return all(given.get(name) == kind for name, kind in taken.items())
