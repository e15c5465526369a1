"""``Signature``: what a delegate takes and returns, for runtimes of engines that trust
what they are given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from delegraph.errors import FormatError, InputError
from delegraph.runtime import Border
from delegraph_programs import output_values, user_inputs
from delegraph_programs.exported_program import MUTATIONS
from torch.export import ExportedProgram
from torch.fx import Node

from .sealed import seal, unseal

Type = tuple[str, tuple[int, ...]]
"""The name of a dtype (``float32``) and a shape, where -1 is a size that each call
chooses. ("int", ()) is a number.
"""
Held = tuple[str | None, tuple[int, ...] | None]
"""A ``Type`` as far as an engine's file tells it: None is a dtype that torch does not
have, or any shape.
"""
NUMBERS: dict[str, type] = {
    "int": int,
    "float": float,
}  # as dtypes, torch.int and torch.float call themselves otherwise


@dataclass(frozen=True)
class Signature:
    """The types of a delegate's inputs and outputs, in order.

    An engine reads the memory that it gets as that of the types that it compiled for,
    so its runtime has to compare. Where the engine's own file does not tell the types,
    store them with the blob: ``told`` is for JSON.
    """

    inputs: tuple[Type, ...]
    outputs: tuple[Type, ...]

    @classmethod
    def of(cls, program: ExportedProgram) -> Signature:
        """The signature of a partition, as ``preprocess`` gets it. New values of its
        own buffers are no outputs.
        """
        outputs = zip(
            program.graph_signature.output_specs, output_values(program), strict=True
        )
        results = [value for spec, value in outputs if spec.kind not in MUTATIONS]
        return cls(
            tuple(map(_type_of, user_inputs(program))), tuple(map(_type_of, results))
        )

    @classmethod
    def read(cls, told: Any) -> Signature:
        """The signature of which ``told`` was stored. Raises FormatError for anything
        else.
        """
        try:
            inputs, outputs = (
                tuple(_checked_type(dtype, shape) for dtype, shape in side)
                for side in told
            )
        except (TypeError, ValueError) as e:
            raise FormatError(
                "format-invalid", f"a blob whose signature is {told!r:.80}: {e}"
            ) from e
        return cls(inputs, outputs)

    def seal(self, path: Path, mark: bytes, **facts: Any) -> bytes:
        """The blob that is the engine's file at ``path``, this signature and ``facts``,
        sealed as by ``seal``.
        """
        return seal(path, mark, [facts, *self.told])

    @classmethod
    def unseal(
        cls, blob: bytes, mark: bytes
    ) -> tuple[memoryview, Signature, dict[str, Any]]:
        """The file, the signature and the facts in a blob of ``seal``. FormatError for
        another, or a damaged one.
        """
        file, told = unseal(blob, mark)
        facts, *sides = told if isinstance(told, list) and told else [None]
        if not isinstance(facts, dict):
            raise FormatError("format-invalid", f"a blob of which is told {told!r:.80}")
        return file, cls.read(sides), facts

    @property
    def told(self) -> list[tuple[Type, ...]]:
        """The signature as JSON can have it."""
        return [self.inputs, self.outputs]

    def why_otherwise(
        self, inputs: Iterable[Held | None], outputs: Iterable[Held]
    ) -> str | None:
        """Why an engine takes or returns something else than this signature says; None
        if it does not.

        ``inputs``, ``outputs``: the types that its file says, in order. None in place
        of an input: the engine leaves it out. A size may be -1, and a shape None, if it
        is not known; an int is an int64.
        """
        for does, side, wanted in (
            ("takes", [*inputs], self.inputs),
            ("returns", [*outputs], self.outputs),
        ):
            if len(side) != len(wanted):
                return f"{does} {len(side)} values, where {len(wanted)} are wanted"
            for place, (held, type_) in enumerate(zip(side, wanted, strict=True)):
                if held is not None and not _may_be(held, type_):
                    return (
                        f"{does} {held[0]} {held[1]} at place {place}, where {type_[0]}"
                        f" {type_[1]} is wanted"
                    )
        return None

    @cached_property
    def _int64(self) -> list[int]:
        return [
            place
            for place, (dtype, _) in enumerate(self.inputs)
            if dtype in ("int64", "int")
        ]

    def arrays(
        self, args: Sequence[Any], int64_bits: int = 64
    ) -> list[np.ndarray[Any, Any]]:
        """The arguments of a call as arrays in C order, which share the tensors' memory
        where they can.

        numpy has no bfloat16: that is int16 with the same bits. An int is an int64.
        ``int64_bits``: how many of its bits the engine computes with. Raises InputError
        for an argument of another type, and for one with integers that these bits do
        not hold.
        """
        if len(args) != len(self.inputs):
            text = (
                f"the delegate takes {len(self.inputs)} inputs; {len(args)} were given"
            )
            raise InputError("input-invalid", text)
        for position, (arg, wanted) in enumerate(zip(args, self.inputs, strict=True)):
            if not _fits(arg, *wanted):
                given = f"{arg!r:.40}"
                if isinstance(arg, torch.Tensor):
                    given = (
                        "a nested tensor"
                        if arg.is_nested
                        else f"{arg.dtype} {tuple(arg.shape)}"
                    )
                text = (
                    f"input {position}: {wanted[0]} {wanted[1]} is wanted, {given} was"
                    " given"
                )
                raise InputError("input-invalid", text)
        arrays = [
            _array_of(arg) if isinstance(arg, torch.Tensor) else np.asarray(arg)
            for arg in args
        ]
        if int64_bits < 64:
            for place in self._int64:
                _expect_fits(arrays[place], int64_bits)
        return arrays

    def results(self, arrays: Iterable[np.ndarray[Any, Any]]) -> tuple[Any, ...]:
        """What the engine computed, as tensors with memory of their own and as numbers.

        An array has the bits of its result: its type may be another of the same size,
        as where numpy or the engine lacks one. Raises FormatError if an array is not of
        the size that the signature says.
        """
        return tuple(
            _result(array, *wanted)
            for array, wanted in zip(arrays, self.outputs, strict=True)
        )

    def timed(self) -> tuple[Signature, dict[Border, float]]:
        """The same signature, for profiles, and the seconds that its ``arrays`` and
        ``results`` took so far.

        What making an array takes is that of an input if the delegate has one alone.
        """
        seconds = {Border("output", place): 0.0 for place in range(len(self.outputs))}
        if len(self.inputs) == 1:
            seconds[Border("input", 0)] = 0.0
        return _Timed(self.inputs, self.outputs, seconds), seconds


@dataclass(frozen=True)
class _Timed(Signature):
    seconds: dict[Border, float]

    def arrays(
        self, args: Sequence[Any], int64_bits: int = 64
    ) -> list[np.ndarray[Any, Any]]:
        start = perf_counter()
        arrays = super().arrays(args, int64_bits)
        if len(self.inputs) == 1:
            self.seconds[Border("input", 0)] += perf_counter() - start
        return arrays

    def results(self, arrays: Iterable[np.ndarray[Any, Any]]) -> tuple[Any, ...]:
        results = list[Any]()
        start = perf_counter()
        for place, (array, wanted) in enumerate(zip(arrays, self.outputs, strict=True)):
            results.append(_result(array, *wanted))
            now = perf_counter()
            self.seconds[Border("output", place)] += now - start
            start = now
        return tuple(results)


def _type_of(node: Node) -> Type:
    val = node.meta["val"]
    if isinstance(val, torch.Tensor):
        sizes = tuple(size if isinstance(size, int) else -1 for size in val.shape)
        return str(val.dtype).removeprefix("torch."), sizes
    symbols = {torch.SymInt: "int", torch.SymFloat: "float"}
    return symbols.get(type(val), type(val).__name__), ()


def _checked_type(dtype: Any, shape: Any) -> Type:
    if (
        not isinstance(getattr(torch, dtype, None), torch.dtype)
        and dtype not in NUMBERS
    ):
        raise ValueError(f"there is no type {dtype!r:.40}")
    if any(type(size) is not int or not -1 <= size < 1 << 48 for size in shape):
        raise ValueError(f"{shape!r:.40} is no shape")
    return dtype, tuple(shape)


def _fits(arg: Any, dtype: str, shape: tuple[int, ...]) -> bool:
    """Whether ``arg`` is a number of the type, or a dense CPU tensor of the type and
    shape with memory of its own.
    """
    if dtype in NUMBERS:
        return type(arg) is NUMBERS[dtype]
    if not isinstance(arg, torch.Tensor):
        return False
    # a subclass with a __torch_dispatch__ of its own may hold no memory at all
    if type(arg).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return False
    if arg.dtype is not getattr(torch, dtype) or arg.device.type != "cpu":
        return False
    if arg.layout is not torch.strided or arg.is_nested or arg.dim() != len(shape):
        return False
    return all(
        wanted in (-1, size) for size, wanted in zip(arg.shape, shape, strict=True)
    )


def _may_be(held: Held, wanted: Type) -> bool:
    """Whether a value of the type ``wanted`` is one of the type ``held``, as far as
    that is known.
    """
    (dtype, shape), (wanted_dtype, sizes) = held, wanted
    if dtype != {"int": "int64", "float": "float64"}.get(wanted_dtype, wanted_dtype):
        return False
    if shape is None:
        return True
    return len(shape) == len(sizes) and all(
        a == b or -1 in (a, b) for a, b in zip(shape, sizes, strict=True)
    )


def _expect_fits(array: np.ndarray[Any, Any], bits: int) -> None:
    """Raise InputError for integers that so many bits do not hold."""
    if array.size:
        least = int(array.min())
        most = int(array.max())
        end = 1 << bits - 1
        if least < -end or most >= end:
            text = (
                f"int64 is computed in {bits} bits, and an input has elements from"
                f" {least} to {most}"
            )
            raise InputError(
                "input-invalid",
                text,
                hint="keep what computes with such numbers on the host",
            )


def _array_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    # Few calls of torch: what a network runs in between puts torch's code out of the
    # processor's caches, so that each takes 20 to 50 us. ``force`` detaches, and
    # computes the elements of a tensor that torch only marked as negated.
    whole = tensor.contiguous()
    if whole.dtype is torch.bfloat16:
        whole = whole.detach().resolve_neg().view(torch.int16)
    array: np.ndarray[Any, Any] = whole.numpy(force=True)
    return array


def _result(array: np.ndarray[Any, Any], dtype: str, shape: tuple[int, ...]) -> Any:
    if dtype in NUMBERS and array.size == 1:
        return NUMBERS[dtype](array.item())
    kind = getattr(torch, dtype)
    sizes = array.shape if -1 in shape else shape
    if array.itemsize != kind.itemsize or array.size != prod(sizes):
        text = (
            f"a blob that computes {array.dtype} {array.shape}, where its signature"
            f" says {dtype} {shape}"
        )
        raise FormatError("format-invalid", text)
    tensor = torch.from_numpy(np.array(array, order="C").reshape(sizes))
    return tensor if tensor.dtype is kind else tensor.view(kind)
