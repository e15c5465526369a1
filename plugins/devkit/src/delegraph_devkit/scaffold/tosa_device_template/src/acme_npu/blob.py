"""Writes and reads the blob. Replace this format by the format of your device.

A blob is a line with format and version, a checksum, then words of 32 bits: a list of steps, then the list of outputs.
A step is a position in ``OPERATIONS`` and three lists: the shape of the result, the numbers of the steps that compute
the operands, and the attributes. The attributes of a CONST are its elements. A list begins with its length. A float is
stored as its bits.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, NamedTuple

import numpy as np
from delegraph.errors import FormatError
from delegraph_tosa import DType, Graph, Operator, materialize

from .instructions import OPERATORS

FORMAT = b"acme-npu 1\n"
"""The start of each blob. Increase the number if an older runtime would misread the changed blob."""
OPERATIONS = ("CONST", "INPUT", *OPERATORS)


class Step(NamedTuple):
    """The computation of one value. The lists are arrays of words."""

    operation: str
    shape: Any
    operands: Any
    attributes: Any


def write(graph: Graph) -> bytes:
    """Return the blob of a TOSA graph. Equal graphs have equal blobs."""
    constants = [value for value in graph.constants() if value.dtype is DType.FP32]
    values = [*constants, *graph.inputs, *(operator.outputs[0] for operator in graph.operators)]
    number = {value: k for k, value in enumerate(values)}
    steps = [Step("CONST", value.shape, (), _words(materialize(value), "<f4")) for value in constants]
    steps += [Step("INPUT", value.shape, (), ()) for value in graph.inputs]
    for operator in graph.operators:
        operands = [number[value] for value in operator.inputs if value in number]  # no shapes, no shifts
        steps.append(Step(operator.name, operator.outputs[0].shape, operands, _attributes(operator)))
    pieces: list[Any] = [len(steps)]
    for step in steps:
        pieces.append(OPERATIONS.index(step.operation))
        for numbers in (step.shape, step.operands, step.attributes):
            pieces += [len(numbers), numbers]
    pieces += [len(graph.outputs), [number[value] for value in graph.outputs]]
    body: bytes = np.concatenate([_words(piece, "<i4") for piece in pieces]).tobytes()
    return FORMAT + struct.pack("<I", zlib.crc32(body)) + body


def _words(numbers: Any, type: str) -> Any:
    """Return numbers of a NumPy type as an array of words."""
    return np.ravel(numbers).astype(type).view("<i4")


def _attributes(operator: Operator) -> Any:
    """Return the attributes that the device needs, as a list of words."""
    words: list[Any] = []
    for name in OPERATORS[operator.name]:
        value = getattr(operator, name)
        words += list(_words(value, "<f4" if isinstance(value, float) else "<i4"))
    return words


def read(blob: bytes) -> tuple[list[Step], list[int]]:
    """Return the steps and outputs in a blob. Raises FormatError if the blob is damaged or has another version.

    The checksum detects damage, but not an attack: a runtime outside Python must check every number, too.
    """
    start = len(FORMAT) + 4
    if blob[:start] != FORMAT + struct.pack("<I", zlib.crc32(blob[start:])):
        message = "the blob is damaged, or not of this version of acme-npu"
        raise FormatError("format-invalid", message)
    words = np.frombuffer(blob, "<i4", offset=start)
    position = 0

    def next_word() -> int:
        nonlocal position
        position += 1
        return int(words[position - 1])

    def next_list() -> Any:
        nonlocal position
        size = next_word()
        position += size
        return words[position - size : position]

    steps = []
    for _ in range(next_word()):
        operation = OPERATIONS[next_word()]
        shape = next_list().tolist()
        operands = next_list()
        steps.append(Step(operation, shape, operands, attributes=next_list()))
    return steps, next_list().tolist()
