"""Writes and reads the blob. Replace this format by the format of your device.

The first line of a blob has format, version and checksum. A line for each value follows:

    constant NAME KEY DIMENSION...
    input NAME
    step INSTRUCTION RESULT OPERAND...      (- for an absent bias)
    output NAME

``print(lowered.delegates[0].processed_bytes.decode())`` prints a blob. Weights are named data, outside the blob.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from typing import NamedTuple

import numpy as np
import torch
from delegraph.errors import FormatError

VERSION = 1
"""Increase it if an older runtime would misread the changed blob."""


class Step(NamedTuple):
    """An instruction with the names of its operands (None for an absent bias) and of its result."""

    instruction: str
    operands: list[str | None]
    result: str


class Constant(NamedTuple):
    """A weight: the key of its named data (the SHA-256 of the bytes), and its shape."""

    key: str
    shape: list[int]


class Program(NamedTuple):
    """A program for the device. Values have names; inputs and outputs have the order of the call."""

    constants: dict[str, Constant]
    inputs: list[str]
    steps: list[Step]
    outputs: list[str]


def write(program: Program) -> bytes:
    """Return the blob of a program. Equal programs have equal blobs."""
    lines = [("constant", name, c.key, *map(str, c.shape)) for name, c in program.constants.items()]
    lines += [("input", name) for name in program.inputs]
    lines += [("step", s.instruction, s.result, *(operand or "-" for operand in s.operands)) for s in program.steps]
    lines += [("output", name) for name in program.outputs]
    body = "".join(" ".join(words) + "\n" for words in lines).encode()
    return _header(body) + body


def read(blob: bytes) -> Program:
    """Return the program in a blob. Raises FormatError if the blob is damaged or has another version.

    The checksum detects damage, but not an attack: a runtime outside Python must check every name and index, too.
    """
    found = re.match(rb"acme-npu (\d{1,9}) ", blob)
    if found and int(found[1]) != VERSION:
        raise FormatError("format-invalid", f"the blob has version {int(found[1])}; this runtime reads {VERSION}")
    _, _, body = blob.partition(b"\n")
    if blob != _header(body) + body:
        raise FormatError("format-invalid", "the blob is damaged, or not of acme-npu")
    program = Program({}, [], [], [])
    for kind, name, *words in map(str.split, body.decode().splitlines()):
        if kind == "constant":
            program.constants[name] = Constant(words[0], [int(word) for word in words[1:]])
        elif kind == "step":
            result, *operands = words
            program.steps.append(Step(name, [None if word == "-" else word for word in operands], result))
        elif kind == "input":
            program.inputs.append(name)
        else:
            program.outputs.append(name)
    return program


def _header(body: bytes) -> bytes:
    return f"acme-npu {VERSION} {zlib.crc32(body):08x}\n".encode()


def pack(tensor: torch.Tensor) -> tuple[Constant, bytes]:
    """Return the record of a float32 tensor for the blob, and its bytes (little-endian, in C order)."""
    data = tensor.detach().cpu().numpy().astype("<f4").tobytes()
    return Constant(hashlib.sha256(data).hexdigest(), list(tensor.shape)), data


def unpack(constant: Constant, data: bytes) -> torch.Tensor:
    """Return the tensor of a record. Raises FormatError if ``data`` are not its bytes."""
    if hashlib.sha256(data).hexdigest() != constant.key:
        raise FormatError("format-invalid", f"the weight {constant.key} is missing or damaged")
    return torch.from_numpy(np.frombuffer(data, "<f4").astype(np.float32).reshape(constant.shape))
