"""``Signature``: the types of a delegate's inputs and outputs, and checks of calls.

Runtimes need it for engines that do not check the memory that they get.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from delegraph.errors import FormatError, InputError
from delegraph.runtime import Border
from delegraph_programs import output_values, user_inputs
from delegraph_programs.exported_program import MUTATIONS
from delegraph_programs.program_arguments import TensorCheck
from torch.export import ExportedProgram
from torch.fx import Node

from .sealed import seal, unseal

Type = tuple[str, tuple[int, ...]]
"""The name of a dtype (``float32``) and a shape; -1 is a size chosen by each call.

("int", ()) is a number.
"""
DeclaredType = tuple[str | None, tuple[int, ...] | None]
"""A ``Type`` as an engine's file declares it.

None is a dtype that torch does not have, or an unknown shape.
"""
NUMBERS: dict[str, type] = {"int": int, "float": float}
"""Types of numbers. They are no dtypes: the names of torch.int and torch.float differ."""
NUMBER_DTYPES = {"int": torch.int64, "float": torch.float64}
"""Types of numbers -> the dtypes of tensors that hold them."""


@dataclass(frozen=True)
class Signature:
    """The types of a delegate's inputs and outputs, in order.

    An engine reads the memory that it gets as that of the types that it compiled for,
    so its runtime must compare them. If the engine's own file does not declare the
    types, store the signature with the blob: ``seal``.
    """

    inputs: tuple[Type, ...]
    outputs: tuple[Type, ...]

    @classmethod
    def of(cls, program: ExportedProgram) -> Signature:
        """Return the signature of a partition, as ``preprocess`` gets it.

        New values of buffers that the delegate owns are no outputs.
        """
        specs = program.graph_signature.output_specs
        outputs = zip(specs, output_values(program), strict=True)
        results = [value for spec, value in outputs if spec.kind not in MUTATIONS]
        input_types = map(_type_of, user_inputs(program))
        return cls(tuple(input_types), tuple(map(_type_of, results)))

    @classmethod
    def from_json(cls, data: Any) -> Signature:
        """Return the signature with the JSON form ``data``; FormatError for other data."""
        try:
            inputs, outputs = data
            input_types = tuple(_checked_type(*type_) for type_ in inputs)
            output_types = tuple(_checked_type(*type_) for type_ in outputs)
        except (TypeError, ValueError) as e:
            raise FormatError(
                "format-invalid", f"the blob has an invalid signature {data!r:.80}: {e}"
            ) from e
        return cls(input_types, output_types)

    def seal(self, path: Path, mark: bytes, **facts: Any) -> bytes:
        """Seal the engine's file at ``path`` with this signature and ``facts``."""
        return seal(path, mark, [facts, *self.json_form])

    @classmethod
    def unseal(cls, blob: bytes, mark: bytes) -> Unsealed:
        """Return the file, the signature and the facts in a blob of ``seal``.

        Raises FormatError if the blob is damaged, or of another kind.
        """
        file, data = unseal(blob, mark)
        if not isinstance(data, list) or not data or not isinstance(data[0], dict):
            raise FormatError(
                "format-invalid",
                f"the blob has {data!r:.80} in the place of its signature",
            )
        facts, *types = data
        return Unsealed(file, cls.from_json(types), facts)

    @property
    def json_form(self) -> list[tuple[Type, ...]]:
        """Return the signature as lists that JSON can store."""
        return [self.inputs, self.outputs]

    def why_mismatch(
        self, inputs: Iterable[DeclaredType | None], outputs: Iterable[DeclaredType]
    ) -> str | None:
        """Return how an engine's types differ from this signature, or None.

        ``inputs``, ``outputs``: the types that its file declares, in order. None
        instead of an input: the engine leaves it out. A size may be -1, and a shape None,
        if it is not known; an int is an int64.
        """
        wrong_input = _why_mismatch("takes", list(inputs), self.inputs)
        return wrong_input or _why_mismatch("returns", list(outputs), self.outputs)

    @cached_property
    def _checks(self) -> list[Callable[[Any], bool]]:
        """One check for each input."""
        return [_check_of(*wanted) for wanted in self.inputs]

    def _expect_fit(self, args: Sequence[Any]) -> None:
        """Raise InputError unless ``args`` have the types of the inputs."""
        if len(args) != len(self.inputs):
            text = (
                f"the delegate takes {len(self.inputs)} inputs; {len(args)} were given"
            )
            raise InputError("input-invalid", text)
        for position, fits in enumerate(self._checks):
            if not fits(args[position]):
                dtype, shape = self.inputs[position]
                text = (
                    f"input {position} of the delegate is {_describe(args[position])};"
                    f" it was compiled for {dtype} {shape}"
                )
                raise InputError("input-invalid", text)

    def tensors(self, args: Sequence[Any]) -> list[torch.Tensor]:
        """Return the arguments of a call as dense tensors in C order.

        They share the memory of the arguments if possible. A number is a tensor of
        int64 or float64. Raises InputError for an argument of another type.
        """
        self._expect_fit(args)
        tensors = []
        for arg in args:
            if not isinstance(arg, torch.Tensor):
                arg = torch.tensor(arg, dtype=NUMBER_DTYPES[type(arg).__name__])
            elif arg.is_neg():
                # torch only marked the elements as negated
                arg = arg.detach().resolve_neg()
            tensors.append(arg.contiguous())
        return tensors

    @cached_property
    def _int64_positions(self) -> list[int]:
        """Positions of the inputs that are integers of 64 bits."""
        dtypes = [dtype for dtype, _ in self.inputs]
        return [k for k, dtype in enumerate(dtypes) if dtype in ("int64", "int")]

    def arrays(
        self, args: Sequence[Any], int64_bits: int = 64
    ) -> list[np.ndarray[Any, Any]]:
        """Return the arguments of a call as arrays in C order.

        They share the tensors' memory if possible. numpy has no bfloat16: that is int16
        with the same bits. An int is an int64. ``int64_bits``: how many of its bits the
        engine computes with. Raises InputError for an argument of another type, and for
        integers that do not fit these bits.
        """
        self._expect_fit(args)
        arrays = [
            _array_of(arg) if isinstance(arg, torch.Tensor) else np.asarray(arg)
            for arg in args
        ]
        if int64_bits < 64:
            for position in self._int64_positions:
                _expect_bits(arrays[position], int64_bits)
        return arrays

    def results(self, arrays: Iterable[np.ndarray[Any, Any]]) -> tuple[Any, ...]:
        """Return the engine's results as numbers, or tensors in new memory.

        An array has the bits of its result. Its type may be another one of the same
        size, if numpy or the engine lacks a type. Raises FormatError if the size of an
        array differs from the signature.
        """
        return tuple(
            _result(array, *wanted)
            for array, wanted in zip(arrays, self.outputs, strict=True)
        )

    def timed(self) -> tuple[Signature, dict[Border, float]]:
        """Return a signature for profiles, and the seconds that it measures.

        It measures calls of ``arrays`` and ``results``. The time of ``arrays`` belongs to an input only if the
        delegate has a single one.
        """
        outputs = range(len(self.outputs))
        seconds = {Border("output", position): 0.0 for position in outputs}
        if len(self.inputs) == 1:
            seconds[Border("input", 0)] = 0.0
        return _Timed(self.inputs, self.outputs, seconds), seconds


