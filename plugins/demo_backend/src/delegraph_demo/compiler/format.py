"""The blob, version 1. All numbers are little-endian, and nothing is padded.

    header        magic b"DGCD", version u8, then u32 counts of inputs, constants, instructions and outputs
    input         shape
    constant      SHA-256 of its bytes (32 bytes), shape
    instruction   operator code u8, operand count u8, operands u32 each
    output        u32
    shape         rank u8, dimensions u32 each

Values are numbered: inputs first, then constants, then the result of each instruction.
An instruction reads values with smaller numbers than its own; an output is the result
of an instruction. Shapes of results are not stored, since they follow. Nor are the
constants' bytes: they are named data, float32 in C order, shared by all delegates that
use the same weights.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

from delegraph.errors import FormatError, Unsupported

from .operators import BY_CODE, Operator, Shape, fitting

MAGIC = b"DGCD"
VERSION = 1
_COUNTS = "<4I"


@dataclass(frozen=True)
class Constant:
    """A weight: the SHA-256 of its bytes, and its shape."""

    digest: bytes
    shape: Shape

    @property
    def key(self) -> str:
        """Its name among the named data.

        It is a digest of the content, so that two models in one file never conflict.
        """
        return f"compiler-demo/{self.digest.hex()}"

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return 4 * math.prod(self.shape)


@dataclass(frozen=True)
class Instruction:
    """An operator and the numbers of the values that it reads."""

    operator: Operator
    operands: tuple[int, ...]


@dataclass(frozen=True)
class Code:
    """The content of a blob. ``inputs`` are shapes, ``outputs`` numbers of values."""

    inputs: tuple[Shape, ...]
    constants: tuple[Constant, ...]
    instructions: tuple[Instruction, ...]
    outputs: tuple[int, ...]


def encode(code: Code) -> bytes:
    """Return the bytes of ``code``; the same in any process."""
    sections = (code.inputs, code.constants, code.instructions, code.outputs)
    counts = struct.pack(_COUNTS, *map(len, sections))
    parts = [MAGIC, struct.pack("<B", VERSION), counts]
    parts += [_encode_shape(shape) for shape in code.inputs]
    parts += [c.digest + _encode_shape(c.shape) for c in code.constants]
    parts += [_encode_instruction(instruction) for instruction in code.instructions]
    parts.append(struct.pack(f"<{len(code.outputs)}I", *code.outputs))
    return b"".join(parts)


def _encode_shape(shape: Shape) -> bytes:
    """Return a shape in the form that the module describes."""
    return struct.pack(f"<B{len(shape)}I", len(shape), *shape)


def _encode_instruction(instruction: Instruction) -> bytes:
    """Return an instruction in the form that the module describes."""
    operands = instruction.operands
    return struct.pack(
        f"<BB{len(operands)}I", instruction.operator.code, len(operands), *operands
    )


def decode(blob: bytes) -> Code:
    """Read a blob and check all of it, so that a Code is always valid.

    Raises FormatError.
    """
    read = _Reader(blob)
    read.header()
    inputs, constants, instructions, outputs = read.numbers(_COUNTS)
    shapes = [read.shape() for _ in range(inputs)]
    weights = [Constant(read.take(32), read.shape()) for _ in range(constants)]
    shapes += [weight.shape for weight in weights]
    code = [read.instruction(shapes) for _ in range(instructions)]
    results = [read.output(inputs + constants, len(shapes)) for _ in range(outputs)]
    if read.position != len(blob):
        raise damaged(f"{len(blob) - read.position} bytes follow its end")
    return Code(tuple(shapes[:inputs]), tuple(weights), tuple(code), tuple(results))


def expect_version(blob: bytes) -> None:
    """Raise FormatError unless a blob, or its beginning, has the supported version."""
    _Reader(blob).header()


def damaged(text: str) -> FormatError:
    """Return the error for a blob, or named data, that the compiler did not write."""
    return FormatError(
        "format-invalid", f"this is no intact blob of BackendWithCompilerDemo: {text}"
    )


class _Reader:
    """Reads one part after the other.

    If a count is too large, reading ends at the end of the blob, and reserves no
    memory.
    """

    def __init__(self, blob: bytes) -> None:
        self.blob = blob
        self.position = 0

    def take(self, size: int) -> bytes:
        """Read the next ``size`` bytes; FormatError if the blob ends before."""
        end = self.position + size
        if end > len(self.blob):
            raise damaged(
                f"it ends after {len(self.blob)} bytes, within the part that begins at"
                f" byte {self.position}"
            )
        taken = self.blob[self.position : end]
        self.position = end
        return taken

    def numbers(self, layout: str) -> tuple[int, ...]:
        """Read the next numbers; ``layout`` is a format of ``struct``."""
        return struct.unpack(layout, self.take(struct.calcsize(layout)))

    def header(self) -> None:
        """Read magic and version; FormatError for another one."""
        if self.take(len(MAGIC)) != MAGIC:
            raise damaged(f"it does not begin with {MAGIC!r}")
        (version,) = self.numbers("<B")
        if version != VERSION:
            text = (
                f"this blob of BackendWithCompilerDemo was written by version {version}"
                " of its format"
            )
            hint = "lower the model again with the installed delegraph-demo"
            raise FormatError(
                "format-invalid", f"{text}; this runtime reads {VERSION}", hint=hint
            )

    def shape(self) -> Shape:
        """Read a shape; FormatError if no value may have it."""
        (rank,) = self.numbers("<B")
        try:
            return fitting(self.numbers(f"<{rank}I"))
        except Unsupported as refusal:
            raise damaged(refusal.message) from refusal

    def instruction(self, shapes: list[Shape]) -> Instruction:
        """Return the next instruction, and add the shape of its result to ``shapes``."""
        number = len(shapes)
        code, count = self.numbers("<BB")
        operator = BY_CODE.get(code)
        if operator is None or not operator.accepts(count):
            raise damaged(
                f"value {number} comes from operator {code} with {count} operands,"
                " which does not exist"
            )
        operands = self.numbers(f"<{count}I")
        if max(operands) >= number:
            raise damaged(
                f"value {number} is computed from the values {list(operands)}, and not"
                " all of them come before it"
            )
        try:
            given = [shapes[operand] for operand in operands]
            shapes.append(operator.check_shapes(*given))
        except Unsupported as refusal:
            raise damaged(
                f"value {number}, {operator.target}: {refusal.message}"
            ) from refusal
        return Instruction(operator, operands)

    def output(self, first: int, end: int) -> int:
        """Read the number of an output, the result of an instruction.

        These have the numbers from ``first`` to ``end``, without the end.
        """
        (number,) = self.numbers("<I")
        if not first <= number < end:
            raise damaged(f"it returns value {number}, which no instruction computes")
        return number
