"""Make programs of one operator from OpInfo, torch's table of operators and samples."""

from __future__ import annotations

import sys
import types
import unittest
import zlib
from collections.abc import Collection, Iterator
from functools import cache
from typing import Any

import torch
from delegraph.errors import UsageError
from torch.utils import _pytree as pytree

from .programs import Example, Program, undisturbed

ROUNDS = (
    (torch.float32, 0.0),
    (torch.float32, 0.5),
    (torch.int64, 0.0),
    (torch.float32, 0.25),
    (torch.float16, 0.0),
    (torch.bool, 0.0),
    (torch.int32, 0.5),
    (torch.bfloat16, 0.0),
    (torch.float32, 0.75),
    (torch.uint8, 0.0),
    (torch.float64, 0.3),
    (torch.int8, 0.0),
    (torch.float32, 0.9),
    (torch.float32, 0.1),
    (torch.float32, 0.6),
)
"""For each round: the element type, and the position of the sample of every operator.

Position 0 is the first sample; position 1 would be after the last one.
"""
_MUTABLE = "__allow_nonbracketed_mutation_flag"
_LARGEST = 10_000
"""The elements of the largest input: bigger samples are slow and test nothing more."""


def operator_programs(operators: Collection[str] = ()) -> Iterator[Program]:
    """Yield programs of one operator, for all operators or for those of these names.

    The order is fixed, and mixes families of operators. So the first few are a fair
    sample.
    """
    chosen = _rows(operators) if operators else _table()
    for dtype, position in ROUNDS:
        for info in chosen:
            if dtype in info.supported_dtypes("cpu"):
                program = _program(info, dtype, position)
                if program is not None:
                    yield program


def named(info: Any, operator: str) -> bool:
    """Return whether ``operator`` names the row: "relu", "nn.functional.relu", or as in
    reports "aten.relu.default".
    """
    plain = operator
    if operator.startswith("aten."):
        plain = operator.split(".")[1]
    names = {
        info.formatted_name,
        info.name,
        info.name.rpartition(".")[2],
        info.aten_name,
    }
    return plain in names | {alias.name for alias in info.aliases}


def call_names(operators: Collection[str]) -> set[str]:
    """Return the names of these operators in exported programs.

    For example, "relu" stands for calls of ``aten.relu.default``.
    """
    names: set[str] = set()
    for info in _rows(operators):
        names.add(info.name.rpartition(".")[2])
        names.add(info.aten_name.rpartition(".")[2])
    return names


def _rows(operators: Collection[str]) -> list[Any]:
    """Return the rows of OpInfo for these operators."""
    return [info for info in _table() if any(named(info, o) for o in operators)]


def require_operators(operators: Collection[str]) -> None:
    """Raise UsageError if OpInfo lacks one of the operators."""
    for operator in operators:
        if not any(named(info, operator) for info in _table()):
            raise UsageError(
                "usage-invalid",
                f"torch's table of operators has no {operator!r}",
                hint="name an operator such as add or relu",
            )


@cache
def _table() -> list[Any]:
    """Return OpInfo's rows, without operators for GPUs only.

    Importing them changes settings of torch, which this function restores.
    """
    # the module itself, without the properties of its wrapper
    settings = vars(getattr(torch.backends, "m", torch.backends))
    before = settings.get(_MUTABLE, True)
    stood_in = _stand_in("expecttest")
    try:
        with undisturbed():
            from torch.testing._internal.common_methods_invocations import op_db
    finally:
        settings[_MUTABLE] = before
        if stood_in:
            del sys.modules["expecttest"]
    rows = [info for info in op_db if not info.name.startswith("jiterator")]
    return sorted(rows, key=lambda info: zlib.crc32(info.formatted_name.encode()))


def _stand_in(module: str) -> bool:
    """Install a stand-in for ``module`` if it is missing; return whether it was.

    OpInfo imports torch's own test base, which needs only the class TestCase of
    ``expecttest``.
    """
    try:
        __import__(module)
    except ModuleNotFoundError:
        made = types.ModuleType(module)
        made.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules[module] = made
        return True
    return False


def _program(info: Any, dtype: torch.dtype, position: float) -> Program | None:
    """Return the program of a sample; None if the sample has no small dense tensors."""
    samples = _samples(info, dtype)
    if not samples:
        return None
    index = int(position * len(samples))
    sample = samples[index]
    leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
    tensors = tuple(v for v in leaves if isinstance(v, torch.Tensor))
    if not tensors or not all(_fits(t) for t in tensors):
        return None

    def make(n: int) -> Example:
        return Call(info.op, spec, leaves).eval(), tensors

    element_type = str(dtype).removeprefix("torch.")
    name = f"{info.formatted_name}, {element_type}, sample {index}"
    return Program(name, "", make)


def _samples(info: Any, dtype: torch.dtype) -> list[Any]:
    """Return all samples of an operator; [] if this build of torch cannot make them.

    The list is complete even if one sample is needed: an unfinished generator would run
    its last lines at any later time.
    """
    with undisturbed():
        torch.manual_seed(0)
        try:
            return list(info.sample_inputs("cpu", dtype, requires_grad=False))
        except Exception:
            return []


def _fits(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is dense and small."""
    return tensor.layout is torch.strided and tensor.numel() <= _LARGEST


class Call(torch.nn.Module):
    """Calls an operator with its tensors as inputs and everything else fixed."""

    def __init__(self, op: Any, spec: Any, leaves: list[Any]) -> None:
        super().__init__()
        self.op = op
        self.spec = spec
        self.leaves = [None if isinstance(v, torch.Tensor) else v for v in leaves]
        self.positions = [
            k for k, v in enumerate(leaves) if isinstance(v, torch.Tensor)
        ]

    def forward(self, *tensors: torch.Tensor) -> Any:
        leaves = list(self.leaves)
        for position, tensor in zip(self.positions, tensors, strict=True):
            leaves[position] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return self.op(*args, **kwargs)
