"""The compiler demo's blob has fixed bytes, and damage of it is found."""

import dataclasses
import os
import random
import struct
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import delegraph
import pytest
import torch
from delegraph.errors import FormatError, InputError
from delegraph_demo.compiler.format import Code, Constant, Instruction, decode, encode
from delegraph_demo.compiler.operators import BY_CODE, TABLE
from delegraph_demo.compiler.runtime import CompilerDemoRuntime
from torch import nn

ADD = BY_CODE[1]
LINEAR = BY_CODE[5]
SIN = BY_CODE[6]
WEIGHT = Constant(bytes(range(32)), (4, 3))
# operands and outputs are numbers of values: first the inputs (0 and 1), then the
# constants (2), then the results of the instructions (3, 4 and 5)
CODE = Code(
    inputs=((2, 3), ()),
    constants=(WEIGHT,),
    instructions=(
        Instruction(SIN, (0,)),
        Instruction(LINEAR, (3, 2)),
        Instruction(ADD, (4, 1)),
    ),
    outputs=(5, 3),
)


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(3, 4)
        self.b = nn.Linear(4, 2, bias=False)

    def forward(self, x, y):
        x = torch.sin(self.a(x)) * 0.5
        return self.b(x) + y, x


INPUTS = torch.linspace(-1, 1, 6).reshape(2, 3), torch.ones(2, 1)


class Blob(NamedTuple):
    """The bytes of the only delegate of ``Layers``, and its named data."""

    content: bytes
    named_data: dict


def lower_to_one_delegate():
    lowered = delegraph.lower(Layers().eval(), INPUTS, backends=["compiler-demo"])
    (delegate,) = lowered.delegates
    return Blob(delegate.processed_bytes, delegate.module.named_data())


@pytest.fixture(scope="module")
def blob():
    return lower_to_one_delegate()


def uint32(*numbers):
    return struct.pack(f"<{len(numbers)}I", *numbers)


def test_exact_bytes_of_version_1():
    """Blobs outlive the code that wrote them.

    A change of these bytes needs a new version number.
    """
    header = b"DGCD" + bytes([1])
    counts = uint32(2, 1, 3, 2)  # inputs, constants, instructions, outputs
    # the number of dimensions is a byte, and each dimension is a uint32
    inputs = bytes([2]) + uint32(2, 3) + bytes([0])
    constants = bytes(range(32)) + bytes([2]) + uint32(4, 3)
    # the operator's code, the number of operands, and the operands
    instructions = (
        bytes([6, 1])
        + uint32(0)
        + bytes([5, 2])
        + uint32(3, 2)
        + bytes([1, 2])
        + uint32(4, 1)
    )
    outputs = uint32(5, 3)

    encoded = encode(CODE)

    assert encoded == header + counts + inputs + constants + instructions + outputs
    assert decode(encoded) == CODE


def test_operator_codes_of_version_1():
    names = {row.code: str(row.target) for row in TABLE}
    assert len(names) == len(TABLE)
    assert names == {
        1: "aten.add.Tensor",
        2: "aten.mul.Tensor",
        3: "aten.mm.default",
        4: "aten.addmm.default",
        5: "aten.linear.default",
        6: "aten.sin.default",
    }


def test_blobs_of_another_version_are_refused():
    encoded = bytearray(encode(CODE))
    encoded[4] = 7  # the byte after DGCD

    with pytest.raises(
        FormatError,
        match="was written by version 7 of its format; this runtime reads 1",
    ):
        decode(bytes(encoded))


def code_with(**fields):
    return dataclasses.replace(CODE, **fields)


def sine_of_second_input(shape):
    """Return a program whose second input has this shape."""
    return Code(((2,), shape), (), (Instruction(SIN, (0,)),), (2,))


INVALID = {
    "does not begin with b'DGCD'": b"PK\3\4" + encode(CODE)[4:],
    "1 bytes follow its end": encode(CODE) + b"\0",
    "it ends after 0 bytes": b"",
    # the only instruction has the result 3
    "not all of them come before it": encode(
        code_with(instructions=(Instruction(SIN, (3,)),), outputs=(3,))
    ),
    "operator 6 with 2 operands": encode(
        code_with(instructions=(Instruction(SIN, (0, 0)),), outputs=(3,))
    ),
    "operator 1 with 0 operands": encode(
        code_with(instructions=(Instruction(ADD, ()),), outputs=(3,))
    ),
    "do not fit each other in a linear layer": encode(
        code_with(instructions=(Instruction(LINEAR, (2, 1)),) * 3)
    ),
    "do not broadcast": encode(code_with(instructions=(Instruction(ADD, (0, 2)),) * 3)),
    # values 0 and 2 are an input and a constant; 6 does not exist
    "returns value 0, which no instruction computes": encode(code_with(outputs=(0,))),
    "returns value 2, which no": encode(code_with(outputs=(2,))),
    "returns value 6, which no": encode(code_with(outputs=(6,))),
    "up to 64 dimensions": encode(sine_of_second_input((1,) * 65)),
    "less than 4294967296 elements": encode(sine_of_second_input((2**31, 0, 2))),
}
"""Part of the error -> an invalid blob."""


