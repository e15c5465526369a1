"""One-operator programs from OpInfo, torch's own table of operators and sample inputs."""

from __future__ import annotations

import sys
import types
import unittest
import zlib
from collections.abc import Collection, Iterator
from functools import cache
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .programs import Example, Program, undisturbed

ROUNDS = (
    *(
        (torch.float32, 0.0),
        (torch.float32, 0.5),
        (torch.int64, 0.0),
        (torch.float32, 0.25),
        (torch.float16, 0.0),
    ),
    *(
        (torch.bool, 0.0),
        (torch.int32, 0.5),
        (torch.bfloat16, 0.0),
        (torch.float32, 0.75),
        (torch.uint8, 0.0),
    ),
    *(
        (torch.float64, 0.3),
        (torch.int8, 0.0),
        (torch.float32, 0.9),
        (torch.float32, 0.1),
        (torch.float32, 0.6),
    ),
)
"""Of each round: the element type, and which sample of every operator it takes, from 0
(first) to 1 (last).
"""
_MUTABLE = "__allow_nonbracketed_mutation_flag"
_LARGEST = 10_000
"""Elements of the largest input: bigger samples say the same more slowly."""


def operator_programs(operators: Collection[str] = ()) -> Iterator[Program]:
    """One-operator programs of all operators, or of those that one of the names is for
    (``named``).

    Their order is fixed and mixes families of operators, so that the first few are a
    fair sample.
    """
    chosen = [
        info
        for info in _table()
        if not operators or any(named(info, o) for o in operators)
    ]
    for dtype, place in ROUNDS:
        for info in chosen:
            if dtype in info.supported_dtypes("cpu"):
                program = _program(info, dtype, place)
                if program is not None:
                    yield program


def named(info: Any, operator: str) -> bool:
    """Whether ``operator`` names the row: "relu", "nn.functional.relu", or as a report
    has it, "aten.relu.default".
    """
    plain = (
        operator.split(".")[1]
        if operator.startswith("aten.") and operator.count(".")
        else operator
    )
    names = {
        info.formatted_name,
        info.name,
        info.name.rpartition(".")[2],
        info.aten_name,
    }
    return plain in names | {alias.name for alias in info.aliases}


def call_names(operators: Collection[str]) -> set[str]:
    """What calls of these operators are called in exported programs: ``relu``, for
    ``aten.relu.default``.
    """
    rows = [info for info in _table() if any(named(info, o) for o in operators)]
    return {
        name.rpartition(".")[2] for info in rows for name in (info.name, info.aten_name)
    }


def unknown(operators: Collection[str]) -> list[str]:
    """Names that OpInfo has no operator for."""
    return [o for o in operators if not any(named(info, o) for info in _table())]


@cache
def _table() -> list[Any]:
    """OpInfo's rows, without what only a GPU runs.

    Importing them changes settings of torch, which are put back.
    """
    # the module proper, behind its properties
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
    """Put a stand-in in the place of ``module`` if it is missing; whether it was.

    OpInfo imports torch's own test base, which needs of ``expecttest`` the class
    TestCase only.
    """
    try:
        __import__(module)
    except ModuleNotFoundError:
        made = types.ModuleType(module)
        made.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules[module] = made
        return True
    return False


def _program(info: Any, dtype: torch.dtype, place: float) -> Program | None:
    """The operator on its sample at that place; None if it has none there with dense
    tensors.
    """
    samples = _samples(info, dtype)
    if not samples:
        return None
    index = int(place * len(samples))
    sample = samples[index]
    leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
    tensors = tuple(v for v in leaves if isinstance(v, torch.Tensor))
    if not tensors or not all(_fits(t) for t in tensors):
        return None

    def make(n: int) -> Example:
        return Call(info.op, spec, leaves).eval(), tensors

    return Program(
        f"{info.formatted_name}, {str(dtype).removeprefix('torch.')}, sample {index}",
        "",
        make,
    )


def _samples(info: Any, dtype: torch.dtype) -> list[Any]:
    """All samples, since a generator that is left unfinished runs its last lines later,
    whenever it is collected.
    """
    with undisturbed():
        torch.manual_seed(0)
        try:
            return list(info.sample_inputs("cpu", dtype, requires_grad=False))
        except Exception:
            # OpInfo's own: a sample that this build of torch cannot make is no sample
            return []


def _fits(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.numel() <= _LARGEST


class Call(torch.nn.Module):
    """Calls an operator with its tensors as inputs and everything else fixed."""

    def __init__(self, op: Any, spec: Any, leaves: list[Any]) -> None:
        super().__init__()
        self.op = op
        self.spec = spec
        self.leaves = [None if isinstance(v, torch.Tensor) else v for v in leaves]
        self.places = [k for k, v in enumerate(leaves) if isinstance(v, torch.Tensor)]

    def forward(self, *tensors: torch.Tensor) -> Any:
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return self.op(*args, **kwargs)