class Unsealed(NamedTuple):
    """The content of a blob that ``Signature.seal`` made."""

    file: memoryview
    signature: Signature
    facts: dict[str, Any]


@dataclass(frozen=True)
class _Timed(Signature):
    """A signature that measures how long conversions of arguments and results take.

    ``seconds``: input or output of the delegate -> the seconds so far, of all calls.
    """

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
        results: list[Any] = []
        # an engine may make an array when it is read: this counts as conversion, too
        start = perf_counter()
        for array, (dtype, shape) in zip(arrays, self.outputs, strict=True):
            border = Border("output", len(results))
            results.append(_result(array, dtype, shape))
            end = perf_counter()
            self.seconds[border] += end - start
            start = end
        return tuple(results)


def _type_of(node: Node) -> Type:
    """Return the type of a node's recorded value; symbolic sizes become -1."""
    val = node.meta["val"]
    if isinstance(val, torch.Tensor):
        sizes = tuple(size if isinstance(size, int) else -1 for size in val.shape)
        return str(val.dtype).removeprefix("torch."), sizes
    symbols = {torch.SymInt: "int", torch.SymFloat: "float"}
    return symbols.get(type(val), type(val).__name__), ()


def _checked_type(dtype: Any, shape: Any) -> Type:
    """Return a type that was read from JSON; ValueError or TypeError if it is none."""
    if (
        not isinstance(getattr(torch, dtype, None), torch.dtype)
        and dtype not in NUMBERS
    ):
        raise ValueError(
            f"{dtype!r:.40} is neither a dtype of torch nor one of {', '.join(NUMBERS)}"
        )
    # no memory has 2**48 elements, and products of smaller sizes stay cheap
    if any(type(size) is not int or not -1 <= size < 1 << 48 for size in shape):
        raise ValueError(
            f"{shape!r:.40} is not a list of sizes, with -1 for dynamic ones"
        )
    return dtype, tuple(shape)