@pytest.mark.parametrize("error", INVALID)
def test_invalid_blobs_are_refused(error):
    with pytest.raises(FormatError, match=error):
        decode(INVALID[error])


def test_an_unknown_operator_is_refused():
    encoded = encode(code_with(instructions=(Instruction(SIN, (0,)),), outputs=(3,)))
    # the code and the number of operands: 6 becomes 200
    changed = encoded.replace(bytes([6, 1]), bytes([200, 1]))

    with pytest.raises(FormatError, match="operator 200 with 1 operands"):
        decode(changed)


def test_a_result_that_is_too_large_is_refused():
    inputs = ((2**16, 1), (1, 2**16))
    code = Code(inputs, (), (Instruction(ADD, (0, 1)),), (2,))

    with pytest.raises(FormatError, match="less than 4294967296 elements"):
        decode(encode(code))


# --- weights --------------------------------------------------------------------------


def test_a_missing_weight_is_named(blob):
    for missing in blob.named_data:
        others = {
            key: value for key, value in blob.named_data.items() if key != missing
        }

        with pytest.raises(FormatError, match=f"no named data '{missing}'"):
            CompilerDemoRuntime.load(blob.content, [], others)


def test_a_weight_of_another_size_is_refused(blob):
    for key, value in blob.named_data.items():
        for wrong in (value[:-1], value + b"\0", b""):
            named_data = {**blob.named_data, key: wrong}

            with pytest.raises(
                FormatError, match=f"has {len(wrong)} bytes, not {len(value)}"
            ):
                CompilerDemoRuntime.load(blob.content, [], named_data)


# --- damage ---------------------------------------------------------------------------


def test_every_truncation_is_refused(blob):
    for size in range(len(blob.content)):
        with pytest.raises(FormatError):
            CompilerDemoRuntime.load(blob.content[:size], [], blob.named_data)


def outcome_of(content, named_data):
    """Load and run a blob, and return "works" or the name of the error.

    An error is a FormatError, or an InputError if the damaged blob has other inputs.
    Any other exception fails the test.
    """
    try:
        results = CompilerDemoRuntime.load(content, [], named_data)(*INPUTS)
    except (FormatError, InputError) as e:
        return type(e).__name__
    for result in results:
        assert isinstance(result, torch.Tensor)
        assert result.dtype is torch.float32
    return "works"


def test_a_flipped_bit_is_refused_or_harmless(blob):
    assert outcome_of(blob.content, blob.named_data) == "works"

    outcomes = set()
    for position in range(len(blob.content)):
        for bit in range(8):
            damaged = bytearray(blob.content)
            damaged[position] ^= 1 << bit
            outcomes.add(outcome_of(bytes(damaged), blob.named_data))

    assert outcomes == {"FormatError", "works"}


SMALL_NUMBERS = (0, 1, 2, 3, 6, 127, 255)
"""Numbers that are often valid, and the largest ones."""


def test_several_changed_bytes_are_refused_or_harmless(blob):
    rng = random.Random(3)
    for _ in range(3000):
        damaged = bytearray(blob.content)
        for _ in range(rng.choice((1, 2, 4, 16))):
            position = rng.randrange(len(damaged))
            damaged[position] = rng.choice((*SMALL_NUMBERS, rng.randrange(256)))

        outcome_of(bytes(damaged), blob.named_data)


def test_random_bytes_after_a_header_are_refused_or_harmless():
    rng = random.Random(4)
    for _ in range(3000):
        counts = [rng.randrange(3) for _ in range(4)]
        header = b"DGCD\x01" + uint32(*counts)
        rest = bytes(rng.choice((0, 1, 2, 6)) for _ in range(rng.randrange(60)))

        outcome_of(header + rest, {})


# --- the same bytes everywhere --------------------------------------------------------


COMPILE_AND_PRINT = """
import sys

sys.path.insert(0, sys.argv[1])
from test_compiler_format import lower_to_one_delegate

blob = lower_to_one_delegate()
print(blob.content.hex(), *sorted(blob.named_data))
"""


def test_another_process_compiles_the_same_bytes(blob):
    """Another hash seed gives another order of sets."""
    folder = str(Path(__file__).parent)
    completed = subprocess.run(
        [sys.executable, "-c", COMPILE_AND_PRINT, folder],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "1"},
    )

    content, *keys = completed.stdout.split()
    assert content == blob.content.hex()
    assert keys == sorted(blob.named_data)
