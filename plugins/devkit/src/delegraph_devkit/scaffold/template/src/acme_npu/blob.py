"""The blob: a line with format, version and checksum, then a line for each value. Your device's format goes here.

    constant NAME KEY DIMENSION...
    input NAME
    step INSTRUCTION RESULT OPERAND...      (- for an absent bias)
    output NAME

``print(lowered.delegates[0].processed_bytes.decode())`` shows one. Weights are not in it but beside it, as named data.
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
"""Goes up when a blob changes in a way that an older runtime would misread."""


class Step(NamedTuple):
    """One instruction: the values that it reads (None for an absent bias) and the one that it makes."""

    instruction: str
    operands: list[str | None]
    result: str


class Constant(NamedTuple):
    """A weight: the key of its data, which is their SHA-256, and its shape."""

    key: str
    shape: list[int]


class Program(NamedTuple):
    """What the device runs. Values have names; inputs and outputs are in calling order."""

    constants: dict[str, Constant]
    inputs: list[str]
    steps: list[Step]
    outputs: list[str]


def write(program: Program) -> bytes:
    """The blob of a program; equal programs have equal blobs."""
    lines = [("constant", name, c.key, *map(str, c.shape)) for name, c in program.constants.items()]
    lines += [("input", name) for name in program.inputs]
    lines += [("step", s.instruction, s.result, *(operand or "-" for operand in s.operands)) for s in program.steps]
    lines += [("output", name) for name in program.outputs]
    body = "".join(" ".join(words) + "\n" for words in lines).encode()
    return _header(body) + body


def read(blob: bytes) -> Program:
    """The program of a blob. Raises FormatError if it is damaged, or none that this version reads.

    The checksum finds damage and no bad intent: a runtime outside Python has to check every name and index as well.
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
            program.steps.append(Step(name, [None if word == "-" else word for word in words[1:]], words[0]))
        else:
            (program.inputs if kind == "input" else program.outputs).append(name)
    return program


def _header(body: bytes) -> bytes:
    return f"acme-npu {VERSION} {zlib.crc32(body):08x}\n".encode()


def pack(tensor: torch.Tensor) -> tuple[Constant, bytes]:
    """A float32 tensor as bytes (little endian, last dimension fastest), and how a blob refers to them."""
    data = tensor.detach().cpu().numpy().astype("<f4").tobytes()
    return Constant(hashlib.sha256(data).hexdigest(), list(tensor.shape)), data


def unpack(constant: Constant, data: bytes) -> torch.Tensor:
    """The tensor that was packed. Raises FormatError if ``data`` are not its bytes."""
    if hashlib.sha256(data).hexdigest() != constant.key:
        raise FormatError("format-invalid", f"the weight {constant.key} is missing or damaged")
    return torch.from_numpy(np.frombuffer(data, "<f4").astype(np.float32).reshape(constant.shape))