def _check_of(dtype: str, shape: tuple[int, ...]) -> Callable[[Any], bool]:
    """Return a function that checks an argument.

    It is a number of the type, or a dense tensor on the CPU of type and shape.
    """
    if dtype in NUMBERS:
        return lambda arg: type(arg) is NUMBERS[dtype]
    sizes = [None if size == -1 else size for size in shape]
    return TensorCheck(getattr(torch, dtype), sizes, "cpu").fits


def _why_mismatch(
    verb: str, declared: Sequence[DeclaredType | None], wanted: Sequence[Type]
) -> str | None:
    """Return how the types of an engine differ from those of a signature, or None.

    ``verb``: "takes" for inputs, or "returns" for outputs. A ``declared`` type of None
    is an input that the engine leaves out; it is not compared.
    """
    if len(declared) != len(wanted):
        return (
            f"the engine's model {verb} {len(declared)} values; the delegate's signature"
            f" has {len(wanted)}"
        )
    for position, (type_, (dtype, shape)) in enumerate(
        zip(declared, wanted, strict=True)
    ):
        if type_ is not None and not _is_compatible(type_, (dtype, shape)):
            return (
                f"the engine's model {verb} {type_[0]} {type_[1]} at position"
                f" {position}; the delegate's signature has {dtype} {shape}"
            )
    return None


def _describe(arg: Any) -> str:
    """Describe an argument in an error message."""
    if not isinstance(arg, torch.Tensor):
        return f"{arg!r:.40}"
    if arg.is_nested:
        return "a nested tensor"
    return f"{arg.dtype} {tuple(arg.shape)}"


def _is_compatible(declared: DeclaredType, wanted: Type) -> bool:
    """Return whether ``declared`` and ``wanted`` agree, as far as they are known.

    An unknown shape agrees with every shape, and a size of -1 with every size.
    """
    dtype, shape = declared
    wanted_dtype, sizes = wanted
    # engines take numbers as tensors of these types
    if wanted_dtype == "int":
        wanted_dtype = "int64"
    elif wanted_dtype == "float":
        wanted_dtype = "float64"
    if dtype != wanted_dtype:
        return False
    if shape is None:
        return True
    return len(shape) == len(sizes) and all(
        a == b or -1 in (a, b) for a, b in zip(shape, sizes, strict=True)
    )


def _expect_bits(array: np.ndarray[Any, Any], bits: int) -> None:
    """Raise InputError for integers that do not fit ``bits`` bits."""
    if not array.size:
        return
    least = int(array.min())
    most = int(array.max())
    end = 1 << bits - 1
    if least < -end or most >= end:
        text = (
            f"the delegate computes int64 in {bits} bits, and an input has elements"
            f" from {least} to {most}"
        )
        hint = "keep the operators that compute with such numbers on the host"
        raise InputError("input-invalid", text, hint=hint)


def _array_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return a tensor as an array in C order; bfloat16 becomes int16, bit by bit."""
    # Few calls of torch: between two calls, the network evicts torch's code from the
    # processor's caches, so each call takes 20 to 50 us. ``force`` detaches, and
    # computes the elements of a tensor that torch only marked as negated.
    dense = tensor.contiguous()
    if dense.dtype is torch.bfloat16:
        dense = dense.detach().resolve_neg().view(torch.int16)
    array: np.ndarray[Any, Any] = dense.numpy(force=True)
    return array


def _result(array: np.ndarray[Any, Any], dtype: str, shape: tuple[int, ...]) -> Any:
    """Return an engine's array as a number or new tensor of the signature's type.

    The array has the bits of the result, perhaps under another type of equal size.
    """
    if dtype in NUMBERS and array.size == 1:
        return NUMBERS[dtype](array.item())
    kind = getattr(torch, dtype)
    # with a size of -1 only the rank is fixed, and the engine chose the sizes
    sizes = array.shape if -1 in shape else shape
    if array.itemsize != kind.itemsize or array.size != prod(sizes):
        text = (
            f"the engine returned {array.dtype} {array.shape}; the signature of the"
            f" blob has {dtype} {shape}"
        )
        raise FormatError("format-invalid", text)
    tensor = torch.from_numpy(np.array(array, order="C").reshape(sizes))
    return tensor if tensor.dtype is kind else tensor.view(kind)
